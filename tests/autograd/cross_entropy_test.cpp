// cross_entropy's gradient that forward makes: against losses per row, whose backward makes it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/kernels/cpu_settings.h>
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;

struct CrossEntropyAhead : ::testing::Test {
  CrossEntropyAhead() {
    manual_seed(31);
    x = (randn({9, 5000}) * 3).requires_grad_();
    target = randint(0, 5000, {9});
  }
  Tensor loss() const { return cross_entropy(x, target); }
  /// The gradient of `factor` times the mean, from losses per row.
  Tensor by_rows(double factor) const {
    const Tensor losses = cross_entropy(x, target, {.reduction = Reduction::kNone});
    return grad({losses.sum() * (factor / 9)}, {x})[0];
  }

  Tensor x, target;
};

TEST_F(CrossEntropyAhead, equals_that_of_losses_per_row) {
  EXPECT_TRUE(close(grad({loss()}, {x})[0], by_rows(1), 1e-5, 1e-8));
  EXPECT_TRUE(close(grad({cross_entropy(x, target, {.reduction = Reduction::kSum})}, {x})[0], by_rows(9),
                    1e-5, 1e-8));
}

TEST_F(CrossEntropyAhead, is_multiplied_by_the_gradient_of_the_loss) {
  EXPECT_TRUE(close(grad({loss() * 2.5}, {x})[0], by_rows(2.5), 1e-5, 1e-8));
  EXPECT_TRUE(close(grad({loss()}, {x}, {full({}, -3)})[0], by_rows(-3), 1e-5, 1e-8));
}

TEST_F(CrossEntropyAhead, has_the_same_bits_again_after_writes_to_the_first_one) {
  const Tensor y = loss(), half = full({}, 0.5);
  Tensor first = grad({y}, {x}, {}, {.retain_graph = true})[0];
  const Tensor want = first.clone();
  for (int i = 0; i < 2; ++i) {
    first.fill_(7);
    first = grad({y}, {x}, {}, {.retain_graph = true})[0];
    EXPECT_TRUE(equal(first, want)) << i;
  }
  EXPECT_TRUE(equal(grad({y}, {x}, {half})[0], want * 0.5));
}

TEST_F(CrossEntropyAhead, is_the_same_after_another_multiple_of_it) {
  const Tensor y = loss(), half = full({}, 0.5);
  Tensor scaled = grad({y}, {x}, {half}, {.retain_graph = true})[0];
  const Tensor want = scaled * 2;
  scaled.fill_(7);
  EXPECT_TRUE(equal(grad({y}, {x})[0], want));
}

TEST_F(CrossEntropyAhead, is_none_where_hooks_keep_saved_tensors) {
  int packed = 0;
  Tensor y;
  {
    const SavedTensorHooks hooks(
        [&](const Tensor& t) {
          ++packed;
          return std::any(t.clone());
        },
        [](const std::any& a) { return std::any_cast<Tensor>(a); });
    y = loss();
  }
  EXPECT_EQ(packed, 3);
  EXPECT_TRUE(close(grad({y}, {x})[0], by_rows(1), 1e-5, 1e-8));
}

TEST_F(CrossEntropyAhead, passes_special_values_on_as_losses_per_row_do) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double special : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()})
    for (const int64_t columns : {1, 5000}) {
      const NoGrad guard;
      x[2].slice(0, 0, columns).fill_(special);
      const EnableGrad scope;
      EXPECT_TRUE(close(grad({loss()}, {x})[0], by_rows(1), 1e-5, 1e-8)) << special << " " << columns;
    }
}

TEST_F(CrossEntropyAhead, is_that_of_losses_per_row_where_the_first_classes_are_masked) {
  for (const int64_t masked : {2048, 4096, 4999}) {
    const NoGrad guard;
    x[2].fill_(-100);
    x[2].slice(0, 0, masked).fill_(-std::numeric_limits<double>::infinity());
    target[2].fill_(4999);
    const EnableGrad scope;
    EXPECT_TRUE(close(grad({loss()}, {x})[0], by_rows(1), 1e-5, 1e-8)) << masked;
    const Tensor wide = (x.detach().to(kFloat64) * 8).requires_grad_();
    const CrossEntropyOptions sum{.reduction = Reduction::kSum}, none{.reduction = Reduction::kNone};
    EXPECT_TRUE(close(grad({cross_entropy(wide, target, sum)}, {wide})[0],
                      grad({cross_entropy(wide, target, none).sum()}, {wide})[0], 1e-12, 1e-12))
        << masked;
  }
}

TEST_F(CrossEntropyAhead, is_zero_in_ignored_rows_where_that_of_the_loss_is_not_finite) {
  const NoGrad guard;
  target.slice(0, 3, 5).fill_(-100);
  const EnableGrad scope;
  for (const double g : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const Tensor dx = grad({loss()}, {x}, {full({}, g)})[0];
    EXPECT_TRUE(equal(dx.slice(0, 3, 5), zeros({2, 5000}))) << g;
    EXPECT_FALSE(any(isfinite(dx[0])).item<bool>()) << g;
  }
}

TEST_F(CrossEntropyAhead, has_the_same_bits_with_any_number_of_threads) {
  const Tensor one = [&] {
    const ThreadScope scope(1);
    return grad({loss()}, {x})[0];
  }();
  const ThreadScope scope(3);
  EXPECT_TRUE(equal(grad({loss()}, {x})[0], one));
}

}  // namespace
}  // namespace weft
