// Mixed precision: the arguments that are cast, the dtypes of gradients, and the end of the scope.
#include <weft/autograd/tape/autocast.h>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/tensor/factories.h>

namespace weft {
namespace {

TEST(Autocast, products_run_in_the_half_type_and_losses_in_float32) {
  const Tensor a = ones({3, 4}), b = ones({4, 5}), bias = ones({5});
  const Tensor target = zeros({3}, {.dtype = kInt64});
  for (const DType half : {kBFloat16, kFloat16}) {
    const Autocast mixed(half);
    EXPECT_EQ(matmul(a, b).dtype(), half);
    EXPECT_EQ(mm(a, b).dtype(), half);
    EXPECT_EQ(linear(a, b.transpose(0, 1), bias).dtype(), half);
    EXPECT_EQ(bmm(a.unsqueeze(0), b.unsqueeze(0)).dtype(), half);
    EXPECT_EQ(addmm(bias, a, b).dtype(), half);
    const Tensor y = matmul(a, b);
    EXPECT_EQ(softmax(y, 1).dtype(), kFloat32);
    EXPECT_EQ(exp(y).dtype(), kFloat32);
    EXPECT_EQ(sum(y).dtype(), kFloat32);
    EXPECT_EQ(norm(y).dtype(), kFloat32);
    EXPECT_EQ(cross_entropy(y, target).dtype(), kFloat32);
    EXPECT_EQ(linear_cross_entropy(a, b.transpose(0, 1), bias, target).dtype(), kFloat32);
    EXPECT_EQ(relu(y).dtype(), half) << "an op without a rule keeps its dtype";
    EXPECT_EQ((y + a.narrow(1, 0, 1)).dtype(), kFloat32) << "and meets others in the wider type";
  }
}

TEST(Autocast, leaves_float64_and_integers_alone) {
  const Autocast mixed(kBFloat16);
  EXPECT_EQ(matmul(ones({2, 2}, {.dtype = kFloat64}), ones({2, 2}, {.dtype = kFloat64})).dtype(), kFloat64);
  EXPECT_EQ(matmul(ones({2, 2}, {.dtype = kInt64}), ones({2, 2}, {.dtype = kInt64})).dtype(), kInt64);
}

TEST(Autocast, gradients_of_float32_parameters_are_float32_and_near_the_exact_ones) {
  const Tensor x = from_vector(std::vector<double>{0.5, -1, 2, 0.25, 1, -0.75}, {2, 3});
  const auto gradient = [&](bool mixed) {
    const Tensor w = (arange(12).to(kFloat32).reshape({4, 3}) * 0.1 - 0.5).detach().requires_grad_();
    Tensor loss;
    if (mixed) {
      const Autocast scope(kBFloat16);
      loss = sum(square(tanh(linear(x, w))));
    } else {
      loss = sum(square(tanh(linear(x, w))));
    }
    loss.backward();
    return w.grad();
  };
  const Tensor exact = gradient(false), mixed = gradient(true);
  EXPECT_EQ(mixed.dtype(), kFloat32);
  EXPECT_TRUE(allclose(mixed, exact, 0.05, 0.02));
  EXPECT_FALSE(equal(mixed, exact));
}

TEST(Autocast, ends_with_its_scope_and_nests) {
  const Tensor a = ones({2, 2});
  {
    const Autocast outer(kBFloat16);
    {
      const Autocast inner(kFloat16);
      EXPECT_EQ(mm(a, a).dtype(), kFloat16);
    }
    EXPECT_EQ(mm(a, a).dtype(), kBFloat16);
    {
      const NoAutocast off;
      EXPECT_EQ(mm(a, a).dtype(), kFloat32);
    }
    EXPECT_EQ(mm(a, a).dtype(), kBFloat16);
  }
  EXPECT_EQ(mm(a, a).dtype(), kFloat32);
  EXPECT_EQ(autocast_dtype(), kFloat32);
}

TEST(Autocast, takes_half_types_only) {
  EXPECT_THROW({ const Autocast scope(kFloat64); }, DTypeError);
}

TEST(Autocast, backward_inside_the_scope_gives_the_same_bits_as_outside) {
  const Tensor x = arange(6).to(kFloat32).reshape({2, 3}) * 0.3;
  const auto gradient = [&](bool inside) {
    const Tensor w = (ones({4, 3}) * 0.37).detach().requires_grad_();
    Tensor loss;
    {
      const Autocast scope(kBFloat16);
      loss = mean(square(linear(x, w)));
      if (inside) loss.backward();
    }
    if (!inside) loss.backward();
    return w.grad();
  };
  EXPECT_TRUE(equal(gradient(true), gradient(false)));
}

TEST(Autocast, sees_a_parameter_that_was_written_inside_the_scope) {
  const Tensor w = ones({2, 2}).requires_grad_();
  const Autocast scope(kBFloat16);
  EXPECT_EQ(mm(w, w).sum().item<float>(), 8);
  {
    const NoGrad quiet;
    Tensor(w).mul_(2);
  }
  EXPECT_EQ(mm(w, w).sum().item<float>(), 32);
}

TEST(Autocast, a_recurrent_layer_on_the_cpu_stays_in_float32) {
  const Autocast scope(kBFloat16);
  const Tensor x = mm(ones({2, 3}), ones({3, 3})).reshape({2, 1, 3});
  const RnnResult r =
      rnn_layer(RnnMode::kTanh, x, zeros({1, 4}), Tensor(), ones({4, 3}), ones({4, 4}), Tensor(), Tensor());
  EXPECT_EQ(r.y.dtype(), kFloat32);
}

TEST(Autocast, one_scope_serves_several_backwards_and_new_values) {
  Tensor w = ones({3, 2}).requires_grad_();
  const Tensor x = ones({1, 2});
  const Autocast scope(kBFloat16);
  const Tensor first = linear(x, w).sum(), second = linear(x * 2, w).sum();
  first.backward();
  second.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(6, 3));
  {
    NoGrad quiet;
    w.fill_(4);
  }
  EXPECT_EQ(linear(x, w).sum().item<float>(), 24);
}

}  // namespace
}  // namespace weft
