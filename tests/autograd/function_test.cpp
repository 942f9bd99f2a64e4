// Custom functions, checkpointing, and gradcheck itself.
#include <cmath>

#include <gtest/gtest.h>

#include <weft/autograd/checkpoint.h>
#include <weft/autograd/engine.h>
#include <weft/autograd/function.h>
#include <weft/autograd/grad_mode.h>
#include <weft/autograd/ops.h>

namespace weft {
namespace {

Tensor leaf(std::initializer_list<double> values) {
  return tensor(values, {.dtype = kFloat64, .requires_grad = true});
}
std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }
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

TEST(Checkpoint, random_draws_repeat_and_the_generators_go_on) {
  const Tensor x = leaf({1, 1, 1, 1, 1, 1, 1});
  Generator own(5);
  manual_seed(3);
  const auto f = [&](const Tensors& in) {
    const Tensor mask = add(rand({7}, {.dtype = kFloat64}), rand({7}, {.dtype = kFloat64}, &own));
    return Tensors{mul(in[0], mask)};
  };
  const Tensor y = checkpoint(f, {x}, &own)[0];
  const uint64_t offset = default_generator().offset(), own_offset = own.offset();
  rand({11});
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), values(y));
  EXPECT_GT(default_generator().offset(), offset);
  EXPECT_EQ(own.offset(), own_offset);
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
