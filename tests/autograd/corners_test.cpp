// Indices of both types, tensors without dims, dims of 0, and one memory met twice. These are values and
// refusals that the op table does not spell out.
#include <gtest/gtest.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/nn/nn.h>
#include "support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

Tensor ids(const std::vector<int64_t>& v, DType t = kInt64) {
  return from_vector(v, {static_cast<int64_t>(v.size())}).to(t);
}
Tensor number(double x) { return scalar_tensor(x); }
std::string sizes(const Tensor& x) { return to_string(x.sizes()); }
double value(const Tensor& x) { return x.item<double>(); }

// ---- indices

TEST(Indices, losses_take_int32_targets_of_every_shape) {
  const Tensor x = arange(60).to(kFloat32).view({5, 3, 4}) * 0.1;
  const Tensor wide = from_vector<int64_t>({0, 1, 2, 1, 0, 2, 2, 1, 0, -100, 1, 2, 0, 2, 1, 0, 1, 1, 0, 2},
                                           {5, 4}),
               narrow = wide.to(kInt32);
  const CrossEntropyOptions weighted{.weight = tensor({1, 2, 3})};
  EXPECT_TRUE(equal(cross_entropy(x, wide), cross_entropy(x, narrow)));
  EXPECT_TRUE(equal(cross_entropy(x, wide, weighted), cross_entropy(x, narrow, weighted)));
  EXPECT_TRUE(
      equal(cross_entropy(x, wide.t().contiguous().t()), cross_entropy(x, narrow.t().contiguous().t())));
  EXPECT_TRUE(equal(nll_loss(x, wide, weighted), nll_loss(x, narrow, weighted)));
  EXPECT_TRUE(equal(cross_entropy(x[0][0], wide[0][1]), cross_entropy(x[0][0], narrow[0][1])));
  Tensor w = (arange(12).to(kFloat32).view({3, 4}) * 0.1).requires_grad_();
  const Tensor rows = arange(80).to(kFloat32).view({20, 4}) * 0.01, many = wide.reshape({20}),
               few = narrow.reshape({20});
  EXPECT_TRUE(
      equal(linear_cross_entropy(rows, w, Tensor(), many), linear_cross_entropy(rows, w, Tensor(), few)));
  EXPECT_TRUE(equal(grad({linear_cross_entropy(rows, w, Tensor(), many)}, {w})[0],
                    grad({linear_cross_entropy(rows, w, Tensor(), few)}, {w})[0]));
}

TEST(Indices, an_ignored_class_beyond_int32_is_met_by_no_target) {
  const Tensor x = tensor({{1, 2, 4}});
  EXPECT_TRUE(equal(cross_entropy(x, ids({1}), {.ignore_index = INT64_MIN}),
                    cross_entropy(x, ids({1}, kInt32), {.ignore_index = INT64_MIN})));
}

TEST(Indices, errors_begin_with_the_operation_that_was_called) {
  const Tensor x = zeros({3, 5}), w = zeros({5, 5}), far = ids({1, 9, 2}),
               table = full({3, 2}, 9, {.dtype = kInt64});
  EXPECT_TRUE(error_of<IndexError>([&] {
                linear_cross_entropy(x, w, Tensor(), far);
              }).starts_with("linear_cross_entropy: target 9"));
  EXPECT_TRUE(error_of<IndexError>([&] { cross_entropy(x, far); }).starts_with("cross_entropy: target 9"));
  EXPECT_TRUE(error_of<IndexError>([&] { nll_loss(x, far); }).starts_with("nll_loss: "));
  EXPECT_TRUE(error_of<IndexError>([&] { take_along(x, table, 1); }).starts_with("take_along: index 9"));
  EXPECT_TRUE(error_of<DTypeError>([&] { take_along(x, zeros({3, 2}), 1); }).starts_with("take_along: "));
  EXPECT_TRUE(error_of<DTypeError>([&] {
                scatter(x, 1, zeros({3, 2}), zeros({3, 2}));
              }).starts_with("scatter: "));
  EXPECT_TRUE(error_of<DTypeError>([&] {
                masked_fill(x, zeros({3, 5}, {.dtype = kInt64}), 1);
              }).starts_with("masked_fill: "));
  EXPECT_TRUE(error_of<DTypeError>([&] {
                nn::Categorical::from_logits(x).log_prob(zeros({3}));
              }).starts_with("Categorical: "));
}

