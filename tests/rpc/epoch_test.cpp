// Each message of an elastic group carries its sender's epoch, and a member that hears of a later one reads
// the list of members at once.
#include <gtest/gtest.h>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/rpc/rpc.h>

#include "support/around_store.h"
#include "support/cluster.h"
#include "support/elastic.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::ElasticGroup;

uint64_t epoch_of_caller() { return call_context().caller_epoch; }
WEFT_RPC(epoch_of_caller);
int64_t epoch_twice(int64_t n) { return 2 * n; }
WEFT_RPC(epoch_twice);

/// A store whose watch tells of no change of the list, or tells it late.
class SlowWatch final : public test::AroundStore {
 public:
  SlowWatch(std::shared_ptr<Store> client, Runtime& runtime, std::optional<Duration> late)
      : AroundStore(std::move(client)), runtime_(runtime), late_(late) {}
  Text watch(const std::string& key, const Text& known, TimePoint until) override {
    if (key != inner::kMembersKey) return AroundStore::watch(key, known, until);
    if (late_) {
      Text text = AroundStore::watch(key, known, until);
      runtime_.sleep_for(*late_);
      return text;
    }
    runtime_.sleep_for(until - runtime_.now());
    throw Timeout("no change");
  }

 private:
  Runtime& runtime_;
  const std::optional<Duration> late_;
};

/// A group of "a", "b" and "c", in which the watch of "c" is slow.
struct SlowTrio {
  explicit SlowTrio(std::optional<Duration> late = std::nullopt, uint64_t seed = 1)
      : group({.seed = seed,
               .around =
                   [this, late](const std::string& name, std::shared_ptr<Store> client) {
                     if (name != "c") return client;
                     return std::shared_ptr<Store>(
                         std::make_shared<SlowWatch>(std::move(client), group.sim(), late));
                   }}),
        a(group.join("a")),
        b(group.join("b")),
        c(group.join("c")) {
    a.membership->wait_for({"b", "c"}, group.sim().now() + 5s);
    b.membership->wait_for({"c"}, group.sim().now() + 5s);
  }
  /// "d" joins, and "a" and "b" know it.
  ElasticGroup::Worker& join_d() {
    auto& d = group.join("d");
    a.membership->wait_for({"d"}, group.sim().now() + 5s);
    b.membership->wait_for({"d"}, group.sim().now() + 5s);
    return d;
  }
  ElasticGroup group;
  ElasticGroup::Worker &a, &b, &c;
};

TEST(Epoch, a_handler_sees_the_epoch_of_its_caller) {
  ElasticGroup g;
  auto& a = g.join("a");
  auto& b = g.join("b");
  a.membership->wait_for({"b"}, g.sim().now() + 5s);
  g.run(a, [] {
    EXPECT_EQ(rpc_sync<epoch_of_caller>("b"), 2u);
    EXPECT_EQ(epoch(), 2u);
  });
  g.join("c");
  a.membership->wait_for({"c"}, g.sim().now() + 5s);
  g.run(a, [] { EXPECT_EQ(rpc_sync<epoch_of_caller>("b"), 3u); });
  b.membership->wait_for({"c"}, g.sim().now() + 5s);
  g.run(b, [] { EXPECT_EQ(rpc_sync<epoch_of_caller>("b"), 3u); });
}

TEST(Epoch, a_static_group_has_none) {
  test::Cluster c({.size = 2});
  c.run(0, [] { EXPECT_EQ(rpc_sync<epoch_of_caller>("worker1"), 0u); });
}

TEST(Epoch, a_request_tells_its_callee_of_a_change) {
  SlowTrio g;
  g.join_d();
  ASSERT_EQ(g.c.membership->epoch(), 3u);
  g.group.run(g.a, [] { EXPECT_EQ(rpc_sync<epoch_twice>("c", 4), 8); });
  g.c.membership->wait_for({"d"}, g.group.sim().now() + 1s);
  EXPECT_EQ(g.c.membership->epoch(), 4u);
  g.group.run(g.c, [] { EXPECT_EQ(rpc_sync<epoch_twice>("d", 5), 10); });
}

TEST(Epoch, a_reply_tells_its_caller_of_a_change) {
  SlowTrio g;
  g.join_d();
  g.group.run(g.c, [] { EXPECT_EQ(rpc_sync<epoch_twice>("b", 4), 8); });
  g.c.membership->wait_for({"d"}, g.group.sim().now() + 1s);
  EXPECT_EQ(g.c.membership->epoch(), 4u);
}

TEST(Epoch, a_quiet_member_hears_of_a_change_by_the_statuses_of_its_lease) {
  SlowTrio g;
  g.join_d();
  ASSERT_EQ(g.c.membership->epoch(), 3u);
  g.c.membership->wait_for({"d"}, g.group.sim().now() + 5s);  // half of the lease
  EXPECT_EQ(g.c.membership->epoch(), 4u);
}

TEST(Epoch, an_older_list_that_arrives_after_a_newer_one_is_left) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SlowTrio g(300ms, seed);
    auto& d = g.join_d();  // the watch of "c" has it, and tells it later
    d.membership->leave(g.group.sim().now() + 5s);
    while (g.a.membership->epoch() < 5) g.group.sim().sleep_for(1ms);
    g.group.run(g.a, [] { EXPECT_EQ(rpc_sync<epoch_twice>("c", 4), 8); });
    for (int ms = 0; ms < 3000; ++ms) {
      g.group.sim().sleep_for(1ms);
      if (ms < 100) continue;
      EXPECT_EQ(g.c.membership->epoch(), 5u) << "seed " << seed;
    }
    g.group.run(g.a, [] { EXPECT_EQ(rpc_sync<epoch_twice>("c", 4), 8); });
    g.group.run(g.c, [] { EXPECT_EQ(rpc_sync<epoch_twice>("b", 4), 8); });
  }
}

}  // namespace
