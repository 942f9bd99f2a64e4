// Custom functions, checkpointing, and gradcheck itself.
#include <algorithm>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/checkpoint.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/grad_mode.h>

#include "../support/errors.h"
#include "../support/leaf.h"

namespace weft {
namespace {

using test::leaf;
using test::values;
using Numbers = std::vector<double>;
using Tensors = std::vector<Tensor>;

struct Cube {
  static constexpr const char* name = "Cube";
  static Tensor forward(FunctionContext& ctx, const Tensor& x) {
    ctx.save({x});
    return mul(mul(x, x), x);
  }
  static GradList backward(FunctionContext& ctx, const GradList& g) {
    const Tensor x = ctx.saved(0);
    return {mul(mul(g[0], 3.0), mul(x, x))};
  }
};

/// exp and its negation, from the saved output; the factor is no tensor.
struct ScaledExp {
  static Tensors forward(FunctionContext& ctx, const Tensor& x, double factor, const Tensor& bias) {
    const Tensor y = exp(mul(x, factor));
    ctx.save({y});
    ctx.put(factor);
    return {y, add(neg(x), bias)};
  }
  static GradList backward(FunctionContext& ctx, const GradList& g) {
    GradList out(2);
    if (g[0].defined()) out[0] = mul(mul(g[0], ctx.saved(0)), ctx.get<double>());
    if (g[1].defined()) {
      out[0] = out[0].defined() ? sub(out[0], g[1]) : neg(g[1]);
      if (ctx.needs_grad(1)) out[1] = g[1];
    }
    return out;
  }
};

struct Identity {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x; }
  static GradList backward(FunctionContext&, const GradList& g) { return {mul(g[0], -1.0)}; }
};

TEST(Function, gradient_is_the_users) {
  const Tensor x = leaf({2, -1});
  const Tensor y = apply_function<Cube>(x);
  EXPECT_STREQ(y.grad_fn_name(), "Cube");
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{12, 3}));
}

TEST(Function, passes_gradcheck_to_the_second_order) {
  const auto cube = [](const Tensors& in) { return Tensors{apply_function<Cube>(in[0])}; };
  EXPECT_TRUE(gradcheck(cube, {leaf({0.3, -0.8})})) << gradcheck(cube, {leaf({0.3, -0.8})}).message;
  EXPECT_TRUE(gradgradcheck(cube, {leaf({0.3, -0.8})})) << gradgradcheck(cube, {leaf({0.3, -0.8})}).message;
}

TEST(Function, several_outputs_saved_output_and_plain_arguments) {
  const auto f = [](const Tensors& in) { return apply_function<ScaledExp>(in[0], 0.5, in[1]); };
  const Tensors in{leaf({0.3, -0.8}), leaf({1, 2})};
  EXPECT_TRUE(gradcheck(f, in)) << gradcheck(f, in).message;
  EXPECT_TRUE(gradgradcheck(f, in)) << gradgradcheck(f, in).message;
  f(in)[1].sum().backward();
  EXPECT_EQ(values(in[0].grad()), (Numbers{-1, -1}));
}

TEST(Function, an_output_that_is_the_input_gets_its_own_history) {
  const Tensor x = leaf({2});
  const Tensor y = apply_function<Identity>(x);
  EXPECT_TRUE(x.is_leaf());
  EXPECT_FALSE(y.is_same(x));
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{-1});
}

/// The square, and half of it rounded down, which has no gradient.
struct SquareAndHalves {
  static Tensors forward(FunctionContext& ctx, const Tensor& x) {
    ctx.save({x});
    const Tensor y = mul(x, x), halves = floor(div(y, 2.0));
    ctx.mark_non_differentiable(halves);
    return {y, halves};
  }
  static GradList backward(FunctionContext& ctx, const GradList& g) {
    EXPECT_FALSE(g[1].defined());
    return {mul(mul(g[0], 2.0), ctx.saved(0))};
  }
};

