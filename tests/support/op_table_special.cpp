// The checks of op_table_special.h: special values, and numbers outside of a dtype.
#include "support/op_table_special.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/op_table_checks.h"

namespace weft::op_table {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

/// The row's inputs with some elements replaced by each of `values` in turn; `seed` chooses the positions.
Tensors with_values(const Row& row, DType dtype, const std::vector<double>& values, uint64_t seed,
                    Device device) {
  Tensors inputs = make_inputs(row, dtype, Layout::kContiguous, device);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (row.args[i].kind != Arg::Kind::kReal || !is_floating(inputs[i].dtype())) continue;
    Host h = to_host(inputs[i]);
    for (double& x : h.v) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      if ((seed >> 33) % 3 == 0) x = values[next++ % values.size()];
    }
    inputs[i] = from_vector(h.v, h.sizes).to(inputs[i].dtype()).to(device);
  }
  return inputs;
}

std::vector<Scalar> edge_numbers() {
  constexpr auto most = std::numeric_limits<int64_t>::max();
  return {0,
          1,
          -1,
          0.5,
          300,
          70000,
          16777217,
          2147483647,
          2147483648,
          -2147483649,
          most,
          -most - 1,
          std::numeric_limits<uint64_t>::max(),
          0x1p63,
          -0x1p63,
          1e30,
          -1e30,
          1e39,
          1e300,
          kNan,
          kInf,
          -kInf};
}

DType holder(Number::Meets meets, DType t, Scalar s) {
  if (meets == Number::Meets::kElement) return t;
  const bool real = meets == Number::Meets::kReal || (meets == Number::Meets::kPower && !s.integral);
  if (real && !is_floating(t)) return kFloat32;
  return is_half(t) ? kFloat32 : t;
}

/// Elements at the limits of a dtype, and where rounding could move one across a number.
std::vector<Scalar> edge_elements(DType t) {
  constexpr auto most = std::numeric_limits<int64_t>::max();
  if (is_floating(t)) return {0, -1, 0.5, 0.1, 300, kInf, -kInf, kNan};
  if (t == kUInt8) return {0, 1, 255};
  if (t == kInt32) return {0, -1, 2147483647, -2147483648, 16777217};
  return {0, -1, most, -most - 1, most - 1, 16777217, 2147483648, 9007199254740993};
}

void comparisons(const Row& row, const Number& number, Device device) {
  for (const DType t : {kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64})
    for (const Scalar& e : edge_elements(t))
      for (const Scalar& s : edge_numbers()) {
        const Scalar x = is_floating(t) ? full({}, e, {.dtype = t}).item_scalar() : e,
                     met = is_floating(t) && s.fits(t) ? full({}, s, {.dtype = t}).item_scalar() : s;
        const auto exact = [](const Scalar& v) {
          return v.integral ? static_cast<long double>(v.i) : static_cast<long double>(v.d);
        };
        EXPECT_EQ(number.call(full({2}, e, {.dtype = t, .device = device}), s)[1].item<bool>(),
                  number.compares(exact(x), exact(met)))
            << row.name << ": " << str(t, " ", x, " and ", s);
      }
}

}  // namespace

bool has_real(const Row& row) {
  for (const Arg& arg : row.args)
    if (arg.kind == Arg::Kind::kReal && arg.sizes.numel() > 0) return true;
  return false;
}

void special_values(const Row& row, Device device) {
  struct Mix {
    const char* name;
    std::vector<double> values;
  };
  const Mix mixes[] = {{"NaN", {kNan}},
                       {"infinity", {kInf}},
                       {"-infinity", {-kInf}},
                       {"zeros", {-0.0, 0.0}},
                       {"infinities and NaN", {kInf, kNan, -kInf}},
                       {"all", {kInf, -0.0, kNan, 1, -kInf, 0, -1}}};
  for (const DType t : row.dtypes) {
    if (!is_floating(t)) continue;
    uint64_t seed = 1;
    for (const Mix& mix : mixes)
      expect_reference(row, with_values(row, t, mix.values, seed++, device), t,
                       row.name + " of " + to_string(t) + " with " + mix.name);
  }
}

void numbers_beyond_the_type(const Row& row, Device device) {
  for (const Number& number : row.takes) {
    if (number.compares) {
      comparisons(row, number, device);
      continue;
    }
    for (const DType t : number.dtypes)
      for (const Scalar& s : edge_numbers()) {
        const std::string where = row.name + str(" of ", t, " and ", s);
        const bool fits = s.fits(holder(number.meets, t, s));
        try {
          number.call(ones({2, 2}, {.dtype = t, .device = device}), s);
          EXPECT_TRUE(fits) << where << ": taken";
        } catch (const DTypeError& e) {
          EXPECT_FALSE(fits) << where << ": " << e.what();
          const std::string text = e.what(), op = text.substr(0, text.find(": "));
          EXPECT_TRUE(row.name.starts_with(op) || row.name.substr(1).starts_with(op))
              << where << ": " << text;
          EXPECT_NE(text.find(str("the number ", s, " does not fit")), std::string::npos)
              << where << ": " << text;
        } catch (const Error& e) {
          ADD_FAILURE() << where << ": " << e.what();
        }
      }
  }
}

}  // namespace weft::op_table
