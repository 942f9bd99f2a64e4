// RecreatableRRef: the maker makes a value again on the successor of its owner.
#include <weft/distributed/rref/recreatable.h>

#include "rref/world.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

ClusterOptions short_leases(int size, uint64_t seed = 1) {
  AgentOptions agent;
  agent.lease = 1s;
  ClusterOptions options{.size = size, .net = {.connect_timeout = 500ms}, .agent = agent};
  options.seed = seed;
  return options;
}

void expect_nothing_left(Cluster& c, const std::vector<int>& ranks) {
  settle(c);
  EXPECT_EQ(left_over(c, ranks), "");
}

TEST(Recreatable, is_made_again_on_the_successor_at_its_next_use) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster c(short_leases(3, seed));
    c.run(0, [&] {
      int made = 0;
      const RecreatableRRef<Cell> cell([&] { return remote<Cell>("worker1", 10 * ++made); });
      EXPECT_EQ(cell.use([](const RRef<Cell>& r) { return r.rpc_sync<&Cell::get>(); }), 10);
      const RRef<Cell> first = cell.get();
      c.kill(1);
      c.runtime().sleep_for(Duration(seed * 100ms));
      c.restart(1);
      EXPECT_EQ(cell.use([](const RRef<Cell>& r) { return r.rpc_sync<&Cell::get>(); }), 20);
      EXPECT_EQ(cell.creations(), 2);
      EXPECT_NE(cell.get(), first);
      EXPECT_EQ(cell.recreate(first), cell.get());  // it has been
      EXPECT_EQ(made, 2);
      EXPECT_THROW(first.rpc_sync<&Cell::get>(), OwnerLost);
      EXPECT_EQ(rpc_sync<read_cell>("worker2", cell.get()), 20);
    });
    expect_nothing_left(c, {0, 1, 2});
  }
}

TEST(Recreatable, waits_for_a_successor_and_names_the_reason_when_none_comes) {
  Cluster c(short_leases(2));
  c.run(0, [&] {
    const RecreatableRRef<Cell> cell([] { return remote<Cell>("worker1", 1); });
    const RRef<Cell> first = cell.get();
    c.kill(1);
    const auto wait = [&] { cell.use([](const RRef<Cell>& r) { return r.rpc_sync<&Cell::get>(); }, 5s); };
    EXPECT_TRUE(has(error_of<Timeout>(wait), "a remote value could not be made for"));
    EXPECT_TRUE(has(error_of<Timeout>(wait), "worker1"));
    EXPECT_EQ(cell.get(), first);
    EXPECT_EQ(cell.creations(), 1);
    c.restart(1);
    EXPECT_EQ(cell.recreate(first).rpc_sync<&Cell::get>(), 1);
  });
}

TEST(Recreatable, threads_that_find_it_lost_make_it_once) {
  Cluster c(short_leases(2));
  std::atomic<int> made{0};
  c.run(0, [&] {
    const RecreatableRRef<Cell> cell([&] { return ++made, remote<Cell>("worker1", 7); });
    c.kill(1);
    std::vector<Future<int64_t>> uses;
    for (int i = 0; i < 5; ++i)
      uses.push_back(Future<bool>::ready(true).then(
          [&](bool) { return cell.use([](const RRef<Cell>& r) { return r.rpc_sync<&Cell::get>(); }); }));
    c.runtime().sleep_for(100ms);
    c.restart(1);
    for (const auto& one : uses) EXPECT_EQ(one.wait(), 7);
    EXPECT_EQ(cell.creations(), 2);
  });
}

TEST(Recreatable, other_errors_and_losses_of_other_workers_pass_through) {
  Cluster c(short_leases(3));
  c.run(0, [&] {
    bool broken = false;
    const RecreatableRRef<Cell> cell([&]() -> RRef<Cell> {
      if (broken) throw ValueError("no such table");
      return remote<Cell>("worker1", 1);
    });
    const auto other = remote<Cell>("worker2", 2);
    EXPECT_EQ(other.rpc_sync<&Cell::get>(), 2);
    c.kill(2);
    EXPECT_THROW(cell.use([&](const RRef<Cell>&) { return other.rpc_sync<&Cell::get>(); }), PeerLost);
    EXPECT_EQ(cell.creations(), 1);
    broken = true;
    EXPECT_TRUE(has(error_of<ValueError>([&] { cell.recreate(cell.get()); }), "no such table"));
    broken = false;
    EXPECT_EQ(cell.recreate(cell.get()).rpc_sync<&Cell::get>(), 1);  // its maker may also renew a living one
    EXPECT_EQ(cell.creations(), 2);
  });
}

}  // namespace
