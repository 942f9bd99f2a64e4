// Passes of several threads over one graph of a class loss, whose gradients forward has made.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>

namespace weft {
namespace {

/// A loss, and leaves for which gradients are wanted.
struct SharedLoss {
  Tensor y;
  std::vector<Tensor> leaves;
};
SharedLoss of_logits(int64_t rows, int64_t classes) {
  const Tensor x = randn({rows, classes}).requires_grad_();
  return {cross_entropy(x, randint(0, classes, {rows})), {x}};
}
SharedLoss of_linear(int64_t rows, int64_t width, int64_t classes) {
  const Tensor x = randn({rows, width}).requires_grad_(), w = randn({classes, width}).requires_grad_(),
               b = randn({classes}).requires_grad_();
  return {linear_cross_entropy(x, w, b, randint(0, classes, {rows})), {x, w, b}};
}

std::vector<Tensor> pass(const SharedLoss& loss, double g) {
  return grad({loss.y}, loss.leaves, {full({}, g)}, {.retain_graph = true});
}
bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, double factor) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i] * factor)) return false;
  return true;
}

#if defined(__SANITIZE_THREAD__)
constexpr int kRounds = 2;  // it sees a race in each
#else
constexpr int kRounds = 12;
#endif

/// Passes with several gradients of the loss at once. Each writes to its result at once, as its caller may.
template <class F> void expect_own_gradients(const F& make) {
  std::atomic<int> wrong{0};
  for (int round = 0; round < kRounds; ++round) {
    manual_seed(7);
    const std::vector<Tensor> want = pass(make(), 1);
    manual_seed(7);
    const SharedLoss loss = make();
    constexpr double kFactors[] = {1, 0.5, -2};
    std::barrier start(std::size(kFactors));
    std::vector<std::thread> threads;
    for (const double g : kFactors)
      threads.emplace_back([&, g] {
        start.arrive_and_wait();
        std::vector<Tensor> mine = pass(loss, g);
        if (g != 1 && !same(mine, want, g)) ++wrong;
        for (Tensor& t : mine) t.fill_(7);
      });
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST(LossThreads, have_gradients_of_cross_entropy_of_their_own) {
  expect_own_gradients([] { return of_logits(256, 20000); });
}
TEST(LossThreads, have_gradients_of_linear_cross_entropy_of_their_own) {
  expect_own_gradients([] { return of_linear(64, 8, 40); });       // by blocks of rows
  expect_own_gradients([] { return of_linear(20, 1000, 2000); });  // by blocks of classes
}

}  // namespace
}  // namespace weft
