// Row-wise gradients (row_grad.h): the same numbers as the dense gradient, and sums with others. Also the
// parts of the engine that make them dense or refuse them.
#include <cmath>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/checkpoint.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/gradcheck.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/tensor/factories.h>

#include "support/errors.h"
#include "support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

constexpr int64_t kRows = 11, kWidth = 3;

Tensor ids_of(const std::vector<int64_t>& ids) {
  return from_vector(ids, {static_cast<int64_t>(ids.size())});
}

Tensor random_rows(const Shape& sizes, uint64_t seed, DType dtype = kFloat32) {
  Generator generator(seed);
  return randn(sizes, {.dtype = dtype}, &generator);
}

Tensor table_leaf(DType dtype = kFloat32) { return random_rows({kRows, kWidth}, 5, dtype).requires_grad_(); }

/// The gradient of a table looked up at `ids`, sparse or dense.
Tensor table_after(const Tensor& ids, bool sparse, int64_t padding = -1, DType dtype = kFloat32) {
  const Tensor w = table_leaf(dtype);
  const Tensor y = embedding(w, ids, padding, sparse);
  y.backward(random_rows(y.sizes(), 7, dtype));
  return w;
}

std::vector<int64_t> grad_rows(const Tensor& w) { return w.row_grad().rows.to_vector<int64_t>(); }

TEST(RowGrad, has_the_rows_of_the_look_ups_and_the_bits_of_the_dense_gradient) {
  const Tensor repeated = ids_of({7, 2, 7, 9, 2, 7, 0});
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const int64_t padding : {int64_t{-1}, int64_t{7}, int64_t{10}}) {
      const Tensor w = table_after(repeated, true, padding, dtype);
      const RowGrad g = w.row_grad();
      ASSERT_TRUE(g.defined());
      EXPECT_EQ(g.sizes, w.sizes());
      EXPECT_EQ(grad_rows(w),
                padding == 7 ? (std::vector<int64_t>{0, 2, 9}) : (std::vector<int64_t>{0, 2, 7, 9}));
      EXPECT_EQ(g.values.sizes(), (Shape{g.rows.numel(), kWidth}));
      const Tensor dense = table_after(repeated, false, padding, dtype);
      EXPECT_FALSE(dense.row_grad().defined());
      EXPECT_TRUE(same_bits(g.to_dense(), dense.grad())) << to_string(dtype) << padding;
      EXPECT_TRUE(same_bits(w.grad(), dense.grad()));
    }
}

TEST(RowGrad, takes_ids_of_any_shape_and_either_dtype) {
  const Tensor wide = ids_of({4, 1, 4, 8, 10, 1}).view({2, 3});
  for (const Tensor& ids : {wide, wide.to(kInt32), wide.t()}) {
    const Tensor w = table_after(ids, true);
    EXPECT_EQ(grad_rows(w), (std::vector<int64_t>{1, 4, 8, 10}));
    EXPECT_TRUE(same_bits(w.grad(), table_after(ids, false).grad()));
  }
}

TEST(RowGrad, without_a_look_up_has_no_rows) {
  for (const auto& ids : {std::vector<int64_t>{}, std::vector<int64_t>{3, 3}}) {
    const Tensor w = table_after(ids_of(ids), true, 3);
    ASSERT_TRUE(w.row_grad().defined());
    EXPECT_EQ(w.row_grad().rows.numel(), 0);
    EXPECT_TRUE(same_bits(w.grad(), zeros({kRows, kWidth})));
  }
}

TEST(RowGrad, of_several_passes_adds_up_as_the_dense_one_does) {
  const Tensor sparse = table_leaf(), dense = table_leaf();
  for (const auto& ids : {std::vector<int64_t>{5, 1, 5}, std::vector<int64_t>{1, 10, 0},
                          std::vector<int64_t>{}, std::vector<int64_t>{5}})
    for (const auto& [w, on] : {std::pair(sparse, true), std::pair(dense, false)}) {
      const Tensor y = embedding(w, ids_of(ids), -1, on);
      y.backward(random_rows(y.sizes(), 3 + ids.size()));
    }
  EXPECT_EQ(grad_rows(sparse), (std::vector<int64_t>{0, 1, 5, 10}));
  EXPECT_TRUE(same_bits(sparse.grad(), dense.grad()));
  sparse.zero_grad();
  EXPECT_FALSE(sparse.row_grad().defined());
  EXPECT_FALSE(sparse.grad().defined());
}

