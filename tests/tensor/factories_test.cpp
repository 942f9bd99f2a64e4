// Factories as programs call them: lists of numbers, dtypes by default, memory of the caller.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include <weft/tensor/factories.h>

#include "support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

constexpr int64_t kOdd = 9007199254740993;  // 2^53 + 1, which no double holds

using Doubles = std::vector<double>;

TEST(Lists, keep_all_digits_of_whole_numbers) {
  EXPECT_EQ(tensor({kOdd}, kInt64).item<int64_t>(), kOdd);
  EXPECT_EQ(tensor({{kOdd, int64_t{1}}}, kInt64).to_vector<int64_t>(), (std::vector<int64_t>{kOdd, 1}));
  EXPECT_EQ(tensor(kOdd, kInt64).item<int64_t>(), kOdd);
}

TEST(Lists, take_numbers_of_every_type) {
  const int n = 3;
  const float f = 0.5f;
  EXPECT_EQ(tensor({n, 2}).to_vector<double>(), (Doubles{3, 2}));
  EXPECT_EQ(tensor({1.5, 2}).to_vector<double>(), (Doubles{1.5, 2}));
  EXPECT_EQ(tensor({f, 1.f}).to_vector<double>(), (Doubles{0.5, 1}));
  EXPECT_EQ(tensor({Half(0.5f)}).item<double>(), 0.5);
  EXPECT_EQ(tensor({true, false}, kBool).to_vector<bool>(), (std::vector<bool>{true, false}));
  for (const Tensor& x : {tensor({1, 2}), tensor({true, false}), tensor({{1}, {2}}), tensor(5), tensor({})})
    EXPECT_EQ(x.dtype(), kFloat32);
  const std::initializer_list<double> list{1, 2};
  EXPECT_EQ(tensor(list, {.dtype = kFloat64}).to_vector<double>(), (Doubles{1, 2}));
}