TEST(Indices, scatters_take_int32) {
  const Tensor x = zeros({5}), at = ids({4, 1}), src = tensor({2, 3});
  EXPECT_TRUE(equal(scatter(x, 0, at, src), scatter(x, 0, at.to(kInt32), src)));
  EXPECT_TRUE(equal(nn::Categorical::from_logits(zeros({2, 3})).log_prob(ids({0, 2})),
                    nn::Categorical::from_logits(zeros({2, 3})).log_prob(ids({0, 2}, kInt32))));
}

TEST(Indices, class_weights_of_another_dtype_are_converted) {
  const Tensor x = tensor({{1, 2, 4}, {0, 1, 3}}), t = ids({1, 2});
  for (const DType d : {kFloat64, kFloat16, kInt64, kInt32, kUInt8}) {
    const CrossEntropyOptions same{.weight = tensor({1, 2, 3})}, other{.weight = tensor({1, 2, 3}).to(d)};
    EXPECT_TRUE(equal(cross_entropy(x, t, other), cross_entropy(x, t, same)));
    EXPECT_TRUE(equal(nll_loss(x, t, other), nll_loss(x, t, same)));
    EXPECT_TRUE(equal(linear_cross_entropy(x, ones({3, 3}), Tensor(), t, other),
                      linear_cross_entropy(x, ones({3, 3}), Tensor(), t, same)));
  }
}

TEST(Indices, class_weights_that_require_grad_are_refused) {
  const CrossEntropyOptions options{.weight = ones({3}).requires_grad_()};
  const Tensor x = zeros({2, 3}), t = ids({0, 1});
  EXPECT_TRUE(error_of<AutogradError>([&] { cross_entropy(x, t, options); }).starts_with("cross_entropy: "));
  EXPECT_TRUE(error_of<AutogradError>([&] { nll_loss(x, t, options); }).starts_with("nll_loss: "));
  EXPECT_TRUE(error_of<AutogradError>([&] {
                linear_cross_entropy(x, ones({3, 3}), Tensor(), t, options);
              }).starts_with("linear_cross_entropy: "));
  NoGrad off;
  EXPECT_NO_THROW(cross_entropy(x, t, options));
}

// ---- no dims

TEST(NoDims, what_needs_a_dim_refuses_a_number) {
  const Tensor x = number(3);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { cat({x, x}); }), "cat: "));
  EXPECT_TRUE(error_of<IndexError>([&] { narrow(x, 0, 0, 0); }).starts_with("narrow: "));
  EXPECT_TRUE(error_of<IndexError>([&] { slice(x, 0, 0, 1); }).starts_with("slice: "));
  EXPECT_TRUE(error_of<IndexError>([&] { select(x, 0, 0); }).starts_with("select: "));
  EXPECT_TRUE(error_of<IndexError>([&] { unbind(x); }).starts_with("unbind: "));
  EXPECT_TRUE(error_of<IndexError>([&] { split(x, 1); }).starts_with("split: "));
  EXPECT_TRUE(error_of<IndexError>([&] { split(x, Shape{1}, 0); }).starts_with("split: "));
  EXPECT_TRUE(error_of<IndexError>([&] { chunk(x, 2); }).starts_with("chunk: "));
  EXPECT_TRUE(error_of<IndexError>([&] { roll(x, 1, 0); }).starts_with("roll: "));
  EXPECT_TRUE(error_of<IndexError>([&] { diagonal(x); }).starts_with("diagonal: "));
  EXPECT_TRUE(error_of<IndexError>([&] { x.size(0); }).starts_with("size: "));
  EXPECT_THROW(x[0], IndexError);
}

// A number whose sizes were longer once.
TEST(NoDims, a_number_picked_from_a_line_has_no_dims_left) {
  const Tensor x = ones({1}).select(0, 0);
  EXPECT_EQ(sizes(squeeze(x, 0)), "[]");
  EXPECT_EQ(sizes(squeeze(x, -1)), "[]");
  EXPECT_THROW(narrow(x, 0, 0, 1), IndexError);
  EXPECT_THROW(x.size(0), IndexError);
}

