// linear_cross_entropy against its parts: blocks of classes and of rows, options, special values, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/kernels/cpu_settings.h>
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;

struct LossCase {
  int64_t rows, width, classes;
  DType dtype = kFloat32;
  bool bias = true;
  CrossEntropyOptions options{};
};

struct LossOutcome {
  Tensor loss;
  std::vector<Tensor> gradients;
};

struct LossInputs {
  Tensor x, w, b, target;

  explicit LossInputs(const LossCase& c) {
    manual_seed(17);
    x = randn({c.rows, c.width}, {.dtype = c.dtype}).requires_grad_();
    w = (randn({c.classes, c.width}, {.dtype = c.dtype}) * 0.1).requires_grad_();
    if (c.bias) b = randn({c.classes}, {.dtype = c.dtype}).requires_grad_();
    target = randint(0, c.classes, {c.rows});
  }
  std::vector<Tensor> leaves() const {
    return b.defined() ? std::vector<Tensor>{x, w, b} : std::vector<Tensor>{x, w};
  }
  LossOutcome fused(const CrossEntropyOptions& options) const {
    const Tensor loss = linear_cross_entropy(x, w, b, target, options);
    return {loss.detach(), grad({loss}, leaves())};
  }
  LossOutcome in_parts(const CrossEntropyOptions& options) const {
    const Tensor loss = cross_entropy(linear(x, w, b), target, options);
    return {loss.detach(), grad({loss}, leaves())};
  }
};

void expect_close(const LossOutcome& a, const LossOutcome& b, double relative, double absolute) {
  EXPECT_TRUE(close(a.loss, b.loss, relative, absolute));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_TRUE(close(a.gradients[i], b.gradients[i], 10 * relative, absolute)) << i;
}

void expect_as_in_parts(const LossCase& c) {
  const LossInputs in(c);
  const bool exact = c.dtype == kFloat64;
  expect_close(in.fused(c.options), in.in_parts(c.options), exact ? 1e-13 : 1e-5, exact ? 1e-13 : 1e-6);
}

TEST(LinearCrossEntropy, equals_its_parts_over_many_blocks) {
  manual_seed(17);
  const int64_t n = 131, in = 7, classes = 60013;  // two blocks and more
  Tensor x = randn({n, in}).requires_grad_(), w = (randn({classes, in}) * 0.1).requires_grad_(),
         b = randn({classes}).requires_grad_();
  const Tensor target = randint(0, classes, {n});
  const Tensor fused = linear_cross_entropy(x, w, b, target);
  const auto first = grad({fused}, {x, w, b});
  const Tensor parts = cross_entropy(linear(x, w, b), target);
  const auto second = grad({parts}, {x, w, b});
  EXPECT_TRUE(close(fused.detach(), parts.detach(), 1e-5, 1e-6));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(first[i], second[i], 1e-4, 1e-6)) << i;
}

TEST(LinearCrossEntropy, takes_no_bias_and_partial_gradients) {
  manual_seed(18);
  Tensor x = randn({5, 3}), w = randn({7, 3}).requires_grad_();
  const Tensor target = randint(0, 7, {5});
  const auto fused = grad({linear_cross_entropy(x, w, Tensor(), target)}, {w});
  const auto parts = grad({cross_entropy(linear(x, w), target)}, {w});
  EXPECT_TRUE(close(fused[0], parts[0], 1e-5, 1e-6));
}

TEST(LinearCrossEntropy, equals_its_parts_where_blocks_of_classes_end_unevenly) {
  for (const DType t : {kFloat32, kFloat64})
    for (const int64_t classes : {511, 512, 513, 1001, 2311})
      expect_as_in_parts({.rows = 45, .width = 19, .classes = classes, .dtype = t});
  expect_as_in_parts({.rows = 1, .width = 3, .classes = 700});
  expect_as_in_parts({.rows = 260, .width = 1, .classes = 700});
  expect_as_in_parts({.rows = 70, .width = 301, .classes = 600, .bias = false});
}

TEST(LinearCrossEntropy, equals_its_parts_over_several_parts_of_the_rows) {
  expect_as_in_parts({.rows = 1100, .width = 5, .classes = 520});
  expect_as_in_parts({.rows = 1100, .width = 5, .classes = 520, .dtype = kFloat64});
}