TEST(Lists, nest_to_any_depth) {
  EXPECT_EQ(tensor({}).sizes(), Shape({0}));
  EXPECT_EQ(tensor({}, kInt64).dtype(), kInt64);
  EXPECT_EQ(tensor(5.).sizes(), Shape());
  EXPECT_EQ(tensor({5.}).sizes(), Shape({1}));
  EXPECT_EQ(tensor({{1}, {2.5}}).sizes(), Shape({2, 1}));
  const Tensor x = tensor({{{1., 2.}, {3., 4.}, {5., 6.}}});
  EXPECT_EQ(x.sizes(), Shape({1, 3, 2}));
  EXPECT_EQ(x.to_vector<double>(), (Doubles{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(has(error_of<ShapeError>([] { tensor({{1, 2}, {3}}); }), "tensor: rows of 2 and 1 numbers"));
  EXPECT_TRUE(has(error_of<ShapeError>([] { tensor({{1, 2}, 3}); }), "tensor: parts of sizes [2] and []"));
}

TEST(Lists, vectors_bring_their_dtype) {
  EXPECT_EQ(tensor(std::vector<float>{1, 2}).dtype(), kFloat32);
  EXPECT_EQ(tensor(std::vector<double>{1, 2}).dtype(), kFloat64);
  EXPECT_EQ(tensor(std::vector<bool>{true, false}).to_vector<bool>(), (std::vector<bool>{true, false}));
  EXPECT_EQ(tensor(std::vector<int64_t>{kOdd}).item<int64_t>(), kOdd);
  EXPECT_EQ(tensor(std::vector<float>{1, 2}, kInt64).to_vector<int64_t>(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(tensor(std::vector<double>{1}, {.requires_grad = true}).requires_grad());
  EXPECT_TRUE(has(error_of<DTypeError>([] { tensor(std::vector<float>{1.5f}, kInt64); }), "number 1.5"));
}

TEST(Factories, a_dtype_stands_in_the_place_of_options) {
  EXPECT_EQ(zeros({2, 3}, kFloat64).dtype(), kFloat64);
  EXPECT_EQ(ones(3, kInt32).dtype(), kInt32);
  EXPECT_EQ(full({2}, kOdd, kInt64).to_vector<int64_t>(), (std::vector<int64_t>{kOdd, kOdd}));
  EXPECT_EQ(empty({2}, kBool).dtype(), kBool);
  EXPECT_EQ(rand({2}, kFloat64).dtype(), kFloat64);
  EXPECT_EQ(randn({2}, kFloat16).dtype(), kFloat16);
  EXPECT_EQ(eye(2, kInt64).dtype(), kInt64);
  EXPECT_EQ(linspace(0, 1, 2, kFloat64).dtype(), kFloat64);
  EXPECT_EQ(scalar_tensor(2, kUInt8).dtype(), kUInt8);
  EXPECT_EQ(zeros({2}, {}).dtype(), kFloat32);
}

TEST(Factories, numbers_of_integer_types_make_arange_and_randint_int64) {
  EXPECT_EQ(arange(2.5).to_vector<double>(), (Doubles{0, 1, 2}));
  for (const Tensor& x :
       {arange(2.5), arange(3.0), arange(0., 1., .1), arange(0, 1, 0.5), arange(3, kFloat32)})
    EXPECT_EQ(x.dtype(), kFloat32);
  for (const Tensor& x : {arange(3), arange(0, 5), arange(0, 5, 2), arange(0, 5, 2, {})})
    EXPECT_EQ(x.dtype(), kInt64);
  EXPECT_EQ(arange(0., 1., .1).numel(), 10);
  EXPECT_EQ(arange(1, 4, kFloat64).to_vector<double>(), (Doubles{1, 2, 3}));
  EXPECT_EQ(arange(1, 4, {.dtype = kInt32}).to_vector<int>(), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(randint(0, 5, {3}, {.requires_grad = false}).dtype(), kInt64);
}

TEST(Factories, random_tensors_like_another) {
  const Tensor x = empty({2, 3}, kFloat64);
  Generator a(1111), b(1111);
  EXPECT_EQ(rand_like(x, &a).to_vector<double>(), rand({2, 3}, kFloat64, &b).to_vector<double>());
  EXPECT_EQ(randn_like(x, &a).to_vector<double>(), randn({2, 3}, kFloat64, &b).to_vector<double>());
  EXPECT_TRUE(has(error_of<DTypeError>([] { rand_like(arange(3)); }), "rand_like"));
  EXPECT_TRUE(has(error_of<DTypeError>([] { randn_like(arange(3)); }), "randn_like"));
}

TEST(Factories, bounds_of_random_numbers_are_finite) {
  const double inf = INFINITY;
  Tensor x = zeros({4});
  EXPECT_TRUE(has(error_of<ValueError>([&] { x.uniform_(0, inf); }), "uniform_: the bounds must be finite"));
  EXPECT_THROW(x.uniform_(-inf, 0), ValueError);
  EXPECT_THROW(x.uniform_(NAN, 1), ValueError);
  EXPECT_TRUE(has(error_of<ValueError>([&] { x.normal_(0, inf); }), "must be finite, got 0 and inf"));
  EXPECT_THROW(x.normal_(NAN, 1), ValueError);
  EXPECT_EQ(x.to_vector<double>(), Doubles(4, 0));
}

TEST(Memory, has_the_dtype_of_its_pointer) {
  double d[2] = {1.5, 2.5};
  const double* read = d;
  int32_t i[2] = {7, 8};
  float f[2] = {1, 2};
  EXPECT_EQ(from_blob(d, {2}).to_vector<double>(), (Doubles{1.5, 2.5}));
  EXPECT_EQ(from_blob(read, {2}).to_vector<double>(), (Doubles{1.5, 2.5}));
  EXPECT_EQ(from_blob(read, {1}, {2}, {}).dtype(), kFloat64);
  EXPECT_EQ(from_blob(i, {2}).to_vector<int>(), (std::vector<int>{7, 8}));
  EXPECT_EQ(from_blob(d, {2}, kFloat64).dtype(), kFloat64);
  EXPECT_EQ(from_blob(static_cast<void*>(f), {2}).to_vector<double>(), (Doubles{1, 2}));
  EXPECT_EQ(from_blob(static_cast<void*>(i), {2}, kInt32).to_vector<int>(), (std::vector<int>{7, 8}));
  const float* one = f;
  const std::string text = error_of<DTypeError>([&] { from_blob(one, {2}, {.dtype = kFloat64}); });
  EXPECT_TRUE(has(text, "from_blob: the pointer is to float32, the options ask for float64")) << text;
  EXPECT_THROW(from_blob(f, {2}, {1}, {.dtype = kInt64}), DTypeError);
}

TEST(Memory, of_another_type_needs_a_dtype) {
  alignas(8) char bytes[8] = {};
  EXPECT_THROW(from_blob(bytes, {2}), DTypeError);
  EXPECT_EQ(from_blob(bytes, {2}, {.dtype = kInt32}).to_vector<int>(), (std::vector<int>{0, 0}));
}

TEST(Memory, given_as_const_is_not_handed_out_for_writing) {
  const float numbers[2] = {1, 2};
  const Tensor x = from_blob(numbers, {2});
  EXPECT_TRUE(has(error_of<ValueError>([&] { x.data<float>(); }), "ask for const float32"));
  EXPECT_THROW((x.accessor<float, 1>()), ValueError);
  EXPECT_THROW((alias(x, {1}, {1}, 1).data<float>()), ValueError);
  EXPECT_EQ(x.data<const float>(), numbers);
  EXPECT_EQ((x.accessor<const float, 1>()[1]), 2);
}

TEST(Memory, calls_a_function_with_captures_once_after_the_last_view) {
  float memory[2] = {1, 2};
  const float* read = memory;
  std::vector<void*> released;
  const auto release = [&released](void* p) { released.push_back(p); };
  for (int way = 0; way < 5; ++way) {
    released.clear();
    Tensor x = way == 0   ? from_blob(memory, {2}, {}, release)
               : way == 1 ? from_blob(memory, {2}, {1}, {}, release)
               : way == 2 ? from_blob(memory, {2}, release)
               : way == 3 ? from_blob(read, {2}, release, {.dtype = kFloat32})
                          : from_blob(static_cast<void*>(memory), {2}, {}, release);
    const bool read_only = way == 3;
    {
      const Tensor view = alias(x, {1}, {1}, 1);
      x = Tensor();
      EXPECT_TRUE(released.empty());
      EXPECT_EQ(*view.data<const float>(), 2);
      EXPECT_EQ(view.body().storage->is_read_only(), read_only);
    }
    EXPECT_EQ(released, std::vector<void*>{memory});
  }
  from_blob(std::malloc(8), {2}, std::free);
  from_blob(std::malloc(8), {2}, {}, std::free);
}

TEST(Memory, is_not_released_when_from_blob_throws) {
  float memory[2] = {1, 2};
  int released = 0;
  const auto owner = std::make_shared<int>(1);
  const auto release = [&released, owner](void*) { ++released; };
  EXPECT_THROW(from_blob(memory, {-2}, release), ShapeError);
  EXPECT_THROW(from_blob(memory, {2}, {.dtype = kInt64}, release), DTypeError);
  EXPECT_EQ(released, 0);
  EXPECT_EQ(owner.use_count(), 2);
}

}  // namespace
}  // namespace weft
