// compile() beside calls of other workers. A call inside f is made at each call of f. A recording sees
// nothing of other fibers or of deliveries on its thread.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/compile.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;
using test::has;

int g_told = 0;

int tell(int n) { return ++g_told, n; }
WEFT_RPC(tell);

Tensor doubled(const Tensor& x) { return x * 2; }
WEFT_RPC(doubled);

double number(const Tensor& x) { return x.item<double>(); }

TEST(CompileRpc, a_call_inside_f_is_made_each_time) {
  Cluster c({.size = 2});
  c.run(0, [] {
    g_told = 0;
    auto f = compile([](const Tensor& x) { return rpc_sync<tell>("worker1", 1), x + 1; });
    for (int i = 0; i < 6; ++i) EXPECT_EQ(number(f(full({}, i))), i + 1);
    EXPECT_EQ(g_told, 6);
    EXPECT_TRUE(has(f.reason(), "calls another worker"));
    auto g = compile([](const Tensor& x) { return rpc_sync<doubled>("worker1", x) + 1; });
    for (int i = 0; i < 6; ++i) EXPECT_EQ(number(g(full({}, i))), 2 * i + 1);
    EXPECT_EQ(g.stats().replays, 0);
    auto own = compile([](const Tensor& x) { return rpc_sync<doubled>("worker0", x) + 1; });
    for (int i = 0; i < 6; ++i) EXPECT_EQ(number(own(full({}, i))), 2 * i + 1);
    EXPECT_EQ(own.stats().replays, 0);
  });
}

TEST(CompileRpc, a_wait_inside_f_is_made_each_time) {
  Cluster c({.size = 1});
  c.run(0, [] {
    auto f = compile([](const Tensor& x) { return current_runtime()->sleep_for(1s), x + 1; });
    const TimePoint start = current_runtime()->now();
    for (int i = 0; i < 6; ++i) EXPECT_EQ(number(f(full({}, i))), i + 1);
    EXPECT_EQ(current_runtime()->now() - start, 6s);
    EXPECT_TRUE(has(f.reason(), "waits for"));
  });
}

TEST(CompileRpc, a_recording_follows_its_fiber) {
  Cluster c({.size = 2});
  c.run_all([&](int rank) {
    const auto runtime = current_runtime();
    if (rank == 0) {
      auto f = compile([&](const Tensor& x) { return runtime->sleep_for(10s), x + 1; });
      EXPECT_EQ(number(f(full({}, 1))), 2);
      EXPECT_EQ(f.stats().recordings, 1);
      return;
    }
    runtime->sleep_for(1s);  // the recording is under way
    auto g = compile([](const Tensor& x) { return x * 3; });
    for (int i = 0; i < 4; ++i) EXPECT_EQ(number(g(full({}, i))), 3 * i);
    EXPECT_EQ(g.stats().replays, 2);
    EXPECT_EQ(g.reason(), "");
  });
}

}  // namespace
