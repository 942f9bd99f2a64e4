// NaN, infinities and saturated functions where a formula could lose them: losses, logsumexp, recurrent
// layers, extremes, gradients.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>

#include "support/leaf.h"

namespace weft {
namespace {

using test::kInf;
using test::kNan;

double logistic(double x, double t) { return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x))); }

TEST(SpecialValues, logistic_loss_keeps_its_digits_where_the_prediction_is_sure) {
  for (const double x : {-40.0, -15.0, -10.0, -1.0, 0.0, 1.0, 10.0, 15.0, 40.0, 80.0})
    for (const double t : {0.0, 0.25, 1.0}) {
      const Tensor input = full({1}, x).requires_grad_(), target = full({1}, t).requires_grad_();
      const Tensor loss = binary_cross_entropy_with_logits(input, target, Reduction::kSum);
      EXPECT_NEAR(loss.item<double>(), logistic(x, t), 1e-6 * logistic(x, t) + 1e-40) << x << " " << t;
      loss.backward();
      const double small = 1 / (1 + std::exp(std::abs(x))), dx = x > 0 ? (1 - t) - small : small - t;
      EXPECT_NEAR(input.grad().item<double>(), dx, 2e-6 * std::abs(dx)) << x << " " << t;
      EXPECT_NEAR(target.grad().item<double>(), -x, 1e-6 * std::abs(x)) << x << " " << t;
    }
}

TEST(SpecialValues, logistic_loss_has_its_second_derivative_everywhere) {
  for (const double at : {-30.0, -1.0, 0.0, 1.0, 30.0}) {
    const Tensor x = full({1}, at).requires_grad_();
    const Tensor dx = grad({binary_cross_entropy_with_logits(x, ones({1}), Reduction::kSum)}, {x}, {},
                           {.create_graph = true})[0];
    const double small = 1 / (1 + std::exp(std::abs(at))), curve = small * (1 - small);
    EXPECT_NEAR(grad({dx}, {x})[0].item<double>(), curve, 2e-6 * curve) << at;
  }
}

TEST(SpecialValues, logsumexp_of_infinity_and_nan) {
  const auto of = [](std::vector<float> v) {
    return logsumexp(from_vector(v, {static_cast<int64_t>(v.size())}), 0).item<double>();
  };
  const auto inf = static_cast<float>(kInf), nan = static_cast<float>(kNan);
  EXPECT_TRUE(std::isnan(of({inf, nan})));
  EXPECT_TRUE(std::isnan(of({nan, inf, 1})));
  EXPECT_TRUE(std::isnan(of({-inf, nan})));
  EXPECT_EQ(of({inf, 1}), kInf);
  EXPECT_EQ(of({inf, inf}), kInf);
  EXPECT_EQ(of({-inf, -inf}), -kInf);
  std::vector<float> late(5000, 1);
  late[10] = inf, late[4999] = nan;
  EXPECT_TRUE(std::isnan(of(late)));
}

TEST(SpecialValues, softmax_of_infinity_is_nan_throughout) {
  const Tensor x = tensor({1, kInf, 2});
  for (const Tensor& y : {softmax(x, 0), log_softmax(x, 0)}) EXPECT_TRUE(all(isnan(y)).item<bool>());
  EXPECT_TRUE(std::isnan(cross_entropy(reshape(x, {1, 3}), zeros({1}, {.dtype = kInt64})).item<double>()));
}

TEST(SpecialValues, relu_recurrence_keeps_nan) {
  Tensor x = zeros({2, 1, 3});
  x[0].fill_(kNan);
  const RnnResult r =
      rnn_layer(RnnMode::kRelu, x, zeros({1, 5}), Tensor(), ones({5, 3}), zeros({5, 5}), Tensor(), Tensor());
  EXPECT_TRUE(all(isnan(r.y)).item<bool>());  // the second step reads 0 * NaN
}

TEST(SpecialValues, gradients_at_nan_are_the_same_fused_and_composed) {
  using Function = Tensor (*)(const Tensor&);
  const auto at_nan = [](Function f, bool create_graph) {
    const Tensor x = tensor({1, kNan, -1}).requires_grad_();
    return grad({sum(f(x))}, {x}, {}, {.create_graph = create_graph})[0].detach();
  };
  const Function functions[] = {
      [](const Tensor& x) { return relu(x); }, [](const Tensor& x) { return clamp(x, -2, 2); },
      [](const Tensor& x) { return leaky_relu(x, 0.5); }, [](const Tensor& x) { return maximum(x, -2); },
      [](const Tensor& x) { return minimum(x, 2); }};
  const double expected[] = {1, 0, 0.5, 0, 0};  // of the NaN, as PyTorch gives it
  for (size_t i = 0; i < 5; ++i)
    for (const bool create : {false, true})
      EXPECT_EQ(at_nan(functions[i], create)[1].item<double>(), expected[i]) << i << create;
}