TEST(RowGrad, of_two_look_ups_in_one_pass_is_row_wise) {
  const Tensor sparse = table_leaf(), dense = table_leaf();
  for (const auto& [w, on] : {std::pair(sparse, true), std::pair(dense, false)})
    (embedding(w, ids_of({2, 4}), -1, on) * embedding(w, ids_of({4, 6}), -1, on)).sum().backward();
  EXPECT_EQ(grad_rows(sparse), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_TRUE(same_bits(sparse.grad(), dense.grad()));
}

TEST(RowGrad, becomes_dense_when_a_dense_gradient_is_added) {
  const Tensor x = random_rows({2, kWidth}, 9);
  const auto use = [&](const Tensor& w, bool sparse, const std::string& order) {
    for (const char step : order) {
      const Tensor y = embedding(w, ids_of({3, 8, 3}), -1, sparse).sum(), z = (linear(x, w) * 0.7).sum();
      (step == 'e' ? y : step == 'l' ? z : y + z).backward();
    }
  };
  for (const char* order : {"el", "le", "b", "ebe", "bl"}) {
    const Tensor sparse = table_leaf(), dense = table_leaf();
    use(sparse, true, order), use(dense, false, order);
    EXPECT_FALSE(sparse.row_grad().defined()) << order;
    EXPECT_TRUE(same_bits(sparse.grad(), dense.grad())) << order;
    sparse.grad().mul_(2);  // its own memory
  }
}

TEST(RowGrad, shows_in_grad_as_a_copy_that_refuses_writes) {
  const Tensor w = table_after(ids_of({1, 4}), true);
  EXPECT_TRUE(has(error_of<ValueError>([&] { w.grad().mul_(2); }), "row_grad() has its values"));
  EXPECT_THROW(w.grad().data<float>(), ValueError);
  EXPECT_NE(w.grad().data<const float>(), nullptr);
  const Tensor before = w.grad();
  w.row_grad().values.mul_(2);  // shares memory with the gradient
  EXPECT_TRUE(same_bits(w.grad(), before * 2));
}

TEST(RowGrad, has_rows_that_nobody_changes_after_the_check) {
  const Tensor w = table_after(ids_of({1, 4}), true);
  EXPECT_THROW(w.row_grad().rows.fill_(kRows), ValueError);
  EXPECT_THROW(w.row_grad().rows.data<int64_t>(), ValueError);
  Tensor rows = ids_of({2, 9});
  w.set_row_grad({w.sizes(), rows, random_rows({2, kWidth}, 1)});
  rows.fill_(kRows);
  EXPECT_EQ(grad_rows(w), (std::vector<int64_t>{2, 9}));
  w.set_row_grad(w.row_grad());
  EXPECT_EQ(grad_rows(w), (std::vector<int64_t>{2, 9}));
}

TEST(RowGrad, is_set_by_hand_and_checked) {
  const Tensor w = table_leaf();
  const Tensor values = random_rows({2, kWidth}, 1);
  w.set_row_grad({w.sizes(), ids_of({2, 9}), values});
  EXPECT_EQ(grad_rows(w), (std::vector<int64_t>{2, 9}));
  EXPECT_TRUE(same_bits(w.grad().select(0, 9), values.select(0, 1)));
  const auto refused = [&]<class E>(E*, const RowGrad& g) {
    EXPECT_THROW(w.set_row_grad(g), E);
    EXPECT_EQ(grad_rows(w), (std::vector<int64_t>{2, 9}));
  };
  refused(static_cast<ValueError*>(nullptr), {w.sizes(), ids_of({9, 2}), values});
  refused(static_cast<ValueError*>(nullptr), {w.sizes(), ids_of({2, 2}), values});
  refused(static_cast<ValueError*>(nullptr), {w.sizes(), Tensor(), values});
  refused(static_cast<IndexError*>(nullptr), {w.sizes(), ids_of({-1, 2}), values});
  refused(static_cast<IndexError*>(nullptr), {w.sizes(), ids_of({2, kRows}), values});
  refused(static_cast<ShapeError*>(nullptr), {w.sizes(), ids_of({1, 2, 3}), values});
  refused(static_cast<ShapeError*>(nullptr), {{kRows + 1, kWidth}, ids_of({1, 2}), values});
  refused(static_cast<ShapeError*>(nullptr), {{kRows * kWidth}, ids_of({1, 2}), values});
  refused(static_cast<DTypeError*>(nullptr), {w.sizes(), ids_of({1, 2}).to(kInt32), values});
  refused(static_cast<DTypeError*>(nullptr), {w.sizes(), ids_of({1, 2}), values.to(kFloat64)});
  w.set_row_grad({});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_THROW(RowGrad().to_dense(), ValueError);
}

TEST(RowGrad, is_dense_for_a_weight_that_an_operation_made) {
  const Tensor sparse = table_leaf(), dense = table_leaf();
  for (const auto& [w, on] : {std::pair(sparse, true), std::pair(dense, false)}) {
    const Tensor made = w * 2;
    made.retain_grad();
    embedding(made, ids_of({6, 0, 6}), -1, on).sum().backward();
    EXPECT_FALSE(made.row_grad().defined());
    EXPECT_EQ(made.grad().sizes(), w.sizes());
  }
  EXPECT_FALSE(sparse.row_grad().defined());
  EXPECT_TRUE(same_bits(sparse.grad(), dense.grad()));
}

TEST(RowGrad, is_dense_where_grad_returns_it) {
  const Tensor w = table_leaf();
  Tensor dw = grad({embedding(w, ids_of({6, 0, 6}), -1, true).sum()}, {w}).front();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(dw.sizes(), w.sizes());
  EXPECT_EQ(dw.select(0, 6).to_vector<double>(), (std::vector<double>{2, 2, 2}));
  dw.mul_(2);  // the caller's own
}

TEST(RowGrad, is_dense_and_recorded_under_create_graph) {
  const Tensor w = table_leaf(kFloat64);
  const TensorFunction f = [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
    return {embedding(x[0], ids_of({6, 0, 6}), -1, true).square()};
  };
  EXPECT_TRUE(gradcheck(f, {w}).ok);
  EXPECT_TRUE(gradgradcheck(f, {w}).ok);
  w.zero_grad();
  f({w})[0].sum().backward({}, false, true);
  EXPECT_FALSE(w.row_grad().defined());
  EXPECT_TRUE(w.grad().requires_grad());
}

TEST(RowGrad, is_refused_by_hooks_of_dense_gradients_and_seen_by_the_others) {
  const Tensor w = table_leaf();
  const auto pass = [&] {
    w.zero_grad();
    embedding(w, ids_of({1, 2}), -1, true).sum().backward();
  };
  {
    const ScopedHook hook(register_hook(w, [](const Tensor&) { return Tensor(); }));
    const std::string text = error_of<AutogradError>(pass);
    EXPECT_TRUE(has(text, "gradient of sizes [11, 3] is row-wise"));
    EXPECT_TRUE(has(text, "register_post_accumulate_hook"));
    EXPECT_FALSE(w.grad().defined());
  }
  {
    const ScopedHook hook(register_pre_hook(gradient_edge(w).node, [](GradList&) {}));
    EXPECT_THROW(pass(), AutogradError);
  }
  {
    const Tensor y = embedding(w, ids_of({1, 2}), -1, true);
    const ScopedHook hook(register_post_hook(gradient_edge(y).node, [](GradList&, const GradList&) {}));
    EXPECT_THROW(y.sum().backward(), AutogradError);
  }
  std::vector<int64_t> seen;
  const ScopedHook hook(
      register_post_accumulate_hook(w, [&](const Tensor& leaf) { seen = grad_rows(leaf); }));
  pass();
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2}));
}

