// A number beside a tensor: which numbers a dtype holds, exact comparisons, and powers and roundings of an
// integer tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>

#include "support/errors.h"
#include "support/leaf.h"

#define EXPECT_ERROR(type, call, part) \
  EXPECT_TRUE(test::has(test::error_of<type>([&] { (void)(call); }), part))

namespace weft {
namespace {

using test::kInf;
using test::kMost;
using test::kNan;

Tensor integers(const std::vector<int64_t>& v, DType t = kInt64) {
  return from_vector(v, {static_cast<int64_t>(v.size())}).to(t);
}
std::vector<bool> truth(const Tensor& x) { return x.to_vector<bool>(); }
using Truth = std::vector<bool>;

TEST(Scalar, a_number_fits_the_types_that_hold_it) {
  EXPECT_TRUE(Scalar(255).fits(kUInt8));
  EXPECT_FALSE(Scalar(256).fits(kUInt8));
  EXPECT_FALSE(Scalar(-1).fits(kUInt8));
  EXPECT_TRUE(Scalar(2.0).fits(kInt32));
  EXPECT_FALSE(Scalar(2.5).fits(kInt32));
  EXPECT_FALSE(Scalar(2147483648.0).fits(kInt32));
  EXPECT_TRUE(Scalar(-0x1p63).fits(kInt64));
  EXPECT_FALSE(Scalar(0x1p63).fits(kInt64));
  EXPECT_FALSE(Scalar(kNan).fits(kInt64));
  EXPECT_FALSE(Scalar(kInf).fits(kInt64));
  EXPECT_TRUE(Scalar(kNan).fits(kFloat16));
  EXPECT_TRUE(Scalar(-kInf).fits(kBFloat16));
  EXPECT_TRUE(Scalar(65504).fits(kFloat16));
  EXPECT_FALSE(Scalar(65505).fits(kFloat16));
  EXPECT_TRUE(Scalar(1e38).fits(kBFloat16));
  EXPECT_FALSE(Scalar(3.4e38).fits(kBFloat16));
  EXPECT_FALSE(Scalar(1e39).fits(kFloat32));
  EXPECT_TRUE(Scalar(kNan).fits(kBool));
}

TEST(Scalar, an_unsigned_number_keeps_its_value) {
  const Scalar large(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(large.to<double>(), 0x1p64);
  EXPECT_FALSE(large.fits(kInt64));
  EXPECT_EQ(full({}, large, {.dtype = kFloat64}).item<double>(), 0x1p64);
  EXPECT_ERROR(DTypeError, full({1}, large, {.dtype = kInt64}),
               "full: the number 1.8446744073709552e+19 does not fit int64");
  EXPECT_EQ(Scalar(uint64_t{1} << 62).to<int64_t>(), int64_t{1} << 62);
  EXPECT_EQ(Scalar(uint64_t{1} << 63).to<uint64_t>(), uint64_t{1} << 63);
}

TEST(Scalar, a_conversion_that_cuts_throws_and_names_the_value) {
  EXPECT_ERROR(DTypeError, Scalar(1e20).to<int32_t>(), "Scalar: the number 1e+20 does not fit int32");
  EXPECT_ERROR(DTypeError, full({}, kNan).item<int64_t>(), "item: the number nan does not fit int64");
  EXPECT_ERROR(DTypeError, full({}, 1e20).item<int32_t>(), "does not fit int32");
  EXPECT_ERROR(DTypeError, full({}, 0.5).item<int>(), "item: the number 0.5 does not fit int32");
  EXPECT_ERROR(DTypeError, full({}, 300).item<uint8_t>(), "does not fit uint8");
  EXPECT_ERROR(DTypeError, full({2}, 1e300, {.dtype = kFloat64}).to_vector<float>(), "to_vector: the number");
  EXPECT_ERROR(DTypeError, full({2}, -1).to_vector<uint8_t>(), "to_vector: the number -1 does not fit uint8");
  EXPECT_EQ(full({}, kNan).item<bool>(), true);
  EXPECT_EQ(full({}, 3).item<int64_t>(), 3);
  EXPECT_TRUE(std::isinf(full({}, kInf).item<float>()));
}

TEST(Scalar, a_factory_refuses_a_number_that_its_dtype_does_not_hold) {
  EXPECT_ERROR(DTypeError, full({2}, 2.5, {.dtype = kInt64}), "full: the number 2.5 does not fit int64");
  EXPECT_ERROR(DTypeError, full({2}, 300, {.dtype = kUInt8}), "full: the number 300 does not fit uint8");
  EXPECT_ERROR(DTypeError, full({2}, 1e6, {.dtype = kFloat16}),
               "full: the number 1e+06 does not fit float16");
  EXPECT_ERROR(DTypeError, full_like(zeros({2}, {.dtype = kInt32}), kNan), "the number nan");
  EXPECT_ERROR(DTypeError, tensor({1.5}, {.dtype = kInt64}), "tensor: the number 1.5");
  EXPECT_ERROR(DTypeError, tensor({{1., 2.}, {-1., 2.}}, {.dtype = kUInt8}), "tensor: the number -1");
  EXPECT_ERROR(DTypeError, zeros({2}, {.dtype = kInt32}).fill_(1e30), "fill_: the number 1e+30");
  EXPECT_EQ(truth(full({2}, 0.25, {.dtype = kBool})), (Truth{true, true}));
  EXPECT_EQ(truth(full({1}, kNan, {.dtype = kBool})), Truth{true});
}

TEST(Scalar, arange_and_linspace_stay_within_their_dtype) {
  EXPECT_ERROR(DTypeError, arange(0, 300, 1, {.dtype = kUInt8}), "arange: the number 299 does not fit uint8");
  EXPECT_ERROR(DTypeError, arange(0, 5, 0.5, {.dtype = kInt64}), "arange: the number 0.5 does not fit int64");
  EXPECT_ERROR(DTypeError, arange(0, 1e6, 1e5, {.dtype = kFloat16}), "does not fit float16");
  EXPECT_ERROR(ValueError, arange(-kMost, kMost, 1, {.dtype = kInt64}), "arange: from -9223372036854775807");
  EXPECT_EQ(arange(5, 0, -2, {.dtype = kUInt8}).to_vector<int64_t>(), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_EQ(arange(kMost - 2, kMost, 1.0, {.dtype = kInt64}).to_vector<int64_t>(),
            (std::vector<int64_t>{kMost - 2, kMost - 1}));
  EXPECT_EQ(arange(-kMost, kMost, kMost, {.dtype = kInt64}).to_vector<int64_t>(),
            (std::vector<int64_t>{-kMost, 0}));
  EXPECT_EQ(arange(0, 4.5, 2, {.dtype = kInt32}).to_vector<int64_t>(), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_ERROR(DTypeError, linspace(0, 300, 3, {.dtype = kUInt8}), "linspace: the number 300");
  EXPECT_EQ(linspace(0, 10, 4, {.dtype = kInt64}).to_vector<int64_t>(), (std::vector<int64_t>{0, 3, 6, 10}));
}

TEST(Scalar, random_numbers_stay_within_their_dtype) {
  EXPECT_ERROR(DTypeError, randint(0, 300, {2}, {.dtype = kUInt8}),
               "randint: the number 299 does not fit uint8");
  EXPECT_ERROR(DTypeError, randint(-1, 3, {2}, {.dtype = kUInt8}),
               "randint: the number -1 does not fit uint8");
  EXPECT_ERROR(DTypeError, zeros({2}).uniform_(0, 1e300), "uniform_: the number 1e+300 does not fit float32");
  EXPECT_ERROR(DTypeError, zeros({2}, {.dtype = kFloat16}).normal_(1e5), "normal_: the number 100000");
  EXPECT_LT(randint(0, 256, {64}, {.dtype = kUInt8}).to_vector<int64_t>()[0], 256);
}

TEST(Scalar, uint8_minus_a_number_wraps_as_subtraction_does) {
  EXPECT_EQ((integers({5, 0}, kUInt8) - 1).to_vector<int64_t>(), (std::vector<int64_t>{4, 255}));
  EXPECT_EQ(sub(integers({5, 0}, kUInt8), integers({2, 1}, kUInt8), 2).to_vector<int64_t>(),
            (std::vector<int64_t>{1, 254}));
  EXPECT_EQ((integers({0}) - (-kMost - 1)).to_vector<int64_t>(), (std::vector<int64_t>{-kMost - 1}));
  EXPECT_ERROR(DTypeError, integers({5}, kUInt8) + (-1), "add: the number -1 does not fit uint8");
  EXPECT_ERROR(DTypeError, integers({5}, kUInt8) - 256, "sub: the number 256 does not fit uint8");
}

TEST(Scalar, a_comparison_of_integers_takes_the_exact_value) {
  EXPECT_EQ(truth(integers({1, 2}) < 1e30), (Truth{true, true}));
  EXPECT_EQ(truth(integers({1, 2}) > 1e30), (Truth{false, false}));
  EXPECT_EQ(truth(integers({9007199254740992, 9007199254740993}) == 9007199254740993), (Truth{false, true}));
  EXPECT_EQ(truth(integers({9007199254740992, 9007199254740993}) == 9007199254740992.0),
            (Truth{true, false}));
  EXPECT_EQ(truth(integers({kMost}) < 0x1p63), Truth{true});
  EXPECT_EQ(truth(integers({kMost}) == 0x1p63), Truth{false});
  EXPECT_EQ(truth(integers({-kMost - 1}) == -0x1p63), Truth{true});
  EXPECT_EQ(truth(integers({kMost}) < std::numeric_limits<uint64_t>::max()), Truth{true});
  for (const DType t : {kUInt8, kInt32, kInt64}) {
    const Tensor x = integers({0, 1}, t);
    EXPECT_EQ(truth(x == kNan), (Truth{false, false}));
    EXPECT_EQ(truth(x != kNan), (Truth{true, true}));
    EXPECT_EQ(truth(x < kNan), (Truth{false, false}));
    EXPECT_EQ(truth(x < kInf), (Truth{true, true}));
    EXPECT_EQ(truth(x > -kInf), (Truth{true, true}));
    EXPECT_EQ(truth(x < 300), (Truth{true, true}));
    EXPECT_EQ(truth(x > -1), (Truth{true, true}));
    EXPECT_EQ(truth(x >= 0.5), (Truth{false, true}));
    EXPECT_EQ(truth(0.5 == x), (Truth{false, false}));
    EXPECT_EQ(truth(1e30 != x), (Truth{true, true}));
  }
}

TEST(Scalar, a_comparison_of_floats_takes_the_number_in_their_type) {
  EXPECT_EQ(truth(full({1}, 0.1) == 0.1), Truth{true});
  EXPECT_EQ(truth(full({1}, 0.1, {.dtype = kFloat16}) == 0.1), Truth{true});
  EXPECT_EQ(truth(full({1}, kInf) > 1e300), Truth{true});
  EXPECT_EQ(truth(full({1}, kInf, {.dtype = kFloat16}) == 1e6), Truth{false});
}

TEST(Scalar, rounding_an_integer_gives_itself) {
  const Tensor x = integers({-kMost, 9007199254740993, 5});
  for (const Tensor& y : {floor(x), ceil(x), round(x), trunc(x)}) {
    EXPECT_EQ(y.dtype(), kInt64);
    EXPECT_TRUE(equal(y, x));
    EXPECT_FALSE(y.shares_storage(x));
  }
}

TEST(Scalar, an_integer_power_of_an_integer_is_exact) {
  EXPECT_EQ(pow(integers({3, -3, 0, 1}), 39).to_vector<int64_t>(),
            (std::vector<int64_t>{4052555153018976267, -4052555153018976267, 0, 1}));
  EXPECT_EQ(pow(integers({7, 0}, kInt32), 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(pow(integers({3, 16}, kUInt8), 2).to_vector<int64_t>(), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(pow(integers({7}, kInt32), 2).dtype(), kInt32);
  EXPECT_EQ(pow(integers({2, 2, -1, -1, 1, 0}), integers({62, -1, -3, -2, -5, 0})).to_vector<int64_t>(),
            (std::vector<int64_t>{int64_t{1} << 62, 0, -1, 1, 1, 1}));
  EXPECT_EQ(pow(Scalar(3), integers({0, 1, 4})).to_vector<int64_t>(), (std::vector<int64_t>{1, 3, 81}));
  EXPECT_ERROR(ValueError, pow(integers({2}), -1), "pow: int64 to the negative power -1");
  EXPECT_ERROR(DTypeError, pow(integers({2}, kUInt8), 300), "pow: the number 300 does not fit uint8");
  EXPECT_EQ(pow(integers({4}), 0.5).dtype(), kFloat32);  // a floating exponent means real numbers
  EXPECT_EQ(pow(integers({4}), 0.5).item<float>(), 2);
  EXPECT_EQ(pow(Scalar(2.0), integers({-1})).item<float>(), 0.5f);
}

TEST(Scalar, addmm_of_integers_is_exact_and_takes_whole_factors) {
  const Tensor one = ones({1, 1}, {.dtype = kInt64});
  EXPECT_ERROR(DTypeError, addmm(one, one, one, 1, 0.5), "addmm: the number 0.5 does not fit int64");
  EXPECT_ERROR(DTypeError, addmm(one, one, one, 0.5), "addmm: the number 0.5 does not fit int64");
  EXPECT_EQ(addmm(one, one, one, 9007199254740993, -2).item<int64_t>(), 9007199254740991);
  const Tensor large = full({1, 1}, 9007199254740993, {.dtype = kInt64});
  EXPECT_EQ(addmm(one, large, one, 1, 3).item<int64_t>(), 27021597764222980);
  const Tensor none = zeros({1, 0}), unset = full({1, 1}, kNan);
  EXPECT_EQ(addmm(unset, none, none.t(), 0).item<float>(), 0);  // beta 0 leaves c out
}

}  // namespace
}  // namespace weft