TEST(NoDims, dim_0_and_minus_1_are_a_numbers_own_where_a_line_is_walked) {
  const Tensor x = number(3);
  for (const int64_t d : {0, -1}) {
    EXPECT_EQ(value(sum(x, {d})), 3);
    EXPECT_EQ(value(mean(x, {d}, true)), 3);
    EXPECT_EQ(value(prod(x, d)), 3);
    EXPECT_EQ(value(amax(x, {d})), 3);
    EXPECT_EQ(value(max(x, d).values), 3);
    EXPECT_EQ(value(argmin(x, d)), 0);
    EXPECT_EQ(value(logsumexp(x, d)), 3);
    EXPECT_EQ(value(softmax(x, d)), 1);
    EXPECT_EQ(value(log_softmax(x, d)), 0);
    EXPECT_EQ(value(cumsum(x, d)), 3);
    EXPECT_EQ(value(cumprod(x, d)), 3);
    EXPECT_EQ(value(sort(x, d).values), 3);
    EXPECT_EQ(value(topk(x, 1, d).indices), 0);
    EXPECT_EQ(sizes(squeeze(x, d)), "[]");
    EXPECT_EQ(sizes(unsqueeze(x, d)), "[1]");
    EXPECT_EQ(sizes(flatten(x, d, d)), "[1]");
    EXPECT_EQ(sizes(transpose(x, d, d)), "[]");
    EXPECT_EQ(value(flip(x, {d})), 3);
    EXPECT_EQ(sizes(stack({x, x}, d)), "[2]");
  }
  for (const int64_t d : {1, -2}) {
    EXPECT_THROW(sum(x, {d}), IndexError);
    EXPECT_THROW(max(x, d), IndexError);
    EXPECT_THROW(cumsum(x, d), IndexError);
    EXPECT_THROW(cumprod(x, d), IndexError);
    EXPECT_THROW(sort(x, d), IndexError);
    EXPECT_THROW(softmax(x, d), IndexError);
    EXPECT_THROW(flatten(x, d), IndexError);
    EXPECT_THROW(squeeze(x, d), IndexError);
    EXPECT_THROW(unsqueeze(x, d), IndexError);
  }
}

TEST(NoDims, indexing_takes_a_number_as_a_line_of_one) {
  Tensor x = number(3).requires_grad_();
  const Tensor zero = scalar_tensor(0, {.dtype = kInt64});
  const auto slope = [&](const Tensor& y) {
    const Tensor g = grad({sum(y)}, {x})[0];
    return g.dim() == 0 ? value(g) : NAN;
  };
  EXPECT_EQ(sizes(gather(x, 0, zero)), "[]");
  EXPECT_EQ(sizes(gather(x, 0, ids({0, 0}))), "[2]");
  EXPECT_EQ(slope(gather(x, 0, ids({0, 0}))), 2);
  EXPECT_EQ(value(gather(tensor({1, 2, 4}), 0, scalar_tensor(2, {.dtype = kInt64}))), 4);
  EXPECT_EQ(value(index_select(x, 0, ids({0}))), 3);
  EXPECT_EQ(slope(index_select(x, 0, ids({0}))), 1);
  EXPECT_EQ(sizes(index_select(tensor({1, 2, 4}), 0, zero)), "[1]");
  EXPECT_EQ(value(index_add(x, 0, ids({0}), number(4))), 7);
  EXPECT_EQ(slope(index_add(x, 0, ids({0}), x)), 2);
  EXPECT_EQ(value(scatter(x, 0, zero, number(4))), 4);
  EXPECT_EQ(slope(scatter(x, 0, zero, number(4))), 0);
  EXPECT_EQ(value(scatter_add(x, 0, zero, number(4))), 7);
  EXPECT_EQ(value(take_along(x, zero, 0)), 3);
  EXPECT_EQ(sizes(masked_select(x, scalar_tensor(1, {.dtype = kBool}))), "[1]");
  EXPECT_EQ(sizes(nonzero(x.detach())), "[1, 0]");
  EXPECT_EQ(sizes(embedding(ones({3, 2}), zero)), "[2]");
  EXPECT_EQ(sizes(one_hot(zero, 3)), "[3]");
  EXPECT_THROW(gather(x, 0, ids({1})), IndexError);
  EXPECT_THROW(index_select(x, 0, ids({0, 0})), ShapeError);
  EXPECT_THROW(index_add(x, 0, ids({1}), number(4)), IndexError);
}

