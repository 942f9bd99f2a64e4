// compile(): chains of pointwise operations that run block by block. Their results, and the tensors that they
// write to, have the bits of ordinary runs, for one thread and for several.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/kernels/cpu_settings.h>
#include <weft/tensor/factories.h>

#include "../support/golden.h"
#include "../support/leaf.h"

namespace weft::compile_tests {
namespace {

using testing::same_bits;
using Tensors = std::vector<Tensor>;
using Body = std::function<Tensors(const Tensors&)>;
using Maker = std::function<Tensors()>;

Tensor random_of(const Shape& sizes, uint64_t seed, DType dtype = kFloat32) {
  Generator draws(seed);
  return (rand(sizes, {}, &draws) * 4 - 2).to(dtype);
}

/// Compares calls of the compiled f with ordinary ones, each of them on arguments of its own. Returns the
/// operations that the last call has fused.
int64_t fused_by(const Body& f, const Maker& arguments) {
  auto compiled = compile(f);
  int64_t before = 0;
  for (int call = 0; call < 6; ++call) {
    const ThreadScope threads(call % 2 == 0 ? 1 : 3);
    before = compiled.stats().fused;
    const Tensors ours = arguments(), theirs = arguments();
    manual_seed(5);
    const Tensors expected = f(theirs);
    manual_seed(5);
    const Tensors got = compiled(ours);
    EXPECT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size() && i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], expected[i])) << "call " << call << ", result " << i;
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(same_bits(ours[i], theirs[i])) << "call " << call << ", argument " << i;
  }
  EXPECT_EQ(compiled.reason(), "");
  return compiled.stats().fused - before;
}
int64_t fused_by(const Body& f, const Tensors& given) {
  return fused_by(f, [&] {
    Tensors out;
    for (const Tensor& x : given) out.push_back(x.clone());
    return out;
  });
}

TEST(CompileChain, temporaries_of_any_number_of_elements) {
  const Body f = [](const Tensors& in) {
    const Tensor &x = in[0], &w = in[1];
    return Tensors{((x * w + 1) * 0.5 - x).relu() + w};
  };
  for (const int64_t n : {2048, 2049, 8192, 8193, 40'007, 100'003})
    EXPECT_EQ(fused_by(f, {random_of({n}, 1), random_of({n}, 2)}), 6) << n;
  for (const int64_t n : {0, 1, 100}) EXPECT_EQ(fused_by(f, {random_of({n}, 1), random_of({n}, 2)}), 0) << n;
}

TEST(CompileChain, functions_and_powers) {
  const Body f = [](const Tensors& in) {
    const Tensor x = in[0].exp() * in[1].sigmoid();
    return Tensors{(x.pow(2) + x.abs().pow(1.3)).log1p().sin().tanh(), x.lerp(in[1], 0.25).erf()};
  };
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    EXPECT_GT(fused_by(f, {random_of({3, 1667}, 1, dtype), random_of({3, 1667}, 2, dtype)}), 8) << dtype;
}

TEST(CompileChain, operands_that_are_broadcast) {
  const Body f = [](const Tensors& in) {
    const Tensor by = in[1] + 3;
    return Tensors{((in[0] * in[1]).tanh() + in[2]) / by};
  };
  const auto of = [](const Shape& whole, const Shape& row) {
    return Tensors{random_of(whole, 1), random_of(row, 2), random_of({}, 3)};
  };
  EXPECT_EQ(fused_by(f, of({307, 211}, {211})), 4);
  EXPECT_EQ(fused_by(f, of({5, 7, 4, 211}, {4, 211})), 4);
  EXPECT_EQ(fused_by(f, of({9, 2500}, {2500})), 4);
  EXPECT_EQ(fused_by(f, of({4001, 3}, {3})), 4);
  EXPECT_EQ(fused_by(f, of({3, 4001}, {})), 4);
  EXPECT_EQ(fused_by(f, of({1, 4001}, {1, 4001})), 5);
  EXPECT_EQ(fused_by(f, of({307, 211}, {307, 1})), 2);  // columns run by themselves
}

TEST(CompileChain, temporaries_that_are_results_or_views_of_them) {
  const Body f = [](const Tensors& in) {
    const Tensor a = in[0] * 2, b = a + 1, c = b.tanh(), d = c * b;
    return Tensors{b, (d + 1).reshape({-1, 2}), a.narrow(0, 100, 7), d.unsqueeze(0), in[0]};
  };
  EXPECT_EQ(fused_by(f, {random_of({5000}, 1)}), 5);
}

TEST(CompileChain, views_of_temporaries) {
  const Body f = [](const Tensors& in) {
    const Tensor a = (in[0] * 2).reshape({50, 100}) + 1, b = (a.t() * 3).neg();
    const Tensor c = b.reshape({-1}) * 2, d = c.narrow(0, 0, 2500) + c.narrow(0, 2500, 2500);
    return Tensors{(d * d).sqrt()};
  };
  EXPECT_GE(fused_by(f, {random_of({5000}, 1)}), 4);
}

TEST(CompileChain, operations_in_place) {
  const Body f = [](const Tensors& in) {
    Tensor y = in[0] * 2;
    y.add_(1).mul_(in[0]);
    y.narrow(0, 10, 2500).mul_(3);
    Tensor z = y - 1;
    z.exp_();
    return Tensors{z * y};
  };
  EXPECT_GE(fused_by(f, {random_of({5000}, 1)}), 5);
  const Body of_arguments = [](const Tensors& in) {
    Tensor x = in[0], w = in[1];
    x.mul_(w).add_(1);
    w.sub_(x * 2);
    return Tensors{x, w * x};
  };
  EXPECT_EQ(fused_by(of_arguments, {random_of({9001}, 1), random_of({9001}, 2)}), 5);
}

