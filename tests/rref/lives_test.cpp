// References when a worker dies and a successor takes its place. News and messages of the old life do not
// touch the new one. References to the old life's values never reach the new one.
#include <weft/distributed/rpc/inner/agent_impl.h>

#include "rref/world.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

ClusterOptions short_lease(int size) {
  AgentOptions agent;
  agent.lease = 1s;
  return {.size = size, .net = {.connect_timeout = 500ms}, .agent = agent};
}

void expect_clean(Cluster& c, const std::vector<int>& ranks) {
  settle(c);
  clear_bags();
  settle(c);
  EXPECT_EQ(left_over(c, ranks), "");
}

/// Counts the requests of each kind that a worker gets.
class Arrivals final : public Interceptor {
 public:
  void request_received(Agent&, Life, Kind kind, Message&, CallContext&) override {
    ++of[static_cast<size_t>(kind)];
  }
  int count(Kind kind) const { return of[static_cast<size_t>(kind)]; }
  std::array<int, 256> of{};
};

std::shared_ptr<Arrivals> count_arrivals(Cluster& c, int rank) {
  auto arrivals = std::make_shared<Arrivals>();
  c.agent(rank)->add_interceptor(arrivals);
  return arrivals;
}

TEST(RRefLives, late_news_of_the_old_life_leaves_the_references_of_the_new_one) {
  Cluster c(short_lease(3));
  c.run(0, [&] {
    const auto old = remote<Cell>("worker1", 1);
    const auto mine = make_rref<Cell>(2);
    rpc_sync<keep_cell>("worker1", Known{2, mine});
    EXPECT_EQ(old.rpc_sync<&Cell::get>(), 1);
    EXPECT_EQ(c.agent(0)->debug_info().at("num_forks"), 1);
    c.kill(1);
    c.runtime().sleep_for(10ms);  // shorter than the lease
    bag(1).clear();
    c.restart(1);
    // The callbacks for the old life run when this fiber first waits: after these.
    const auto fresh = remote<Cell>("worker1", 3);
    auto kept = rpc_async<keep_cell>("worker1", Known{2, mine});
    fresh.created().wait();
    kept.wait();
    c.runtime().sleep_for(5s);
    EXPECT_EQ(fresh.rpc_sync<&Cell::get>(), 3);
    EXPECT_EQ(rpc_sync<read_cell>("worker2", fresh), 3);
    EXPECT_THROW(old.rpc_sync<&Cell::get>(), OwnerLost);
    EXPECT_EQ(c.agent(0)->debug_info().at("num_forks"), 1);
    ASSERT_EQ(bag(1).size(), 1u);
  });
  c.run(1, [&] { EXPECT_EQ(bag(1)[0].cell.rpc_sync<&Cell::get>(), 2); });
  expect_clean(c, {0, 1, 2});
}

TEST(RRefLives, a_reference_of_a_successor_reaches_a_worker_that_is_told_of_it_later) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterOptions options = short_lease(3);
    options.seed = seed;
    Cluster c(options);
    c.run(0, [] { EXPECT_EQ(remote<Cell>("worker2", 1).rpc_sync<&Cell::get>(), 1); });
    c.restart(0, false, 500ms);
    c.run(0, [&] {
      const auto mine = make_rref<Cell>(7);
      EXPECT_EQ(rpc_sync<pass_cell>("worker1", Known{7, mine}, std::vector<int64_t>{2}), 7) << seed;
      const auto theirs = remote<Cell>("worker2", 8);
      EXPECT_EQ(rpc_sync<pass_cell>("worker1", Known{8, theirs}, std::vector<int64_t>{2}), 8) << seed;
    });
    expect_clean(c, {0, 1, 2});
  }
}

TEST(RRefLives, a_call_to_a_life_that_nobody_is_told_of_ends_with_its_loss_after_a_lease) {
  Cluster c(short_lease(2));
  const Life stranger{WorkerId{1}, Incarnation{999}};
  EXPECT_FALSE(c.agent(0)->is_lost(stranger));
  const TimePoint start = c.runtime().now();
  const auto answer = c.agent(0)->call(stranger, Kind::kUser, {}, {.timeout = 0s});
  EXPECT_THROW(answer.wait(), PeerLost);
  EXPECT_LE(c.runtime().now() - start, 2s);
  EXPECT_TRUE(c.agent(0)->is_lost(stranger));
  EXPECT_FALSE(c.agent(0)->is_lost(WorkerId{1}));
  EXPECT_TRUE(c.agent(0)->is_lost({WorkerId{0}, Incarnation{999}}));  // it is worker 0 itself
  c.run(0, [] { EXPECT_EQ(remote<Cell>("worker1", 1).rpc_sync<&Cell::get>(), 1); });
}

/// Refuses every call.
struct Refusing final : Interceptor {
  void request_sending(Agent&, Life, Kind, const char*, Message&) override { throw ValueError("refused"); }
};

TEST(RRefLives, a_call_that_was_refused_leaves_no_life_that_nobody_is_told_of) {
  Cluster c(short_lease(2));
  c.agent(0)->add_interceptor(std::make_shared<Refusing>());
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_THROW(c.agent(0)->call({WorkerId{1}, {999 + i}}, Kind::kUser, {}), ValueError);
  EXPECT_EQ(c.agent(0)->impl().peers.shown().size(), 2U);
}