// ---- dims of 0

TEST(EmptyDims, adding_at_an_index_of_nothing_is_refused) {
  EXPECT_TRUE(error_of<IndexError>([] {
                index_add(zeros({0, 3}), 0, ids({0}), zeros({1, 3}));
              }).starts_with("index_add: index 0"));
  EXPECT_THROW(index_add(zeros({3, 0, 2}), 1, ids({0}), zeros({3, 1, 2})), IndexError);
  EXPECT_THROW(index_select(zeros({0, 3}), 0, ids({0})), IndexError);
  EXPECT_THROW(gather(zeros({0, 3}), 0, zeros({1, 3}, {.dtype = kInt64})), IndexError);
  EXPECT_THROW(scatter_add(zeros({0, 3}), 0, zeros({1, 3}, {.dtype = kInt64}), zeros({1, 3})), IndexError);
  EXPECT_THROW(embedding(zeros({0, 3}), ids({0})), IndexError);
  EXPECT_EQ(sizes(index_add(zeros({0, 3}), 0, ids({}), zeros({0, 3}))), "[0, 3]");
  EXPECT_EQ(sizes(index_add(zeros({3, 0}), 0, ids({2}), zeros({1, 0}))), "[3, 0]");
  EXPECT_EQ(sizes(index_select(zeros({0, 3}), 1, ids({2, 2}))), "[0, 2]");
}

TEST(EmptyDims, an_index_is_checked_where_rows_are_empty) {
  EXPECT_THROW(index_select(zeros({3, 0}), 0, ids({3})), IndexError);
  EXPECT_THROW(index_add(zeros({3, 0}), 0, ids({3}), zeros({1, 0})), IndexError);
  EXPECT_TRUE(error_of<IndexError>([] {
                zeros({3, 0}).index_add_(0, ids({3}), zeros({1, 0}));
              }).starts_with("index_add_: index 3"));
  EXPECT_THROW(zeros({2, 0, 3}).index_add_(1, ids({0}), zeros({2, 1, 3})), IndexError);
  EXPECT_EQ(sizes(zeros({0, 3}).index_add_(1, ids({2}), zeros({0, 1}))), "[0, 3]");
  EXPECT_THROW(zeros({3, 0}).index_put_({ids({3})}, zeros({1, 0})), IndexError);
  EXPECT_THROW(zeros({3, 0}).index({ids({3})}), IndexError);
  EXPECT_THROW(embedding(zeros({3, 0}), ids({3})), IndexError);
}

TEST(EmptyDims, an_extreme_of_nothing_is_refused_whatever_the_other_dims) {
  for (const Shape& s : {Shape{3, 0}, Shape{3, 0, 0}, Shape{0, 0}}) {
    const Tensor x = zeros(s);
    EXPECT_TRUE(error_of<ShapeError>([&] { amax(x, {1}); }).starts_with("amax: "));
    EXPECT_TRUE(error_of<ShapeError>([&] { amin(x, {1}, true); }).starts_with("amin: "));
    EXPECT_TRUE(error_of<ShapeError>([&] { max(x, 1); }).starts_with("max: "));
    EXPECT_TRUE(error_of<ShapeError>([&] { argmin(x, 1); }).starts_with("argmin: "));
    EXPECT_TRUE(error_of<ShapeError>([&] { max(x); }).starts_with("max: "));
    EXPECT_TRUE(error_of<ShapeError>([&] { norm(x, INFINITY, {1}); }).starts_with("norm: "));
  }
  EXPECT_EQ(sizes(amax(zeros({0, 3}), {1})), "[0]");
  EXPECT_EQ(sizes(max(zeros({0, 3}), 1).indices), "[0]");
}