TEST(CompileChain, captured_tensors_that_are_written) {
  const Tensors totals{random_of({5000}, 1), random_of({5000}, 1)};
  const auto f = [&](const Tensor& x) {
    Tensor total = totals[0];
    total.mul_(0.5).add_(x * 2);
    return total.tanh() + x;
  };
  auto compiled = compile(f);
  for (int call = 0; call < 5; ++call) {
    const Tensor x = random_of({5000}, 10 + static_cast<uint64_t>(call));
    Tensor total = totals[1];
    total.mul_(0.5).add_(x * 2);
    EXPECT_TRUE(same_bits(compiled(x), total.tanh() + x)) << call;
    EXPECT_TRUE(same_bits(totals[0], totals[1])) << call;
  }
  EXPECT_EQ(compiled.reason(), "");
  EXPECT_GT(compiled.stats().fused, 0);
}

TEST(CompileChain, parts_of_one_tensor_that_overlap) {
  // call k + 1 reads elements that call k has written at other positions
  const Body within = [](const Tensors& in) {
    Tensor head = in[0].narrow(0, 0, 5000);
    const Tensor tail = in[0].narrow(0, 1, 5000);
    head.mul_(2).add_(1);
    return Tensors{(tail * 3).neg()};
  };
  EXPECT_GE(fused_by(within, {random_of({5001}, 1)}), 2);
  const Body f = [](const Tensors& in) {
    Tensor x = in[0];
    x.mul_(2).add_(1);
    return Tensors{(in[1] * 3).neg()};
  };
  EXPECT_EQ(fused_by(f,
                     [] {
                       const Tensor base = random_of({5001}, 1);
                       return Tensors{base.narrow(0, 0, 5000), base.narrow(0, 1, 5000)};
                     }),
            4);
  EXPECT_EQ(fused_by(f,
                     [] {
                       const Tensor base = random_of({5000}, 1);
                       return Tensors{base, base};
                     }),
            4);
}

TEST(CompileChain, arguments_that_overlap_in_a_replay_alone) {
  constexpr int64_t kCount = 9000;
  std::vector<float> memory(4 * kCount), other(4 * kCount);
  const auto f = [](const Tensor& x, const Tensor& y) {
    Tensor(x).mul_(2).add_(1);
    return (y * 3).neg() + x;
  };
  auto compiled = compile(f);
  // the first two calls are recorded, the third one is checked
  const std::pair<int64_t, int64_t> begins[] = {
      {0, kCount}, {2 * kCount, 3 * kCount}, {kCount, 0}, {0, 1}, {1, 0}, {0, 0}, {5, 2}};
  for (const int threads : {1, 3})
    for (const auto& [first, second] : begins) {
      const ThreadScope scope(threads);
      for (size_t i = 0; i < memory.size(); ++i) memory[i] = other[i] = static_cast<float>(i % 113) * 0.25f;
      const auto part = [](std::vector<float>& from, int64_t at) {
        return from_blob(from.data() + at, {kCount}, {.dtype = kFloat32});
      };
      const Tensor expected = f(part(other, first), part(other, second));
      EXPECT_TRUE(same_bits(compiled(part(memory, first), part(memory, second)), expected))
          << first << ", " << second;
      EXPECT_EQ(memory, other) << first << ", " << second;
    }
  EXPECT_GT(compiled.stats().fused, 0);
}

TEST(CompileChain, several_dtypes_in_one_chain) {
  const Body f = [](const Tensors& in) {
    const Tensor x = in[0].to(kFloat64) * 2, flags = x > 1, whole = (in[1] + 1) * in[1];
    const Tensor y = where(flags, x, x.neg()).to(kFloat32) + in[0];
    return Tensors{y, whole.to(kInt32) * 2, (flags.logical_not().to(kUInt8) + 1).to(kFloat16) * 0.5};
  };
  EXPECT_GE(fused_by(f, {random_of({5003}, 1), random_of({5003}, 2, kInt64)}), 12);
}

TEST(CompileChain, reductions_and_draws_between_chains) {
  const Body f = [](const Tensors& in) {
    const Tensor y = (in[0] * 2 + 1).tanh(), z = (y - y.mean()) * 3;
    const Tensor d = dropout(z.relu() + y, 0.5) * 2;
    return Tensors{(d + y).exp().sum(0), d.neg().abs()};
  };
  EXPECT_GE(fused_by(f, {random_of({5000}, 1)}), 8);
}

TEST(CompileChain, more_operations_than_one_chain_takes) {
  const Body f = [](const Tensors& in) {
    Tensor y = in[0];
    Tensors kept;
    for (int i = 0; i < 60; ++i) {
      y = y * 1.01 + in[1];
      if (i % 2 == 0) kept.push_back(y);
    }
    for (const Tensor& k : kept) y = y - k;
    return Tensors{y};
  };
  EXPECT_EQ(fused_by(f, {random_of({3001}, 1), random_of({3001}, 2)}), 150);
}

TEST(CompileChain, gradients_and_updates) {
  const Body f = [](const Tensors& in) {
    const EnableGrad on;
    const Tensor x = in[0].clone().requires_grad_();
    const Tensor loss = ((x * in[1]).sigmoid() * x.tanh() + x.square()).mean();
    const Tensor g = grad({loss}, {x})[0];
    Tensor average = in[2];
    {
      const NoGrad quiet;
      average.mul_(0.9).add_(g * 0.1);
      return Tensors{loss.detach(), in[0] - average / (g.square().sqrt() + 1e-8)};
    }
  };
  EXPECT_GT(fused_by(f, {random_of({70, 71}, 1), random_of({71}, 2), random_of({70, 71}, 3)}), 8);
}

}  // namespace
}  // namespace weft::compile_tests
