// Attention kernels of the CUDA backend against those of the CPU. The tests cover the kept numbers and
// results in memory off the borders of packs. They cover half types on a device without tensor cores too.
#include <gtest/gtest.h>

#include "simt/compare.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

/// A call with its memory. Numbers of half types have those of the same call in float32, which the CPU
/// computes.
struct Call {
  Operand q, k, v, mask, y, stats, dy, dq, dk, dv;
  bool causal;

  Call(DType t, int64_t rows, int64_t keys, int64_t width, int64_t values, bool causal_, int64_t offset = 0)
      : q(t, {2, 2, rows, width}, {}, offset),
        k(t, {2, 2, keys, width}, {}, offset),
        v(t, {2, 2, keys, values}, {}, offset),
        mask(accumulate_type(t), {2, 2, rows, keys}, {keys, 0, 0, 1}),
        y(t, {2, 2, rows, values}, {}, offset),
        stats(accumulate_type(t), {2, 2, rows, 2}),
        dy(t, {2, 2, rows, values}, {}, offset),
        dq(t, {2, 2, rows, width}, {}, offset),
        dk(t, {2, 2, keys, width}, {}, offset),
        dv(t, {2, 2, keys, values}, {}, offset),
        causal(causal_) {
    std::mt19937 engine(1);  // quarters: exact in every type
    for (Operand* const x : {&q, &k, &v, &dy, &mask})
      x->each([&](size_t, double) { return static_cast<double>(engine() % 13) / 4 - 1.5; });
  }
  AttentionViews views(View (Operand::*of)() const) const {
    AttentionViews a;
    a.q = (q.*of)(), a.k = (k.*of)(), a.v = (v.*of)(), a.mask = (mask.*of)();
    a.scale = 0.5, a.causal = causal;
    a.y = (y.*of)(), a.stats = (stats.*of)(), a.dy = (dy.*of)();
    a.dq = (dq.*of)(), a.dk = (dk.*of)(), a.dv = (dv.*of)();
    return a;
  }
  void run(Backend& backend, View (Operand::*of)() const) const {
    Context c;
    backend.attention(c, views(of));
    backend.attention_backward(c, views(of));
  }
};

TEST(SimtAttentionKernels, give_the_results_of_the_cpu) {
  each_device([](CudaBackend& gpu) {
    for (const DType t : {kFloat32, kFloat64})
      for (const bool causal : {false, true})
        for (const int64_t offset : {0, 1}) {
          const Call call(t, 70, 67, 12, 9, causal, offset);
          call.run(backend(kCpu), &Operand::host);
          call.run(gpu, &Operand::on_device);
          const double close = t == kFloat32 ? 1e-5 : 1e-13;
          const std::string where = str(t, " causal ", causal, " offset ", offset);
          expect_same(call.y, close, where);
          expect_same(call.stats, close, where + " stats");
          expect_same(call.dq, 8 * close, where + " dq");
          expect_same(call.dk, 8 * close, where + " dk");
          expect_same(call.dv, 8 * close, where + " dv");
        }
  });
}

// The results of a call in a half type, as numbers.
std::vector<double> half_results(CudaBackend& gpu, const Call& call) {
  call.run(gpu, &Operand::on_device);
  std::vector<double> all;
  for (const Operand* const x : {&call.y, &call.dq, &call.dk, &call.dv})
    for (const double n : x->device_values()) all.push_back(n);
  return all;
}

TEST(SimtAttentionKernels, of_half_types_agree_on_devices_with_and_without_tensor_cores) {
  for (const DType t : {kFloat16, kBFloat16})
    for (const int64_t width : {24, 13, 80}) {
      const Call wide(kFloat32, 70, 67, width, 9, true), call(t, 70, 67, width, 9, true);
      wide.run(simt::device_of(4), &Operand::on_device);
      std::vector<double> expected;
      for (const Operand* const x : {&wide.y, &wide.dq, &wide.dk, &wide.dv})
        for (const double n : x->device_values()) expected.push_back(n);
      for (const int major : {7, 9}) {
        simt::settings().major = major;
        CudaBackend& gpu = simt::device_of(4);
        EXPECT_EQ(gpu.multiplies_halves(), major >= 8);
        EXPECT_TRUE(gpu.has_attention(t, width, 9));
        const std::vector<double> got = half_results(gpu, call);
        simt::settings() = {};
        const double close = t == kFloat16 ? 4e-3 : 3e-2;
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], close * (1 + std::abs(expected[i])))
              << t << ", width " << width << ", capability " << major << ", number " << i;
      }
    }
}

TEST(SimtAttentionKernels, are_for_heads_that_the_devices_shared_memory_holds) {
  CudaBackend& gpu = simt::device_of(4);
  for (const DType t : {kFloat16, kBFloat16, kFloat32}) {
    EXPECT_TRUE(gpu.has_attention(t, 128, 128));
    EXPECT_FALSE(gpu.has_attention(t, 129, 8));
    EXPECT_FALSE(gpu.has_attention(t, 8, 129));
  }
  EXPECT_TRUE(gpu.has_attention(kFloat64, 64, 64));
  EXPECT_FALSE(gpu.has_attention(kFloat64, 65, 8));
  simt::settings().shared_memory = size_t{99} << 10;
  EXPECT_TRUE(simt::device_of(4).has_attention(kFloat32, 128, 128));
  EXPECT_TRUE(simt::device_of(4).has_attention(kBFloat16, 128, 128));
  simt::settings().shared_memory = size_t{64} << 10;
  for (const DType t : {kBFloat16, kFloat32, kFloat64})
    EXPECT_TRUE(simt::device_of(4).has_attention(t, 64, 64)) << t;
  EXPECT_FALSE(simt::device_of(4).has_attention(kFloat32, 65, 64));
  simt::settings() = {};
}

}  // namespace
}  // namespace weft::cuda
