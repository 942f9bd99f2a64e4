// Random kernels of the CUDA backend: the CPU's numbers, bit for bit, for all sizes, layouts and keys.
#include <gtest/gtest.h>

#include "simt/compare.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

constexpr DType kReal[] = {kFloat16, kBFloat16, kFloat32, kFloat64};
constexpr PhiloxKey kKeys[] = {{42, 0}, {0x123456789ABCDEF0u, 0xFFFFFFFEu}, {7, 0xFFFFFFFFFFFFFFF0u}};

struct Place {
  const char* name;
  Shape sizes, strides;
  int64_t offset = 0;
};
const Place kPlaces[] = {
    {"one", {1}, {1}},
    {"three", {3}, {1}},
    {"four", {4}, {1}},
    {"1001", {1001}, {1}},
    {"a matrix", {7, 12}, {12, 1}},
    {"off the boundary of a pack", {7, 12}, {12, 1}, 1},
    {"transposed", {12, 7}, {1, 12}},
    {"every second", {33}, {2}},
    {"rows with gaps", {5, 8}, {12, 1}},
    {"three dims exchanged", {2, 3, 4}, {4, 8, 1}},
    {"a scalar", {}, {}},
    {"more than the grid has threads", {40003}, {1}},
};

std::string text(const char* what, DType t, const Place& p) {
  return std::string(what) + " of " + to_string(t) + ", " + p.name;
}

TEST(SimtRandom, uniform_has_the_numbers_of_the_cpu) {
  for (const PhiloxKey& key : kKeys)
    for (const DType t : kReal)
      for (const Place& p : kPlaces) {
        Operand y(t, p.sizes, p.strides, p.offset);
        Context c;
        backend(kCpu).uniform(c, key, -2, 3, y.host());
        device().uniform(c, key, -2, 3, y.on_device());
        expect_same(y, 0, text("uniform", t, p));
      }
}

TEST(SimtRandom, normal_has_the_numbers_of_the_cpu) {
  for (const PhiloxKey& key : kKeys)
    for (const DType t : kReal)
      for (const Place& p : kPlaces) {
        Operand y(t, p.sizes, p.strides, p.offset);
        Context c;
        backend(kCpu).normal(c, key, 1, 2, y.host());
        device().normal(c, key, 1, 2, y.on_device());
        expect_same(y, t == kFloat64 ? 1e-13 : 0, text("normal", t, p));
      }
}

TEST(SimtRandom, integers_have_the_numbers_of_the_cpu_in_every_type) {
  for (const PhiloxKey& key : kKeys)
    for (const DType t : kAll)
      for (const Place& p : kPlaces) {
        Operand y(t, p.sizes, p.strides, p.offset);
        Context c;
        backend(kCpu).random_int(c, key, 0, 100, y.host());
        device().random_int(c, key, 0, 100, y.on_device());
        expect_same(y, 0, text("random_int", t, p));
      }
  Operand y(kInt64, {999});
  Context c;
  const int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  backend(kCpu).random_int(c, kKeys[1], low, high, y.host());
  device().random_int(c, kKeys[1], low, high, y.on_device());
  expect_same(y, 0, "the whole range");
}

TEST(SimtRandom, bernoulli_has_the_choices_of_the_cpu_for_one_and_for_many_probabilities) {
  for (const DType probability : kReal)
    for (const DType t : kAll)
      for (const Place& p : kPlaces)
        for (const bool one : {true, false}) {
          Operand chance(probability, p.sizes, one ? Shape(p.sizes.size(), 0) : p.strides, p.offset),
              y(t, p.sizes, p.strides, p.offset);
          chance.random(0.2, 0.8, 3);
          Context c;
          backend(kCpu).bernoulli(c, kKeys[0], chance.host(), y.host());
          device().bernoulli(c, kKeys[0], chance.on_device(), y.on_device());
          expect_same(y, 0, text("bernoulli", t, p) + " by " + to_string(probability));
        }
}

TEST(SimtRandom, dropout_has_the_mask_and_the_values_of_the_cpu) {
  for (const DType t : kReal)
    for (const Place& p : kPlaces)
      for (const double drop : {0.0, 0.3, 1.0}) {
        Operand x(t, p.sizes, p.strides, p.offset), dense(t, p.sizes), y(t, p.sizes, p.strides, p.offset);
        x.random(-3, 3, 5), y.random(1, 2, 6);
        Context c;
        backend(kCpu).dropout(c, kKeys[1], drop, x.host(), y.host());
        device().dropout(c, kKeys[1], drop, x.on_device(), y.on_device());
        expect_same(y, 0, text("dropout", t, p));
        backend(kCpu).dropout(c, kKeys[1], drop, x.host(), dense.host());
        device().dropout(c, kKeys[1], drop, x.on_device(), dense.on_device());
        expect_same(dense, 0, text("dropout to a dense output", t, p));
        backend(kCpu).dropout(c, kKeys[1], drop, x.host(), x.host());
        device().dropout(c, kKeys[1], drop, x.on_device(), x.on_device());
        expect_same(x, 0, text("dropout in place", t, p));
      }
}

TEST(SimtRandom, dropout_converts_an_input_of_another_type) {
  for (const DType from : kAll)
    for (const DType to : kReal) {
      Operand x(from, {5, 24}, {0, 1}), y(to, {5, 24});
      x.random(0, 9, 5);
      Context c;
      backend(kCpu).dropout(c, kKeys[2], 0.5, x.host(), y.host());
      device().dropout(c, kKeys[2], 0.5, x.on_device(), y.on_device());
      expect_same(y, 0, std::string(to_string(from)) + " to " + to_string(to));
    }
}

TEST(SimtRandom, floating_draws_refuse_an_integer_tensor) {
  Operand whole(kInt32, {4}), y(kFloat32, {4});
  Context c;
  EXPECT_THROW(device().uniform(c, {}, 0, 1, whole.on_device()), DTypeError);
  EXPECT_THROW(device().normal(c, {}, 0, 1, whole.on_device()), DTypeError);
  EXPECT_THROW(device().bernoulli(c, {}, whole.on_device(), y.on_device()), DTypeError);
  EXPECT_THROW(device().dropout(c, {}, 0.5, y.on_device(), whole.on_device()), DTypeError);
}

TEST(SimtRandom, empty_outputs_launch_nothing) {
  const int64_t before = simt::launches();
  Operand y(kFloat32, {0, 3}), whole(kInt64, {3, 0});
  Context c;
  device().uniform(c, {}, 0, 1, y.on_device());
  device().normal(c, {}, 0, 1, y.on_device());
  device().bernoulli(c, {}, y.on_device(), y.on_device());
  device().random_int(c, {}, 0, 9, whole.on_device());
  device().dropout(c, {}, 0.5, y.on_device(), y.on_device());
  EXPECT_EQ(simt::launches(), before);
}

}  // namespace
}  // namespace weft::cuda