TEST(Function, an_output_without_a_gradient_is_a_constant) {
  const Tensor x = leaf({3});
  const Tensors y = apply_function<SquareAndHalves>(x);
  EXPECT_TRUE(y[0].requires_grad());
  EXPECT_FALSE(y[1].requires_grad());
  EXPECT_EQ(values(y[1]), Numbers{4});
  add(y[0], y[1]).backward();
  EXPECT_EQ(values(x.grad()), Numbers{6});
}

TEST(Function, nothing_is_recorded_without_need) {
  EXPECT_FALSE(apply_function<Cube>(ones({2})).requires_grad());
  const Tensor x = leaf({2});
  NoGrad off;
  EXPECT_FALSE(apply_function<Cube>(x).requires_grad());
}

TEST(Function, saved_tensors_are_freed_and_guarded) {
  const Tensor x = leaf({2});
  const Tensor y = apply_function<Cube>(x);
  EXPECT_GT(x.body().storage->saves(), 0u);
  y.backward();
  EXPECT_EQ(x.body().storage->saves(), 0u);
  EXPECT_THROW(y.backward(), AutogradError);
  const Tensor z = apply_function<Cube>(x);
  {
    NoGrad off;
    Tensor(x).add_(1);
  }
  EXPECT_THROW(z.backward(), AutogradError);
}

TEST(Function, a_wrong_count_of_gradients_is_named) {
  struct Short {
    static Tensor forward(FunctionContext&, const Tensor& a, const Tensor& b) { return add(a, b); }
    static GradList backward(FunctionContext&, const GradList& g) { return {g[0]}; }
  };
  const Tensor x = leaf({2});
  try {
    apply_function<Short>(x, x).backward();
    ADD_FAILURE();
  } catch (const AutogradError& e) {
    EXPECT_NE(std::string(e.what()).find("1 gradients for 2"), std::string::npos) << e.what();
  }
}

/// relu(x)^2 with relu(x) kept: its backward says nothing of how that hangs on x.
struct SquaredRelu {
  static Tensor forward(FunctionContext& ctx, const Tensor& x) {
    const Tensor r = relu(x);
    ctx.save({r, gt(x, 0)});
    return mul(r, r);
  }
  static GradList backward(FunctionContext& ctx, const GradList& g) {
    ctx.saved(1);  // no gradient flows through a mask
    return {mul(mul(g[0], 2.0), ctx.saved(0))};
  }
};

TEST(Function, a_saved_intermediate_is_refused_under_create_graph) {
  const Tensor x = leaf({2, -1});
  apply_function<SquaredRelu>(x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{4, 0}));
  const std::string text = test::error_of<AutogradError>(
      [&] { grad({apply_function<SquaredRelu>(x).sum()}, {x}, {}, {.create_graph = true}); });
  EXPECT_TRUE(test::has(text, "SquaredRelu: backward under create_graph reads saved tensor 0 of sizes [2]"));
  EXPECT_TRUE(test::has(text, "return it as an output"));
}

TEST(Function, a_wrong_gradient_is_blamed_on_the_function) {
  struct Given {
    static Tensor forward(FunctionContext& ctx, const Tensor& x, const Tensor& given) {
      ctx.put(given);
      return mul(x, 2.0);
    }
    static GradList backward(FunctionContext& ctx, const GradList&) { return {ctx.get<Tensor>(), Tensor()}; }
  };
  const auto text = [](const Tensor& x, const Tensor& given) {
    return test::error_of<AutogradError>([&] { apply_function<Given>(x, given).sum().backward(); });
  };
  const Tensor x = leaf({2, 3});
  const std::string sizes =
      "Given: backward returned a gradient of sizes [3] for input 0, which has sizes [2]";
  EXPECT_EQ(text(x, ones({3})), sizes);
  EXPECT_EQ(text(mul(x, 2.0), ones({3})), sizes);
  EXPECT_EQ(text(x, ones({2}, {.dtype = kInt64})),
            "Given: backward returned a gradient of int64 for input 0, which is float64");
  apply_function<Given>(x, ones({5, 2})).sum().backward();  // broadcast sizes are summed, floating types cast
  EXPECT_EQ(values(x.grad()), (Numbers{5, 5}));
}