TEST(RRefLives, a_successor_that_a_worker_is_told_of_after_a_lease_serves_it_from_then_on) {
  Cluster c(short_lease(3));
  c.run(0, [] { EXPECT_EQ(remote<Cell>("worker2", 1).rpc_sync<&Cell::get>(), 1); });
  c.restart(0, false, 100000s);
  c.agent(1)->add_members({c.agent(0)->as_member()});
  c.run(0, [&] {
    const auto mine = make_rref<Cell>(7);
    const Known known{7, mine};
    EXPECT_THROW(rpc_sync<pass_cell>("worker1", known, std::vector<int64_t>{2}), OwnerLost);
    EXPECT_TRUE(c.agent(2)->is_lost(c.agent(0)->life()));
    c.agent(2)->add_members({c.agent(0)->as_member()});
    EXPECT_FALSE(c.agent(2)->is_lost(c.agent(0)->life()));
    EXPECT_EQ(rpc_sync<pass_cell>("worker1", known, std::vector<int64_t>{2}), 7);
    EXPECT_EQ(remote<Cell>("worker2", 8).rpc_sync<&Cell::get>(), 8);
  });
  expect_clean(c, {0, 1, 2});
}

// A worker that starts while another one is dead hears from the successor before it is told of that.
TEST(RRefLives, a_worker_drops_the_references_of_a_successor_that_it_is_not_told_of) {
  Cluster c(short_lease(2));
  c.kill(0);
  c.restart(1);
  c.restart(0, false, 100000s);
  c.run(0, [&] {
    const auto there = remote<Cell>("worker1", 5);
    EXPECT_EQ(there.rpc_sync<&Cell::get>(), 5);
    EXPECT_EQ(c.agent(1)->debug_info().at("num_forks"), 1);
  });
  expect_clean(c, {0, 1});
}

TEST(RRefLives, a_call_to_a_life_goes_to_no_other_one) {
  Cluster c(short_lease(2));
  c.run(0, [&] {
    const auto there = remote<Cell>("worker1", 5);
    there.created().wait();
    const Life old = there.owner_life();
    EXPECT_EQ(old, c.agent(1)->life());
    EXPECT_EQ(rpc_sync<make_slowly>(To(old), 0), 0);
    EXPECT_EQ((remote<make_slowly>({old, 5s}, 0).to_here()), 0);
    EXPECT_EQ(make_rref<Cell>(1).owner_life().id, WorkerId{0});
    c.kill(1);
    c.restart(1);
    const auto arrivals = count_arrivals(c, 1);
    EXPECT_THROW(rpc_sync<make_slowly>(To(old), 0), PeerLost);
    EXPECT_THROW(remote<make_slowly>(old, 0).to_here(), OwnerLost);
    EXPECT_EQ(arrivals->of, (std::array<int, 256>{}));
    EXPECT_EQ(rpc_sync<make_slowly>(To(c.agent(1)->life()), 0), 0);
    EXPECT_EQ(rpc_sync<make_slowly>("worker1", 0), 0);
  });
  expect_clean(c, {0, 1});
}

TEST(RRefLives, a_reference_of_the_old_life_does_not_keep_a_lease_on_the_new_one) {
  Cluster c(short_lease(2));
  c.run(0, [&] {
    const auto old = remote<Cell>("worker1", 1);
    old.created().wait();
    c.kill(1);
    c.restart(1);
    EXPECT_EQ(remote<Cell>("worker1", 3).rpc_sync<&Cell::get>(), 3);
    c.runtime().sleep_for(5s);
    // A quiet life without a watch is not asked.
    const auto statuses = c.agent(0)->debug_info().at("agent.statuses");
    c.runtime().sleep_for(20s);
    EXPECT_EQ(c.agent(0)->debug_info().at("agent.statuses"), statuses);
    EXPECT_THROW(old.rpc_sync<&Cell::get>(), OwnerLost);
  });
  expect_clean(c, {0, 1});
}

TEST(RRefLives, the_end_of_an_old_reference_does_not_end_the_watch_of_the_new_life) {
  Cluster c(short_lease(2));
  c.run(0, [&] {
    auto old = remote<Cell>("worker1", 1);
    old.created().wait();
    c.kill(1);
    c.restart(1);
    const auto fresh = remote<Cell>("worker1", 3);
    fresh.created().wait();
    old = {};
    c.runtime().sleep_for(5s);
    c.kill(1);
    c.runtime().sleep_for(5s);
    const auto begin = c.runtime().now();
    EXPECT_THROW(fresh.rpc_sync<&Cell::get>(), OwnerLost);
    EXPECT_EQ(c.runtime().now(), begin);
  });
  expect_clean(c, {0});
}