TEST(LinearCrossEntropy, equals_its_parts_with_each_option) {
  LossCase c{.rows = 40, .width = 9, .classes = 900, .dtype = kFloat64};
  for (const double smoothing : {0.0, 0.1})
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum})
      for (const bool weighted : {false, true}) {
        manual_seed(5);
        c.options = {.weight = weighted ? rand({900}, {.dtype = kFloat64}) : Tensor(),
                     .ignore_index = LossInputs(c).target[7].item<int64_t>(),
                     .label_smoothing = smoothing,
                     .reduction = reduction};
        expect_as_in_parts(c);
      }
}

TEST(LinearCrossEntropy, keeps_the_digits_of_large_logits) {
  LossInputs in({.rows = 6, .width = 4, .classes = 1200});
  const CrossEntropyOptions options{.label_smoothing = 0.1};
  const NoGrad guard;
  in.w.fill_(0);
  in.b.copy_(arange(1200) * 7 % 11);
  const auto run = [&] {
    const EnableGrad scope;
    return in.fused(options);
  };
  const LossOutcome near = run();
  in.b += 1e6;  // exact in float32
  expect_close(run(), near, 1e-6, 1e-7);
}

TEST(LinearCrossEntropy, passes_special_values_on_as_its_parts_do) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const LossCase c{.rows = 5, .width = 2, .classes = 600, .dtype = kFloat64};
  for (const double special : {kInfinity, -kInfinity, std::nan("")}) {
    LossInputs in(c);
    {
      const NoGrad guard;
      in.b.slice(0, 300, 301).fill_(special);
    }
    expect_close(in.fused({}), in.in_parts({}), 1e-12, 1e-12);
  }
  LossInputs in(c);
  {
    const NoGrad guard;
    in.b.slice(0, 0, 512).fill_(-kInfinity);  // whole blocks without a finite logit
  }
  const CrossEntropyOptions sum{.reduction = Reduction::kSum};
  in.target.fill_(550);
  expect_close(in.fused(sum), in.in_parts(sum), 1e-12, 1e-12);
}

TEST(LinearCrossEntropy, has_the_same_bits_with_any_number_of_threads) {
  const LossInputs in({.rows = 300, .width = 40, .classes = 4000});
  const LossOutcome one = [&] {
    const ThreadScope scope(1);
    return in.fused({});
  }();
  const ThreadScope scope(3);
  const LossOutcome three = in.fused({});
  EXPECT_TRUE(equal(one.loss, three.loss));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(equal(one.gradients[i], three.gradients[i])) << i;
}

TEST(LinearCrossEntropy, has_the_same_gradients_again_after_writes_to_the_first_ones) {
  for (const int64_t classes : {30, 700}) {  // by blocks of rows, and by blocks of classes
    const LossInputs in({.rows = 20, .width = 6, .classes = classes});
    const Tensor loss = linear_cross_entropy(in.x, in.w, in.b, in.target);
    std::vector<Tensor> first = grad({loss}, in.leaves(), {}, {.retain_graph = true}), kept;
    for (Tensor& g : first) kept.push_back(g.clone()), g.mul_(7);
    const auto second = grad({loss}, in.leaves(), {}, {.retain_graph = true}),
               scaled = grad({loss}, in.leaves(), {full_like(loss.detach(), 2)});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(equal(second[i], kept[i])) << i;
      EXPECT_TRUE(equal(scaled[i], kept[i] * 2)) << i;
    }
  }
}

TEST(LinearCrossEntropy, gives_ignored_rows_no_gradient_where_that_of_the_loss_is_not_finite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int64_t classes : {30, 700})
    for (const double g : {kInfinity, std::nan("")}) {
      LossInputs in({.rows = 6, .width = 4, .classes = classes});
      in.target.slice(0, 3, 5).fill_(-100);
      const auto some = grad({linear_cross_entropy(in.x, in.w, in.b, in.target)}, in.leaves(), {full({}, g)});
      EXPECT_TRUE(equal(some[0].slice(0, 3, 5), zeros({2, 4}))) << g;
      EXPECT_FALSE(any(isfinite(some[0][0])).item<bool>()) << g;
      in.target.fill_(-100);
      const CrossEntropyOptions sum{.reduction = Reduction::kSum};
      const auto none =
          grad({linear_cross_entropy(in.x, in.w, in.b, in.target, sum)}, in.leaves(), {full({}, g)});
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(equal(none[i], zeros(none[i].sizes()))) << g << ", " << i;
    }
}

TEST(LinearCrossEntropy, refuses_a_target_beyond_many_classes) {
  LossInputs in({.rows = 4, .width = 3, .classes = 1000});
  in.target.slice(0, 2, 3).fill_(1000);
  EXPECT_THROW(linear_cross_entropy(in.x, in.w, in.b, in.target), IndexError);
}

}  // namespace
}  // namespace weft