TEST(Gradcheck, finds_a_wrong_formula) {
  const auto wrong = [](const Tensors& in) {
    const Tensor& x = in[0];
    Tensor y;
    {
      NoGrad off;
      y = mul(x, x);
    }
    return Tensors{record("wrong", y, {x},
                          [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {mul(g, x.get())}; })};
  };
  const GradcheckResult result = gradcheck(wrong, {leaf({0.5, 2})});
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.message.find("input 0"), std::string::npos) << result.message;
}

TEST(Gradcheck, finds_a_zero_backward_that_a_sum_would_hide) {
  const auto softmax_like = [](const Tensors& in) {
    Tensor y;
    {
      NoGrad off;
      const Tensor e = exp(in[0]);
      y = div(e, e.sum());
    }
    return Tensors{
        record("zero", y, {in[0]}, [](const Tensor& g, Needs) -> GradList { return {zeros_like(g)}; })};
  };
  EXPECT_FALSE(gradcheck(softmax_like, {leaf({0.5, 2, -1})}));
}

TEST(Gradcheck, finds_a_missing_gradient_and_a_random_function) {
  EXPECT_FALSE(gradcheck([](const Tensors& in) { return Tensors{mul(in[0], in[0].detach())}; }, {leaf({3})}));
  const GradcheckResult random = gradcheck(
      [](const Tensors& in) { return Tensors{mul(in[0], rand({1}, {.dtype = kFloat64}))}; }, {leaf({3})});
  EXPECT_NE(random.message.find("deterministic"), std::string::npos);
}

TEST(Gradcheck, finds_a_first_order_only_backward) {
  const auto detached = [](const Tensors& in) {
    Tensor y;
    {
      NoGrad off;
      y = mul(in[0], in[0]);
    }
    return Tensors{record("flat", y, {in[0]}, [x = Saved(in[0])](const Tensor& g, Needs) -> GradList {
      return {mul(g, mul(x.get().detach(), 2.0))};
    })};
  };
  EXPECT_TRUE(gradcheck(detached, {leaf({3})}));
  EXPECT_FALSE(gradgradcheck(detached, {leaf({3})}));
}

TEST(Gradcheck, strided_inputs_are_checked_and_restored) {
  const Tensor base = tensor({{0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}}, {.dtype = kFloat64});
  const Tensor x = alias(base, {3, 2}, {1, 3}, 0).requires_grad_();
  EXPECT_TRUE(gradcheck([](const Tensors& in) { return Tensors{tanh(in[0])}; }, {x}));
  EXPECT_EQ(values(base), (Numbers{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}));
}

TEST(Gradcheck, unsuitable_inputs_are_refused) {
  const auto f = [](const Tensors& in) { return Tensors{mul(in[0], in[0])}; };
  EXPECT_THROW(gradcheck(f, {tensor({1}, {.requires_grad = true})}), DTypeError);
  EXPECT_THROW(gradcheck(f, {ones({1}, {.dtype = kFloat64})}), AutogradError);
  EXPECT_THROW(gradcheck(f, {mul(leaf({1}), 2.0)}), AutogradError);
}

