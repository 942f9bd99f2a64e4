// Calls that need more threads than there are: they fail at once, since no thread would ever come.
#include <gtest/gtest.h>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

int64_t nest(int64_t depth);
WEFT_RPC(nest);
int64_t nest(int64_t depth) {  // blocks a thread of each of two workers in turn
  return depth == 0 ? 0 : 1 + rpc_sync<nest>(1 - current_agent()->self().id.value, depth - 1);
}

TEST(Threads, calls_nested_deeper_than_the_limit_fail_with_overloaded_and_the_workers_go_on) {
  Cluster c({.over = test::Over::kGrpc, .size = 2, .threads = 2, .max_threads = 4});
  c.run(0, [&] {
    for (int round = 0; round < 3; ++round) {
      try {
        rpc_sync<nest>({"worker1", 5s}, 40);
        ADD_FAILURE() << "no error";
      } catch (const Overloaded& e) {
        const std::string text = e.what();
        EXPECT_NE(text.find("' cannot start another thread: "), std::string::npos) << text;
        EXPECT_NE(text.find(" run, all blocked; max_threads is 4"), std::string::npos) << text;
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
      EXPECT_EQ(rpc_sync<nest>("worker1", 3), 3);
    }
  });
  c.shutdown();
}

}  // namespace