TEST(EmptyDims, sums_of_nothing_are_0_and_means_are_nan) {
  Tensor x = zeros({3, 0}).requires_grad_();
  EXPECT_EQ(value(sum(x)), 0);
  EXPECT_EQ(value(prod(x)), 1);
  EXPECT_TRUE(equal(sum(x, {1}).detach(), zeros({3})));
  EXPECT_TRUE(equal(prod(x, 1).detach(), ones({3})));
  EXPECT_TRUE(std::isnan(value(mean(x))));
  EXPECT_TRUE(all(isnan(mean(x, {1}))).item<bool>());
  EXPECT_TRUE(all(isnan(var(x, {1}))).item<bool>());
  EXPECT_TRUE(std::isnan(value(weft::std(x))));
  EXPECT_EQ(value(norm(x)), 0);
  EXPECT_EQ(value(norm(x, 3)), 0);
  EXPECT_TRUE(all(logsumexp(x, 1) == -INFINITY).item<bool>());
  EXPECT_TRUE(all(x.detach()).item<bool>());
  EXPECT_FALSE(any(x.detach()).item<bool>());
  EXPECT_TRUE(equal(all(x.detach(), {1}), ones({3}, {.dtype = kBool})));
  EXPECT_TRUE(equal(x.detach(), zeros({3, 0})));
  EXPECT_TRUE(allclose(x, x));
  for (const Tensor& y :
       {sum(x), mean(x, {1}), prod(x, 1), norm(x, 2, {1}), weft::std(x, {1}), logsumexp(x, 1), softmax(x, 1),
        cumsum(x, 1), cumprod(x, 0), sort(x, 1).values, topk(x, 0, 1).values})
    EXPECT_EQ(sizes(grad({sum(y)}, {x})[0]), "[3, 0]") << y.grad_fn_name();
}

TEST(EmptyDims, a_product_over_nothing_is_0) {
  Tensor a = zeros({2, 3, 0}).requires_grad_(), b = zeros({0, 4}).requires_grad_();
  const Tensor y = matmul(a, b);
  EXPECT_TRUE(equal(y.detach(), zeros({2, 3, 4})));
  const auto g = grad({sum(y)}, {a, b});
  EXPECT_EQ(sizes(g[0]), "[2, 3, 0]");
  EXPECT_EQ(sizes(g[1]), "[0, 4]");
  EXPECT_TRUE(equal(linear(zeros({2, 0}), zeros({3, 0}), tensor({1, 2, 3})), tensor({{1, 2, 3}, {1, 2, 3}})));
  EXPECT_TRUE(equal(einsum("ij,jk->ik", {zeros({2, 0}), zeros({0, 3})}), zeros({2, 3})));
  EXPECT_TRUE(equal(bmm(zeros({2, 1, 0}), zeros({2, 0, 1})), zeros({2, 1, 1})));
}

TEST(EmptyDims, a_loss_of_no_rows_has_a_mean_of_nan_and_gradients_of_its_inputs_sizes) {
  Tensor x = zeros({0, 5}).requires_grad_(), w = ones({7, 5}).requires_grad_(),
         b = ones({7}).requires_grad_();
  EXPECT_TRUE(std::isnan(value(cross_entropy(x, ids({})))));
  EXPECT_EQ(value(cross_entropy(x, ids({}), {.reduction = Reduction::kSum})), 0);
  EXPECT_EQ(sizes(grad({cross_entropy(x, ids({}))}, {x})[0]), "[0, 5]");
  EXPECT_TRUE(std::isnan(value(nll_loss(x, ids({}), {.weight = ones({5})}))));
  EXPECT_TRUE(std::isnan(value(mse_loss(x, zeros({0, 5})))));
  const Tensor fused = linear_cross_entropy(x, w, b, ids({}));
  EXPECT_TRUE(std::isnan(value(fused)));
  const auto g = grad({fused}, {x, w, b});
  EXPECT_EQ(sizes(g[0]), "[0, 5]");
  EXPECT_TRUE(equal(g[1], zeros({7, 5})));
  EXPECT_TRUE(equal(g[2], zeros({7})));
  EXPECT_EQ(sizes(cross_entropy(zeros({2, 5, 0}), zeros({2, 0}, {.dtype = kInt64}),
                                {.reduction = Reduction::kNone})),
            "[2, 0]");
}

TEST(EmptyDims, pieces_of_nothing_are_still_pieces) {
  EXPECT_EQ(split(zeros({0, 3}), 0, 0).size(), 1u);
  EXPECT_THROW(split(zeros({0, 3}), 0, 1), ValueError);
  const Tensor x = zeros({0, 3});
  ASSERT_EQ(split(x, 2).size(), 1u);
  EXPECT_EQ(sizes(split(x, 2)[0]), "[0, 3]");
  ASSERT_EQ(chunk(x, 4).size(), 4u);
  EXPECT_EQ(sizes(chunk(x, 4)[3]), "[0, 3]");
  EXPECT_EQ(unbind(x).size(), 0u);
  EXPECT_EQ(unbind(x, 1).size(), 3u);
  EXPECT_THROW(select(x, 0, 0), IndexError);
}