TEST(Checkpoint, gradients_are_those_of_the_plain_call) {
  const Tensor w = leaf({0.5, -2}), x = leaf({0.3, 0.7});
  const auto f = [&](const Tensors& in) { return Tensors{tanh(mul(in[0], w)), mul(in[0], in[0])}; };
  Tensors plain = f({x});
  add(plain[0], plain[1]).sum().backward();
  const Numbers dw = values(w.grad()), dx = values(x.grad());
  w.zero_grad();
  x.zero_grad();
  Tensors kept = checkpoint(f, {x});
  EXPECT_EQ(values(kept[0]), values(plain[0]));
  EXPECT_EQ(w.body().storage->saves(), 0u);
  add(kept[0], kept[1]).sum().backward();
  EXPECT_EQ(values(w.grad()), dw);
  EXPECT_EQ(values(x.grad()), dx);
}

/// Rows of x squared: views of a hidden result, or of one that is kept.
struct SquaredRows {
  static Tensors forward(FunctionContext& ctx, const Tensor& x, bool one, bool keep) {
    const Tensor all = mul(x, x);
    if (keep) ctx.put(all);
    ctx.save({x});
    return one ? Tensors{reshape(all, {2, 2})} : Tensors{narrow(all, 0, 0, 2), narrow(all, 0, 2, 2)};
  }
  static GradList backward(FunctionContext& ctx, const GradList& g) {
    Tensors rows;
    for (const Tensor& part : g)
      rows.push_back(part.defined() ? reshape(part, {-1}) : zeros({2}, {.dtype = kFloat64}));
    return {mul(mul(cat(rows, 0), 2.0), ctx.saved(0))};
  }
};

TEST(Function, write_to_an_output_that_forward_made_as_a_view_keeps_the_gradient) {
  const Tensor x = leaf({1, 2, 3, 4});
  Tensor y = apply_function<SquaredRows>(x, true, false)[0];
  Tensor alias = y.detach();
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { alias.add_(1); }), "detached alias"));
  y.mul_(3);
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{6, 12, 18, 24}));
}

TEST(Function, write_to_an_output_whose_memory_others_share_is_refused) {
  const Tensor x = leaf({1, 2, 3, 4});
  Tensors parts = apply_function<SquaredRows>(x, false, false);
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { parts[0].mul_(3); }), "mul_: "));
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { parts[1].mul_(3); }), "mul_: "));
  Tensor kept = apply_function<SquaredRows>(x, true, true)[0];
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { kept.mul_(3); }), "mul_: "));
  EXPECT_EQ(values(kept), (Numbers{1, 4, 9, 16}));
  parts.erase(parts.begin());  // the last one that shows the memory
  parts[0].mul_(3);
  parts[0].sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{0, 0, 18, 24}));
}

TEST(Checkpoint, write_to_an_output_that_is_a_view_keeps_the_gradient) {
  const Tensor x = leaf({1, 2, 3, 4});
  Tensor y = checkpoint(
      [](const Tensors& in) {
        return Tensors{reshape(mul(in[0], in[0]), {2, 2})};
      },
      {x})[0];
  y.mul_(3);
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{6, 12, 18, 24}));
}

TEST(Checkpoint, random_draws_repeat_and_no_generator_moves_in_backward) {
  const Tensor x = leaf({1, 1, 1, 1, 1, 1, 1});
  Generator own(5);
  manual_seed(3);
  const auto f = [&](const Tensors& in) {
    const Tensor mask = add(rand({7}, {.dtype = kFloat64}), rand({7}, {.dtype = kFloat64}, &own));
    return Tensors{mul(in[0], mask)};
  };
  const Tensor y = checkpoint(f, {x})[0];
  rand({11});
  const uint64_t offset = default_generator().offset(), own_offset = own.offset();
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), values(y));
  EXPECT_EQ(default_generator().offset(), offset);
  EXPECT_EQ(own.offset(), own_offset);
}

TEST(Checkpoint, nested_checkpoints_repeat_their_draws) {
  const Tensor x = leaf({1, 1, 1});
  const auto noisy = [](const Tensors& in) { return Tensors{mul(in[0], rand({3}, {.dtype = kFloat64}))}; };
  const auto outer = [&](const Tensors& in) {
    return Tensors{mul(checkpoint(noisy, {noisy(in)[0]})[0], rand({3}, {.dtype = kFloat64}))};
  };
  const Tensor y = checkpoint(outer, {x})[0];
  y.sum().backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(values(x.grad())[i], values(y)[i], 1e-15);
}

