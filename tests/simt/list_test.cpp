// Sums of powers, scaling, unscaling and clipping of the CUDA backend against the CPU's, over lists of
// tensors of odd sizes and of every floating type.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "simt/compare.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

/// Tensors of every floating type, among them an empty one and one of several chunks.
struct Mixed {
  std::vector<std::unique_ptr<Operand>> memory;
  std::vector<View> host, on_device;
  Mixed() {
    const DType types[] = {kFloat32, kFloat64, kFloat16, kBFloat16, kFloat32, kFloat32};
    const int64_t sizes[] = {33, 257, 130, 5, 0, 40003};
    for (size_t i = 0; i < std::size(types); ++i) {
      memory.push_back(std::make_unique<Operand>(types[i], Shape{sizes[i]}, Shape{1}, i % 2));
      memory.back()->random(-1, 1, static_cast<uint32_t>(i));
      host.push_back(memory.back()->host()), on_device.push_back(memory.back()->on_device());
    }
  }
  void expect_same_as_cpu(const std::string& where) const {
    for (const auto& m : memory)
      expect_same(*m, m->host().dtype == kBFloat16 ? 8e-3 : m->host().dtype == kFloat16 ? 1e-3 : 1e-6, where);
  }
};

TEST(SimtList, powers_agree_with_the_cpu) {
  const Mixed list;
  for (const double p : {2.0, 1.0, 0.0, 3.0, 0.5, kInf}) {
    std::vector<double> expected(list.host.size(), -1), got = expected;
    Context c;
    backend(kCpu).powers(c, p, list.host, expected.data());
    device().powers(c, p, list.on_device, got.data());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 1e-12 * (1 + expected[i])) << "p " << p << " tensor " << i;
    double alone = -1;  // a tensor's sum does not depend on its company
    device().powers(c, p, {&list.on_device.back(), 1}, &alone);
    EXPECT_EQ(alone, got.back());
  }
}

TEST(SimtList, scaling_takes_one_launch) {
  const Mixed list;
  Context c;
  backend(kCpu).scale(c, 0.3, list.host);
  const int64_t before = simt::launches();
  device().scale(c, 0.3, list.on_device);
  EXPECT_EQ(simt::launches() - before, 1);
  list.expect_same_as_cpu("scale");
  device().scale(c, 0.3, {});
}

TEST(SimtList, unscaling_agrees_with_the_cpu_and_marks_what_is_not_finite) {
  Operand state(kFloat64, {4});
  state.set({1024, 1.0 / 1024, 0, 5});
  Context c;
  const Mixed list;
  backend(kCpu).unscale(c, list.host, state.host());
  const int64_t before = simt::launches();
  device().unscale(c, list.on_device, state.on_device());
  EXPECT_EQ(simt::launches() - before, 1);
  list.expect_same_as_cpu("unscale");
  expect_same(state, 0, "all is finite");
  device().unscale(c, {}, state.on_device());
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const double bad : {kInf, -kInf, std::numeric_limits<double>::quiet_NaN(), 65504.0})
      for (const size_t at : {0, 1, 20, 32}) {
        double values[34];
        std::fill(std::begin(values), std::end(values), 1);
        values[at + 1] = bad;
        Operand x(dtype, {33}, {1}, 1);
        x.set(values);
        state.set({0.5, 2, 0, 5});  // doubles 65504, which float16 has no room for
        const View host[] = {x.host()}, there[] = {x.on_device()};
        backend(kCpu).unscale(c, host, state.host());
        device().unscale(c, there, state.on_device());
        EXPECT_EQ(state.device_values()[2], bad == 65504 && dtype != kFloat16 ? 0 : 1)
            << str(dtype, " ", bad, " at ", at);
        expect_same(state, 0, str(dtype, " ", bad));
      }
}

TEST(SimtList, the_scale_follows_as_on_the_cpu) {
  Operand state(kFloat64, {4});
  state.set({1e38, 1e-38, 0, 0});
  Context c;
  for (const double nonfinite : {0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0}) {
    for (const bool there : {false, true}) {
      Backend& b = there ? static_cast<Backend&>(device()) : backend(kCpu);
      const View all = there ? state.on_device() : state.host();
      View mark = all;
      mark.data = static_cast<double*>(all.data) + 2, mark.sizes = {}, mark.strides = {};
      b.fill(c, nonfinite, mark);
      b.update_scale(c, 2, 0.25, 2, all);
    }
    expect_same(state, 0, "update");
  }
  EXPECT_LE(state.device_values()[0], 3.5e38) << "no scale beyond float32";
  EXPECT_EQ(state.device_values()[2], 0);
}

TEST(SimtList, clipping_agrees_with_the_cpu) {
  for (const double p : {2.0, 1.0, 3.0, kInf})
    for (const double most : {0.25, 1e6}) {
      const Mixed list;
      Operand norm(kFloat64, {});
      Context c;
      backend(kCpu).clip_norm(c, most, p, list.host, norm.host());
      device().clip_norm(c, most, p, list.on_device, norm.on_device(), View());
      expect_same(norm, 1e-12, str("norm ", p));
      list.expect_same_as_cpu(str("clip to ", most, " by norm ", p));
    }
  Operand x(kFloat32, {3}), norm(kFloat64, {});
  x.set({1, std::numeric_limits<double>::quiet_NaN(), 2});
  const View xs[] = {x.on_device()};
  Context c;
  for (const double p : {2.0, kInf}) {
    device().clip_norm(c, 1, p, xs, norm.on_device(), View());
    EXPECT_TRUE(std::isnan(norm.device_values()[0]));
    EXPECT_EQ(x.device_values()[2], 2) << "a norm that is no number clips nothing";
  }
  device().clip_norm(c, 1, 2, {}, norm.on_device(), View());
  EXPECT_EQ(norm.device_values()[0], 0);
}

TEST(SimtList, a_tensor_of_many_chunks_is_added_by_a_whole_block) {
  const int64_t n = (int64_t{300} << 14) + 5;
  Operand big(kFloat16, {n}), small(kFloat32, {3}), norm(kFloat64, {});
  big.fill(1), small.fill(2);
  const View xs[] = {small.on_device(), big.on_device()};
  Context c;
  double found[2] = {};
  device().powers(c, 2, xs, found);
  EXPECT_EQ(found[0], 12);
  EXPECT_EQ(found[1], static_cast<double>(n));
  device().clip_norm(c, 1e9, 2, xs, norm.on_device(), View());
  EXPECT_EQ(norm.device_values()[0], std::sqrt(12 + static_cast<double>(n)));
}

}  // namespace
}  // namespace weft::cuda