TEST(SpecialValues, both_of_a_pair_take_the_gradient_where_one_is_nan) {
  for (const auto op : {static_cast<Tensor (*)(In, In)>(maximum), static_cast<Tensor (*)(In, In)>(minimum)}) {
    const Tensor a = tensor({1, kNan, 2, 5}).requires_grad_(), b = tensor({kNan, 1, 2, 5}).requires_grad_();
    const std::vector<Tensor> g = grad({sum(op(a, b))}, {a, b});
    for (const Tensor& part : g) EXPECT_EQ(part.to_vector<double>(), (std::vector<double>{1, 1, 0.5, 0.5}));
  }
}

TEST(SpecialValues, a_bound_that_is_nan_makes_every_number_nan) {
  for (const auto& [low, high] : {std::pair(kNan, 1.0), std::pair(0.0, kNan), std::pair(kNan, kNan)}) {
    const Tensor x = tensor({-2, 0.5, kInf}).requires_grad_(), y = clamp(x, low, high);
    EXPECT_TRUE(all(isnan(y)).item<bool>());
    EXPECT_FALSE(any(grad({sum(y)}, {x})[0]).item<bool>());
    Tensor written = x.detach().clone();
    EXPECT_TRUE(all(isnan(written.clamp_(low, high))).item<bool>());
    EXPECT_THROW(clamp(arange(3), low, high), DTypeError);
  }
}

TEST(SpecialValues, the_gradient_of_max_goes_to_the_nans) {
  const Tensor x = tensor({1, kNan, 3, kNan}).requires_grad_();
  max(x).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0.5, 0, 0.5}));
}

TEST(SpecialValues, a_nan_is_the_largest_and_the_last) {
  const Tensor x = tensor({2, kNan, -kInf, kInf, kNan});
  EXPECT_EQ(argmax(x, 0).item<int64_t>(), 1);
  EXPECT_EQ(argmin(x, 0).item<int64_t>(), 1);
  EXPECT_TRUE(std::isnan(max(x).item<double>()));
  EXPECT_TRUE(std::isnan(min(x).item<double>()));
  EXPECT_EQ(sort(x, 0).indices.to_vector<int64_t>(), (std::vector<int64_t>{2, 0, 3, 1, 4}));
  EXPECT_EQ(sort(x, 0, true).indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 4, 3, 0, 2}));
  EXPECT_EQ(topk(x, 3, 0).indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 4, 3}));
}

// The double of a float is exact, and so is fmod of two of them.
TEST(SpecialValues, fmod_of_floats_is_exact_for_all_bits_and_beside_whole_quotients) {
  std::mt19937 random(5);
  std::vector<float> a, b;
  for (int i = 0; i < 20000; ++i) {
    a.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    b.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    const float y = std::uniform_real_distribution<float>(1, 2)(random);
    const float whole = y * static_cast<float>(random() >> (random() % 32));
    for (const float x : {whole, std::nextafter(whole, 0.0f), -std::nextafter(whole, 3e38f)}) {
      a.push_back(x);
      b.push_back(i % 2 == 0 ? y : -y);
    }
  }
  for (const float x : {0.0f, -0.0f, 1.5f, 1e-45f, 3e38f, static_cast<float>(kInf), static_cast<float>(kNan)})
    for (const float y : {0.0f, -0.0f, -2.5f, 1e-45f, 3e38f, static_cast<float>(-kInf)}) {
      a.push_back(x);
      b.push_back(y);
    }
  const auto n = static_cast<int64_t>(a.size());
  const Tensor left = from_vector(a, {n}), right = from_vector(b, {n});
  const auto r = fmod(left, right).to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    const double exact = std::fmod(static_cast<double>(a[i]), static_cast<double>(b[i]));
    if (std::isnan(exact)) EXPECT_TRUE(std::isnan(r[i])) << a[i] << " " << b[i];
    else
      EXPECT_EQ(std::bit_cast<uint32_t>(r[i]), std::bit_cast<uint32_t>(static_cast<float>(exact)))
          << a[i] << " " << b[i];
  }
}

}  // namespace
}  // namespace weft