TEST(EmptyDims, arrangements_keep_the_sizes) {
  const Tensor x = zeros({0, 3}), y = zeros({3, 0});
  EXPECT_EQ(sizes(stack({x, x}, 1)), "[0, 2, 3]");
  EXPECT_EQ(sizes(cat({x, ones({2, 3}), x})), "[2, 3]");
  EXPECT_EQ(sizes(flip(y, {0, 1})), "[3, 0]");
  EXPECT_EQ(sizes(roll(x, 1, 0)), "[0, 3]");
  EXPECT_EQ(sizes(tril(y)), "[3, 0]");
  EXPECT_EQ(sizes(diagonal(x)), "[0]");
  EXPECT_EQ(sizes(repeat(x, {2, 2})), "[0, 6]");
  EXPECT_EQ(sizes(repeat(ones({2}), {0})), "[0]");
  EXPECT_TRUE(equal(pad(x, {0, 0, 1, 0}, 7), full({1, 3}, 7)));
  EXPECT_EQ(sizes(dropout(x, 0.5)), "[0, 3]");
  EXPECT_EQ(sizes(multinomial(zeros({0, 3}), 2, true)), "[0, 2]");
  EXPECT_EQ(sizes(one_hot(ids({}), 3)), "[0, 3]");
  EXPECT_EQ(sizes(embedding(ones({3, 2}), ids({}))), "[0, 2]");
  EXPECT_EQ(sizes(masked_select(x, x > 0)), "[0]");
  EXPECT_EQ(sizes(masked_select(ones({2}), zeros({2}, {.dtype = kBool}))), "[0]");
  EXPECT_EQ(sizes(nonzero(y)), "[0, 2]");
  EXPECT_EQ(sizes(layer_norm(y, {0})), "[3, 0]");
}

TEST(EmptyDims, a_recurrent_layer_takes_no_sequences_and_refuses_no_steps) {
  nn::LSTM layer(3, 5, {.num_layers = 2, .bidirectional = true});
  Tensor x = zeros({4, 0, 3}).requires_grad_();
  const nn::RnnOutput out = layer.forward(x);
  EXPECT_EQ(sizes(out.y), "[4, 0, 10]");
  EXPECT_EQ(sizes(out.h), "[4, 0, 5]");
  sum(out.y).backward();
  EXPECT_EQ(sizes(x.grad()), "[4, 0, 3]");
  for (const Tensor& p : layer.parameters()) EXPECT_TRUE(equal(p.grad(), zeros(p.sizes())));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { layer.forward(zeros({0, 2, 3})); }), "the sequence is empty"));
}

// ---- one memory met twice

struct InPlace {
  const char* name;
  void (*run)(Tensor y, const Tensor& x);
};
const InPlace kInPlace[] = {{"copy_", [](Tensor y, const Tensor& x) { y.copy_(x); }},
                            {"add_", [](Tensor y, const Tensor& x) { y.add_(x, 2); }},
                            {"sub_", [](Tensor y, const Tensor& x) { y.sub_(x); }},
                            {"mul_", [](Tensor y, const Tensor& x) { y.mul_(x); }},
                            {"div_", [](Tensor y, const Tensor& x) { y.div_(x); }}};