TEST(RRefLives, a_first_use_after_the_successor_has_joined_is_owner_lost_and_sends_it_nothing) {
  Cluster c(short_lease(3));
  c.run(0, [&] {
    const auto there = remote<Cell>("worker1", 5);
    const auto number = remote<make_slowly>("worker1", 0);
    rpc_sync<keep_cell>("worker2", Known{5, there});
    number.created().wait();
    c.kill(1);
    c.restart(1);
    const auto arrivals = count_arrivals(c, 1);
    const auto fetch = number.to_here_async();  // before the news of the loss runs
    const auto method = there.rpc_async<&Cell::get>();
    const auto chained = there.remote<&Cell::get>();
    const auto passed = rpc_async<read_cell>("worker2", there);
    const auto home = rpc_async<read_cell>("worker1", there);  // to the successor itself
    EXPECT_THROW(fetch.wait(), OwnerLost);
    EXPECT_THROW(method.wait(), OwnerLost);
    EXPECT_THROW(chained.created().wait(), OwnerLost);
    EXPECT_THROW(passed.wait(), OwnerLost);
    EXPECT_THROW(home.wait(), OwnerLost);
    EXPECT_THROW(there.rpc_sync<&Cell::get>(), OwnerLost);  // and after it
    c.run(2, [&] { EXPECT_THROW(bag(2).at(0).cell.rpc_sync<&Cell::get>(), OwnerLost); });
    for (const Kind kind : {Kind::kFetch, Kind::kMethod, Kind::kRemote, Kind::kFork, Kind::kDelete})
      EXPECT_EQ(arrivals->count(kind), 0) << to_string(kind);
  });
  expect_clean(c, {0, 1, 2});
}

// A worker that joins late has never met the old life of the owner.
TEST(RRefLives, a_reference_to_an_old_life_is_owner_lost_on_a_worker_that_never_met_it) {
  Cluster c(short_lease(3));
  c.run(0, [&] {
    const auto there = remote<Cell>("worker1", 5);
    there.created().wait();
    c.kill(1);
    c.kill(2);
    c.restart(1);
    const auto arrivals = count_arrivals(c, 1);
    c.restart(2);
    EXPECT_THROW(rpc_sync<read_cell>("worker2", there), OwnerLost);
    EXPECT_EQ(arrivals->count(Kind::kFork), 0);
  });
  expect_clean(c, {0, 1, 2});
}

TEST(RRefLives, a_request_that_was_begun_for_the_old_life_is_not_sent_to_the_new_one) {
  Cluster c(short_lease(2));
  c.run(0, [&] {
    const auto number = remote<make_slowly>("worker1", 0);
    number.created().wait();
    rpc::detail::Use use(number.state_ptr(), Kind::kFetch, nullptr);
    rpc::detail::Creation creation("worker1", function_entry<make_slowly>(), {"a test", nullptr, 0});
    creation.out().put(int64_t{0});
    c.kill(1);
    c.restart(1);
    const auto arrivals = count_arrivals(c, 1);
    EXPECT_THROW(rpc::detail::send_use<int64_t>(use, {}).wait(), OwnerLost);
    EXPECT_THROW(RRef<int64_t>(creation.start()).created().wait(), OwnerLost);
    EXPECT_EQ(arrivals->of, (std::array<int, 256>{}));
  });
  expect_clean(c, {0, 1});
}

TEST(RRefLives, over_grpc_references_of_the_new_life_work_and_those_of_the_old_one_are_owner_lost) {
  Cluster c({.over = Over::kGrpc, .size = 3});
  c.run(0, [&] {
    const auto old = remote<Cell>("worker1", 1);
    const auto mine = make_rref<Cell>(2);
    rpc_sync<keep_cell>("worker1", Known{2, mine});
    rpc_sync<keep_cell>("worker2", Known{1, old});
    c.kill(1);
    bag(1).clear();
    c.restart(1);
    const auto fresh = remote<Cell>("worker1", 3);
    rpc_sync<keep_cell>("worker1", Known{2, mine});
    EXPECT_EQ(fresh.rpc_sync<&Cell::get>(), 3);
    EXPECT_EQ(rpc_sync<read_cell>("worker2", fresh), 3);
    EXPECT_THROW(old.rpc_sync<&Cell::get>(), OwnerLost);
    c.run(2, [&] { EXPECT_THROW(bag(2).at(0).cell.rpc_sync<&Cell::get>(), OwnerLost); });
    EXPECT_TRUE(eventually(c, [&] { return c.agent(0)->debug_info().at("num_forks") == 1; }));
  });
  clear_bags();
  expect_clean(c, {0, 1, 2});
}

// The value is never made: its creator died before its CREATE arrived, and its successor is not its creator.
TEST(RRefLives, a_value_whose_creator_died_before_making_it_is_an_error_although_a_successor_lives) {
  Cluster c(short_lease(3));
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kRemote), .from = WorkerId{0}, .to = WorkerId{1}});
  c.run(0, [&] {
    const auto never = remote<Cell>("worker1", 5);
    rpc_sync<keep_cell>("worker2", Known{5, never});
  });
  c.kill(0);
  c.restart(0);
  c.run(2, [&] { EXPECT_THROW(bag(2).at(0).cell.rpc_sync<&Cell::get>(), RpcError); });
  expect_clean(c, {0, 1, 2});
}

}  // namespace
