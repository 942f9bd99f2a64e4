// Tensors that the backward of a class loss needs, written after forward: logits and targets.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include "support/errors.h"

namespace weft {
namespace {

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

TEST(LossWrites, of_logits_are_noticed) {
  expect_refused([](const SavedLoss& loss) { return loss.x; });
}
TEST(LossWrites, of_targets_are_noticed) {
  expect_refused([](const SavedLoss& loss) { return loss.target; });
}

}  // namespace
}  // namespace weft
