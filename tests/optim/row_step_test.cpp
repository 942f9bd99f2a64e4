// Steps over row-wise gradients: the rules that take them, the bits of the dense step, and the rows that
// stay. Also clipping and scaling of the values.
#include <algorithm>
#include <cmath>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft::optim {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

constexpr int64_t kCount = 23, kDim = 5;

/// Look-ups of step t: repeats, neighbours, and rows of the steps before.
Tensor ids_of_step(int64_t t) {
  return from_vector<int64_t>({t % kCount, (3 * t + 1) % kCount, (3 * t + 2) % kCount, t % kCount, 7}, {5});
}

struct Model {
  explicit Model(bool sparse, DType dtype = kFloat32)
      : generator(3), table(kCount, kDim, {.dtype = dtype, .generator = &generator, .sparse = sparse}) {}
  /// One backward pass.
  void learn(int64_t t, double scale = 1) {
    table.zero_grad();
    const Tensor y = table.forward(ids_of_step(t));
    Generator draws(100 + static_cast<uint64_t>(t));
    y.backward(randn(y.sizes(), {.dtype = y.dtype()}, &draws) * scale);
  }
  const Tensor& weight() const { return table.weight; }
  Generator generator;
  nn::Embedding table;
};

template <class Opt> void expect_dense_bits(const typename Opt::Options& options) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    Model sparse(true, dtype), dense(false, dtype);
    Opt a(sparse.table.parameters(), options), b(dense.table.parameters(), options);
    for (int64_t t = 0; t < 12; ++t) {
      sparse.learn(t), dense.learn(t);
      ASSERT_TRUE(sparse.weight().row_grad().defined());
      a.step(), b.step();
      ASSERT_TRUE(same_bits(sparse.weight(), dense.weight())) << a.name() << " step " << t;
    }
    EXPECT_EQ(a.kernel_calls(), 12);
    const StateDict left = a.state_dict(), right = b.state_dict();
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(same_bits(left[i].second, right[i].second));
  }
}

TEST(RowStep, is_exact_where_rows_without_a_gradient_stay) {
  expect_dense_bits<SGD>({.lr = 0.1});
  expect_dense_bits<SGD>({.lr = 0.1, .maximize = true});
  expect_dense_bits<Adagrad>({.lr = 0.1, .lr_decay = 0.01});
}

/// SparseAdam by its definition, row after row.
struct ByHand {
  explicit ByHand(const Tensor& weight) : p(weight.detach().to_vector<double>()), m(p.size()), v(p.size()) {}
  void step(const RowGrad& g, const SparseAdamOptions& o) {
    ++t;
    const std::vector<int64_t> rows = g.rows.to_vector<int64_t>();
    const std::vector<double> values = g.values.to_vector<double>();
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t j = 0; j < kDim; ++j) {
        const size_t at = static_cast<size_t>(rows[i]) * kDim + j;
        const double d = (o.maximize ? -1 : 1) * values[i * kDim + j];
        m[at] += (1 - o.beta1) * (d - m[at]);
        v[at] += (1 - o.beta2) * (d * d - v[at]);
        const double rate = o.lr * std::sqrt(1 - std::pow(o.beta2, t)) / (1 - std::pow(o.beta1, t));
        p[at] -= rate * m[at] / (std::sqrt(v[at]) + o.eps);
      }
  }
  std::vector<double> p, m, v;
  int t = 0;
};

TEST(RowStep, of_sparse_adam_is_its_definition_over_the_rows_of_the_gradient) {
  for (const SparseAdamOptions& options :
       {SparseAdamOptions{.lr = 0.05}, SparseAdamOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3},
        SparseAdamOptions{.lr = 0.05, .maximize = true}}) {
    Model model(true, kFloat64);
    ByHand hand(model.weight());
    SparseAdam adam(model.table.parameters(), options);
    for (int64_t t = 0; t < 12; ++t) {
      model.learn(t);
      const Tensor before = model.weight().detach().clone();
      const RowGrad g = model.weight().row_grad();
      hand.step(g, options);
      adam.step();
      const Tensor expected = from_vector(hand.p, model.weight().sizes());
      ASSERT_TRUE(testing::close(model.weight(), expected, 1e-12, 1e-13)) << t;
      const std::vector<int64_t> rows = g.rows.to_vector<int64_t>();
      for (int64_t row = 0; row < kCount; ++row)
        EXPECT_EQ(equal(model.weight().select(0, row), before.select(0, row)),
                  std::find(rows.begin(), rows.end(), row) == rows.end());
    }
    EXPECT_EQ(adam.steps(0), 12);
  }
}

