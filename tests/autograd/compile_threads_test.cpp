// compile() and threads: one function called by several, one per thread, and tensors that another thread
// drops or steps while a replay runs.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>

#include "../support/leaf.h"

namespace weft::compile_tests {
namespace {

using test::row;
using test::values;
using Numbers = std::vector<double>;

template <class F> void on_threads(int count, const F& f) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back([&f, t] { f(t); });
  for (std::thread& t : threads) t.join();
}

Tensor policy(const Tensor& x, const Tensor& w) { return softmax((x + 1).tanh() * w, 0); }

TEST(CompileThreads, threads_share_a_function) {
  const Tensor w = row({1, 2, 3});
  auto f = compile([&](const Tensor& x) { return policy(x, w); });
  std::atomic<int> wrong{0};
  on_threads(3, [&](int t) {
    const NoGrad quiet;
    for (int i = 0; i < 200; ++i) {
      const Tensor x = row({0.1 * t, 0.01 * i, 1});
      if (values(f(x)) != values(policy(x, w))) ++wrong;
    }
  });
  EXPECT_EQ(wrong.load(), 0);
  const CompileStats stats = f.stats();
  EXPECT_EQ(stats.replays + stats.recordings + stats.eager, 600);
}

TEST(CompileThreads, each_thread_has_a_function_over_shared_tensors) {
  const Tensor w = row({1, 2, 3});
  std::atomic<int> wrong{0};
  on_threads(3, [&](int t) {
    const NoGrad quiet;
    auto f = compile([&](const Tensor& x) { return policy(x, w); });
    for (int i = 0; i < 200; ++i) {
      const Tensor x = row({0.1 * t, 0.01 * i, 1});
      if (values(f(x)) != values(policy(x, w))) ++wrong;
    }
    if (f.stats().replays < 190) ++wrong;
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(CompileThreads, a_captured_tensor_that_another_thread_drops_outlives_the_replay) {
  constexpr int64_t kSize = 5000;  // no inline block
  std::mutex mutex;
  Tensor w = full({kSize}, 1, {.dtype = kFloat64});
  auto f = compile([&](const Tensor& x) {
    const std::lock_guard lock(mutex);
    return x * w;
  });
  std::atomic<bool> done{false};
  std::thread changes([&] {
    for (int i = 2; i < 300; ++i) {
      const Tensor fresh = full({kSize}, i, {.dtype = kFloat64});
      const std::lock_guard lock(mutex);
      w = fresh;
    }
    done = true;
  });
  const Tensor x = ones({kSize}, {.dtype = kFloat64});
  double last = 0;
  bool rises = true, whole = true;
  while (!done) {
    const Numbers got = values(f(x));
    rises = rises && got[0] >= last;
    last = got[0];
    for (const double v : got) whole = whole && v == last;
  }
  changes.join();
  EXPECT_TRUE(rises);
  EXPECT_TRUE(whole);
  EXPECT_EQ(values(f(x)), Numbers(kSize, 299));
}

TEST(CompileThreads, steps_of_a_replay_and_of_other_threads_exclude_each_other) {
  Tensor w = test::leaf({0, 0});
  optim::SGD sgd({w}, {.lr = 1});
  auto f = compile([&](const std::vector<Tensor>& grads) { sgd.step(grads); });
  on_threads(3, [&](int) {
    for (int i = 0; i < 200; ++i) f(std::vector{row({-1, -2})});
  });
  EXPECT_EQ(values(w), (Numbers{600, 1200}));
  EXPECT_EQ(sgd.steps(0), 600);
}

TEST(CompileThreads, a_function_may_go_while_its_tensors_go_on_another_thread) {
  for (int i = 0; i < 50; ++i) {
    Tensor w = row({1, 2});
    auto f = std::make_unique<Compiled<std::function<Tensor(const Tensor&)>>>(
        [w](const Tensor& x) { return x * w; }, CompileOptions());
    for (int k = 0; k < 3; ++k) (*f)(row({1, 1}));
    Tensor copy = w;
    w = Tensor();
    std::thread drops([copy = std::move(copy)]() mutable { copy = Tensor(); });
    f.reset();
    drops.join();
  }
}

}  // namespace
}  // namespace weft::compile_tests