TEST(Aliases, a_write_from_overlapping_memory_reads_its_source_first) {
  const Tensor start = arange(1, 1601, 1, {}).to(kFloat32).view({40, 40});
  struct Pair {
    const char* name;
    Tensor (*to)(const Tensor&);
    Tensor (*from)(const Tensor&);
  };
  const auto all = [](const Tensor& x) { return x; };
  const Pair pairs[] = {{"itself", all, all},
                        {"its transpose", all, [](const Tensor& x) { return x.t(); }},
                        {"the rows above", [](const Tensor& x) { return x.narrow(0, 1, 39); },
                         [](const Tensor& x) { return x.narrow(0, 0, 39); }},
                        {"the rows below", [](const Tensor& x) { return x.narrow(0, 0, 39); },
                         [](const Tensor& x) { return x.narrow(0, 1, 39); }},
                        {"the columns before", [](const Tensor& x) { return x.narrow(1, 1, 39); },
                         [](const Tensor& x) { return x.narrow(1, 0, 39); }},
                        {"one of its rows", all, [](const Tensor& x) { return x[7]; }},
                        {"one of its numbers", all, [](const Tensor& x) { return x[7][3]; }},
                        {"other places of the block", [](const Tensor& x) { return x.slice(1, 0, 40, 2); },
                         [](const Tensor& x) { return x.slice(1, 1, 40, 2); }}};
  for (const InPlace& op : kInPlace)
    for (const Pair& p : pairs) {
      const Tensor expected = start.clone(), x = start.clone();
      op.run(p.to(expected), p.from(start));
      op.run(p.to(x), p.from(x));
      EXPECT_TRUE(equal(x, expected)) << op.name << " from " << p.name;
    }
}

// Two tensors over one memory of the caller know nothing of each other but their addresses.
TEST(Aliases, memory_of_the_caller_that_two_tensors_share_is_seen) {
  std::vector<float> memory(1001);
  for (const InPlace& op : kInPlace) {
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i + 1);
    const Tensor to = from_blob(memory.data() + 1, {1000}, {}), from = from_blob(memory.data(), {1000}, {});
    const Tensor expected = to.clone();
    op.run(expected, from.clone());
    op.run(to, from);
    EXPECT_TRUE(equal(to, expected)) << op.name;
  }
}

TEST(Aliases, a_write_into_elements_that_share_memory_is_refused) {
  const Tensor base = zeros({8});
  for (const Tensor& y :
       {ones({3}).expand({2, 3}), as_strided(base, {3, 3}, {1, 1}), as_strided(base, {2, 2, 2}, {2, 1, 1})}) {
    for (const InPlace& op : kInPlace)
      EXPECT_TRUE(error_of<ShapeError>([&] { op.run(y, ones(y.sizes())); }).starts_with(op.name)) << op.name;
    Tensor x = y;
    EXPECT_THROW(x.zero_(), ShapeError);
    EXPECT_THROW(x.mul_(2), ShapeError);
    EXPECT_THROW(x.uniform_(), ShapeError);
  }
  EXPECT_TRUE(equal(base, zeros({8})));
}

TEST(Aliases, a_tensor_multiplied_by_itself_in_place_has_the_gradient_of_a_square) {
  for (const bool through_view : {false, true}) {
    Tensor x = tensor({1, 2, 4}).requires_grad_();
    Tensor y = x * 1;
    y.mul_(through_view ? y.view({3}) : y);
    sum(y).backward();
    EXPECT_TRUE(equal(x.grad(), tensor({2, 4, 8})));
  }
  Tensor x = tensor({1, 2, 4}).requires_grad_();
  Tensor y = x * 1;
  y.div_(y);
  sum(y).backward();
  EXPECT_TRUE(equal(x.grad(), zeros({3})));
  Tensor z = tensor({1, 2, 4}).requires_grad_();
  Tensor w = z * 1;
  w.add_(w);
  w.sub_(w.narrow(0, 0, 1));
  sum(w).backward();
  EXPECT_TRUE(equal(z.grad(), tensor({-4, 2, 2})));
}

TEST(Aliases, scatters_into_an_expanded_tensor_write_a_copy) {
  const Tensor row = zeros({3}), x = row.expand({2, 3}), at = from_vector<int64_t>({2, 0, 1, 1}, {2, 2}),
               src = tensor({{1, 2}, {3, 4}});
  EXPECT_TRUE(equal(scatter(x, 1, at, src), tensor({{2, 0, 1}, {0, 4, 0}})));
  EXPECT_TRUE(equal(scatter_add(x, 1, at, src), tensor({{2, 0, 1}, {0, 7, 0}})));
  EXPECT_TRUE(equal(index_add(x, 0, ids({1, 1}), ones({3}).expand({2, 3})), tensor({{0, 0, 0}, {2, 2, 2}})));
  EXPECT_TRUE(equal(row, zeros({3})));
}

}  // namespace
}  // namespace weft