TEST(RowStep, of_sparse_adam_takes_a_dense_gradient_as_one_with_all_rows) {
  Model sparse(true), dense(false);
  SparseAdam a(sparse.table.parameters(), {.lr = 0.1}), b(dense.table.parameters(), {.lr = 0.1});
  sparse.table.forward(arange(kCount)).square().sum().backward();
  dense.table.forward(arange(kCount)).square().sum().backward();
  a.step(), b.step();
  EXPECT_TRUE(same_bits(sparse.weight(), dense.weight()));
}

TEST(RowStep, is_refused_by_name_where_rows_without_a_gradient_move) {
  Model model(true);
  model.learn(1);
  const Tensor before = model.weight().detach().clone();
  const auto refused = [&]<class Opt>(Opt opt) {
    for (const std::string& text :
         {error_of<ValueError>([&] { opt->step(); }), error_of<ValueError>([&] { opt->step_clipped(1); })}) {
      EXPECT_TRUE(has(text, std::string(opt->name()) + ": parameter 0 of sizes [23, 5]"));
      EXPECT_TRUE(has(text, "no exact form over rows"));
    }
    EXPECT_EQ(opt->steps(0), 0);
  };
  const std::vector<Tensor> params = model.table.parameters();
  refused(std::make_unique<Adagrad>(params, AdagradOptions{.weight_decay = 0.1}));
  refused(std::make_unique<Adam>(params));
  refused(std::make_unique<AdamW>(params));
  refused(std::make_unique<QHM>(params));
  refused(std::make_unique<QHAdam>(params));
  refused(std::make_unique<RMSprop>(params));
  refused(std::make_unique<Adadelta>(params));
  refused(std::make_unique<Adamax>(params));
  refused(std::make_unique<Rprop>(params));
  EXPECT_TRUE(same_bits(model.weight(), before));
  model.weight().set_grad(model.weight().row_grad().to_dense());  // as the text says
  Adam(params).step();
  EXPECT_FALSE(same_bits(model.weight(), before));
}

/// A lazy rule of the user.
struct RowSign {
  struct Options {
    double lr = 1e-2;
  };
  static constexpr const char* kName = "RowSign";
  static constexpr int kState = 1;
  static bool over_rows(const Options&) { return true; }
  double lr;
  RowSign(const Options& o, int64_t) : lr(o.lr) {}
  template <class V> void operator()(V& p, const V& g, V* s) const {
    s[0] += V(1);
    p -= lr * select(g > V(0), V(1), V(-1));
  }
};

TEST(RowStep, is_open_to_a_users_rule_that_says_so) {
  Model model(true);
  Fused<RowSign> opt(model.table.parameters(), {.lr = 0.5});
  model.learn(0);
  opt.step();
  for (const auto& [name, value] : opt.state_dict())
    if (name == "0.state0") {
      EXPECT_EQ(value.sum({1}).to_vector<int64_t>()[7], kDim);
      EXPECT_EQ(value.sum().item<int64_t>(), 4 * kDim);  // rows 0, 1, 2, 7
    }
}

TEST(RowStep, of_saved_and_loaded_lazy_state_goes_on_bit_for_bit) {
  Model whole(true), first(true);
  SparseAdam a(whole.table.parameters(), {.lr = 0.1}), b(first.table.parameters(), {.lr = 0.1});
  for (int64_t t = 0; t < 5; ++t) whole.learn(t), a.step(), first.learn(t), b.step();
  Model second(true);
  second.table.load_state_dict(first.table.state_dict());
  SparseAdam c(second.table.parameters(), {.lr = 0.7});
  c.load_state_dict(b.state_dict());
  for (int64_t t = 5; t < 10; ++t) whole.learn(t), a.step(), second.learn(t), c.step();
  EXPECT_TRUE(same_bits(whole.weight(), second.weight()));
  EXPECT_EQ(c.steps(0), 10);
}

