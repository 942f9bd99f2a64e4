// Products with weights that came from another worker, where there is a lane in shared memory too. They use
// no kept pack (kernels/packs.h) of earlier weights, which may have lain in the same memory.
#include <gtest/gtest.h>

#include <set>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/packs.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using test::Cluster;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryComesBack = false;  // the sanitizer keeps freed memory back
#else
constexpr bool kMemoryComesBack = true;
#endif
constexpr int64_t kRows = 56;  // more rows than any product in place takes

/// The product with a copy of w, which has no pack.
Tensor packed_anew(const Tensor& x, const Tensor& w) { return linear(x, w.clone()); }

/// Whether products with w have the values of w, before and after writes to it.
bool is_seen(const Tensor& x, Tensor w) {
  for (int i = 0; i < 4; ++i)
    if (!linear(x, w).equal(packed_anew(x, w))) return false;
  w.mul_(2);
  if (!linear(x, w).equal(packed_anew(x, w))) return false;
  w.data<float>()[3] += 1;
  return linear(x, w).equal(packed_anew(x, w));
}

std::set<const void*> g_addresses;
/// How many weights lay where an earlier one had lain.
int g_again = 0;

bool received_pack_weight(const Tensor& x, const Tensor& w) {
  const NoGrad quiet;
  g_again += !g_addresses.insert(w.const_raw()).second;
  return is_seen(x, w);
}
WEFT_RPC(received_pack_weight);

/// The same between two products with a weight of this worker that keeps a pack.
bool received_pack_between(const Tensor& x, const Tensor& received, bool as_memory) {
  const NoGrad quiet;
  Tensor own = randn(received.sizes());
  for (int i = 0; i < 3; ++i) linear(x, own);
  const int64_t reused = pack_stats().reused;
  linear(x, own);
  if (pack_stats().reused == reused) return false;  // else the test shows nothing
  if (as_memory) set_data(own, received);
  else own.copy_(received);
  return linear(x, own).equal(packed_anew(x, received)) && is_seen(x, own);
}
WEFT_RPC(received_pack_between);

TEST(ReceivedPacks, products_see_weights_that_came_over_the_lane) {
  const kernels::GemmEngine before = kernels::gemm_engine();
  kernels::set_gemm_engine(kernels::GemmEngine::kTile);  // it can keep packs
  Cluster c({.over = test::Over::kGrpc, .size = 2});
  c.run(0, [&] {
    for (const int64_t out : {72, 3000}) {  // through the socket, and in shared memory
      g_addresses.clear();
      g_again = 0;
      const Tensor x = randn({kRows, 64});
      for (int i = 0; i < 12; ++i)
        EXPECT_TRUE(rpc_sync<received_pack_weight>("worker1", x, randn({out, 64}))) << out << ", " << i;
      if (kMemoryComesBack) {
        EXPECT_GT(g_again, 0) << "no memory was used twice, so the test shows less";
      }
      for (const bool as_memory : {false, true})
        for (int i = 0; i < 3; ++i)
          EXPECT_TRUE(rpc_sync<received_pack_between>("worker1", x, randn({out, 64}), as_memory)) << out;
    }
    EXPECT_EQ(c.agent(0)->debug_info().at("agent.shared_payloads") > 0, has_same_host_lane());
  });
  c.shutdown();
  kernels::set_gemm_engine(before);
}

}  // namespace