TEST(Checkpoint, draws_of_other_threads_meanwhile_are_their_own) {
  const Tensor x = leaf({1, 1, 1});
  std::vector<uint64_t> taken;
  const auto f = [&](const Tensors& in) {
    std::thread([&] { taken.push_back(default_generator().take(2).offset); }).join();
    const Tensor mask = rand({3}, {.dtype = kFloat64});
    std::thread([&] { taken.push_back(default_generator().take(2).offset); }).join();
    return Tensors{mul(in[0], mask)};
  };
  const Tensor y = checkpoint(f, {x})[0];
  y.sum().backward();
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_EQ(std::unique(taken.begin(), taken.end()), taken.end());
  EXPECT_GT(default_generator().offset(), taken.back());
  EXPECT_EQ(values(x.grad()), values(y));
}

TEST(Checkpoint, a_function_that_draws_otherwise_the_second_time_is_refused) {
  const Tensor x = leaf({1});
  bool again = false;
  const auto f = [&](const Tensors& in) {
    return Tensors{std::exchange(again, true) ? in[0] * 2.0 : mul(in[0], rand({1}, {.dtype = kFloat64}))};
  };
  const Tensor y = checkpoint(f, {x})[0];
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { y.backward(); }),
                        "checkpoint: the function drew random numbers another number of times"));
}

TEST(Checkpoint, computes_again_under_the_autocast_of_the_forward_call) {
  Generator numbers(7);
  const Tensor w = randn({5, 7}, {.requires_grad = true}, &numbers),
               x = randn({3, 5}, {.requires_grad = true}, &numbers);
  std::vector<DType> seen;
  const auto f = [&](const Tensors& in) {
    const Tensor y = matmul(in[0], w);
    seen.push_back(y.dtype());
    NoAutocast off;
    seen.push_back(matmul(in[0], w).dtype());
    return Tensors{tanh(y)};
  };
  const auto gradients = [&](bool kept) {
    w.zero_grad();
    x.zero_grad();
    Tensor y;
    {
      const Autocast mixed(kBFloat16);
      y = kept ? f({x})[0] : checkpoint(f, {x})[0];
    }
    y.to(kFloat32).sum().backward();
    Numbers all = values(w.grad());
    for (const double v : values(x.grad())) all.push_back(v);
    return all;
  };
  const Numbers plain = gradients(true);
  seen.clear();
  EXPECT_EQ(gradients(false), plain);
  EXPECT_EQ(seen, (std::vector<DType>{kBFloat16, kFloat32, kBFloat16, kFloat32}));
}

TEST(Checkpoint, computes_again_without_the_autocast_of_the_backward_call) {
  const Tensor w = leaf({3}).to(kFloat32).detach().view({1, 1}).clone().requires_grad_(),
               x = ones({1, 1}).requires_grad_();
  std::vector<DType> seen;
  const Tensor y = checkpoint(
      [&](const Tensors& in) {
        const Tensor z = matmul(in[0], w);
        seen.push_back(z.dtype());
        return Tensors{z};
      },
      {x})[0];
  const Autocast mixed(kBFloat16);
  y.backward();
  EXPECT_EQ(seen, (std::vector<DType>{kFloat32, kFloat32}));
}

TEST(Checkpoint, create_graph_is_refused_by_name) {
  const Tensor x = leaf({1});
  const Tensor y = checkpoint([](const Tensors& in) { return Tensors{mul(in[0], in[0])}; }, {x})[0];
  try {
    y.backward({}, false, true);
    ADD_FAILURE();
  } catch (const AutogradError& e) {
    EXPECT_NE(std::string(e.what()).find("checkpoint"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
