// Tensors that the backward of a class loss needs, written after forward: logits, targets, class weights.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/saved_hooks.h>
#include "support/errors.h"
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;

/// A loss over inputs of its own.
struct SavedLoss {
  std::string name;
  Reduction reduction;
  Tensor x, w, b, target, weight;
  SavedLoss(std::string which, Reduction r, int64_t classes = 6)
      : name(std::move(which)),
        reduction(r),
        x(randn({4, is_linear() ? 3 : classes}).requires_grad_()),
        target(randint(0, classes, {4})),
        weight(rand({classes}) + 0.5) {
    if (!is_linear()) return;
    w = randn({classes, 3}).requires_grad_();
    b = randn({classes}).requires_grad_();
  }
  bool is_linear() const { return name == "linear_cross_entropy"; }
  Tensor operator()() const {
    const CrossEntropyOptions o{.weight = weight, .reduction = reduction};
    const Tensor y = is_linear()               ? linear_cross_entropy(x, w, b, target, o)
                     : name == "cross_entropy" ? cross_entropy(x, target, o)
                                               : nll_loss(x, target, o);
    return reduction == Reduction::kNone ? y.sum() : y;
  }
  std::vector<Tensor> gradients(const Tensor& y) const {
    return grad({y}, is_linear() ? std::vector<Tensor>{x, w, b} : std::vector<Tensor>{x}, {},
                {.retain_graph = true});
  }
};

template <class F> void for_each_loss(const F& f) {
  for (const char* name : {"cross_entropy", "linear_cross_entropy"})
    for (const Reduction r : {Reduction::kNone, Reduction::kMean, Reduction::kSum})
      for (const int64_t classes : {6, 600}) {
        SCOPED_TRACE(std::string(name) + ", reduction " + std::to_string(static_cast<int>(r)) + ", classes " +
                     std::to_string(classes));
        manual_seed(3);
        f(SavedLoss(name, r, classes));
      }
}

/// Writes after forward, and after a first backward.
void expect_refused(const std::function<Tensor(const SavedLoss&)>& written) {
  for_each_loss([&](const SavedLoss& loss) {
    for (const bool after_backward : {false, true}) {
      const Tensor y = loss();
      if (after_backward) loss.gradients(y);
      Tensor t = written(loss);
      {
        const NoGrad guard;
        t.fill_(2);
      }
      EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { loss.gradients(y); }), "written in place"))
          << after_backward;
    }
  });
}

TEST(LossWrites, of_class_weights_are_noticed) {
  expect_refused([](const SavedLoss& loss) { return loss.weight; });
}
TEST(LossWrites, of_logits_are_noticed) {
  expect_refused([](const SavedLoss& loss) { return loss.x; });
}
TEST(LossWrites, of_targets_are_noticed) {
  expect_refused([](const SavedLoss& loss) { return loss.target; });
}

TEST(LossWrites, of_class_weights_leave_the_gradient_of_nll_loss) {
  manual_seed(3);
  for (const Reduction r : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    SavedLoss loss("nll_loss", r);
    const Tensor y = loss(), before = loss.gradients(y)[0].clone();
    loss.weight.fill_(10);
    EXPECT_TRUE(equal(loss.gradients(y)[0], before));
  }
}

TEST(LossWrites, of_class_weights_are_allowed_where_hooks_have_stored_them) {
  for_each_loss([](SavedLoss loss) {
    const std::vector<Tensor> want = loss.gradients(loss());
    int packed = 0;
    Tensor y;
    {
      const SavedTensorHooks hooks(
          [&](const Tensor& t) {
            packed += t.sizes() == loss.weight.sizes() && equal(t, loss.weight);
            return std::any(t.clone());
          },
          [](const std::any& a) { return std::any_cast<Tensor>(a); });
      y = loss();
    }
    EXPECT_EQ(packed, 1);
    loss.weight.fill_(10);
    const std::vector<Tensor> found = loss.gradients(y);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(close(found[i], want[i], 1e-4, 1e-6)) << i;
  });
}

}  // namespace
}  // namespace weft