TEST(RowGrad, passes_through_a_checkpoint) {
  const Tensor captured = table_leaf(), given = table_leaf();
  const std::vector<Tensor> y = checkpoint(
      [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
        return {embedding(captured, ids_of({3, 1}), -1, true) + embedding(x[0], ids_of({4, 4}), -1, true)};
      },
      {given});
  y[0].sum().backward();
  EXPECT_EQ(grad_rows(captured), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(grad_rows(given), (std::vector<int64_t>{4}));
}

TEST(RowGrad, with_a_nan_is_named_in_anomaly_mode) {
  const DetectAnomaly on;
  const Tensor w = table_leaf();
  const Tensor y = embedding(w, ids_of({3}), -1, true);
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.backward(full(y.sizes(), std::nan(""))); }), "embedding"));
}

/// A sink that knows dense gradients alone.
class Plain final : public GradSink {
 public:
  void accumulate(const Tensor&, Tensor g, bool) override { last = std::move(g); }
  Tensor last;
};

TEST(RowGrad, is_dense_for_a_sink_that_knows_no_rows) {
  const Tensor w = table_leaf();
  Plain sink;
  Pass pass({.sink = &sink});
  const Edge root = gradient_edge(embedding(w, ids_of({3, 3}), -1, true).sum());
  pass.mark({&root, 1});
  pass.deliver(root, ones({}));
  pass.run();
  EXPECT_EQ(sink.last.sizes(), w.sizes());
  EXPECT_EQ(sink.last.select(0, 3).to_vector<double>(), (std::vector<double>{2, 2, 2}));
}

struct Doubled {
  static Tensor forward(FunctionContext&, const Tensor& w) { return w * 2; }
  static GradList backward(FunctionContext&, const GradList& g) {
    EXPECT_EQ(g[0].sizes(), (Shape{kRows, kWidth}));
    return {g[0] * 2};
  }
};

TEST(RowGrad, is_dense_for_a_function_of_the_user) {
  const Tensor w = table_leaf();
  embedding(apply_function<Doubled>(w), ids_of({3}), -1, true).sum().backward();
  EXPECT_EQ(w.grad().sum().item<double>(), 2 * kWidth);
}

}  // namespace
}  // namespace weft