TEST(RowStep, never_writes_a_block_that_a_graph_holds) {
  Model model(true), plain(true);
  mark_concurrent(model.weight());
  SparseAdam a(model.table.parameters(), {.lr = 0.1}), b(plain.table.parameters(), {.lr = 0.1});
  for (int64_t t = 0; t < 4; ++t) {
    model.learn(t), plain.learn(t);
    const Tensor before = model.weight().detach().clone();
    const Tensor kept = t % 2 == 0 ? snapshot(model.weight()) : before;
    a.step(), b.step();
    EXPECT_TRUE(same_bits(kept, before));
  }
  EXPECT_TRUE(same_bits(model.weight().detach().clone(), plain.weight().detach().clone()));
}

TEST(RowStep, shares_its_call_with_the_steps_of_dense_parameters) {
  Model model(true);
  nn::Linear head(kDim, 2);
  std::vector<Tensor> params = model.table.parameters();
  for (const Tensor& p : head.parameters()) params.push_back(p);
  SparseAdam adam(params, {.lr = 0.1});
  head.forward(model.table.forward(ids_of_step(1))).square().sum().backward();
  adam.step();
  EXPECT_EQ(adam.kernel_calls(), 1);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(adam.steps(i), 1);
}

TEST(RowClip, counts_and_scales_the_values) {
  for (const double p : {1.0, 2.0, 3.0, HUGE_VAL}) {
    Model sparse(true), dense(false);
    sparse.learn(2), dense.learn(2);
    const std::vector<Tensor> left = sparse.table.parameters(), right = dense.table.parameters();
    const double total = clip_grad_norm(right, 0.7, p);
    EXPECT_NEAR(clip_grad_norm(left, 0.7, p), total, 1e-12 * total);
    EXPECT_TRUE(sparse.weight().row_grad().defined());
    EXPECT_TRUE(testing::close(sparse.weight().grad(), dense.weight().grad(), 1e-6, 0));
    sparse.learn(2), dense.learn(2);
    EXPECT_NEAR(clip_grad_norm(left, 0.7, p, true), total, 1e-12 * total);
    EXPECT_NEAR(
        grad_norm(std::vector<Tensor>{sparse.weight().row_grad().values}, 0.7, p).total.item<double>(),
        std::min(total, 0.7), 1e-5);
  }
}

TEST(RowClip, joined_with_a_step_has_the_bits_of_both) {
  Model one(true), two(true);
  SparseAdam a(one.table.parameters(), {.lr = 0.1}), b(two.table.parameters(), {.lr = 0.1});
  for (int64_t t = 0; t < 3; ++t) {
    one.learn(t), two.learn(t);
    const double total = clip_grad_norm(two.table.parameters(), 0.7);
    EXPECT_EQ(a.step_clipped(0.7).item<double>(), total);
    b.step();
    EXPECT_TRUE(same_bits(one.weight(), two.weight()));
  }
}

TEST(RowClip, clamps_the_values) {
  Model sparse(true), dense(false);
  sparse.learn(2), dense.learn(2);
  clip_grad_value(sparse.table.parameters(), 0.3);
  clip_grad_value(dense.table.parameters(), 0.3);
  EXPECT_TRUE(sparse.weight().row_grad().defined());
  EXPECT_TRUE(same_bits(sparse.weight().grad(), dense.weight().grad()));
}

TEST(RowScaler, unscales_the_values_and_skips_an_overflow) {
  Model scaled(true), plain(true);
  SparseAdam a(scaled.table.parameters(), {.lr = 0.1}), b(plain.table.parameters(), {.lr = 0.1});
  GradScaler scaler({.init_scale = 8});
  scaler.scale(zeros({1}));
  for (int64_t t = 0; t < 3; ++t) {
    scaled.learn(t, 8), plain.learn(t);
    scaler.step(a), b.step();
    EXPECT_TRUE(same_bits(scaled.weight(), plain.weight()));
    scaler.update();
  }
  scaled.learn(3, INFINITY);
  scaler.step(a);
  EXPECT_TRUE(scaler.found_nonfinite());
  EXPECT_EQ(a.steps(0), 3);
  EXPECT_TRUE(same_bits(scaled.weight(), plain.weight()));
}

}  // namespace
}  // namespace weft::optim
