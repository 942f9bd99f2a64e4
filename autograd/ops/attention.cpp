// scaled_dot_product_attention: one node by the backend's kernel, or composed of products and a softmax. The
// composed form has dropout, a mask that requires grad, create_graph, and dtypes and head sizes for which the
// backend has no kernel. Half types without a kernel of their own are computed as float32.
#include <cmath>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/tape/autocast.h>

namespace weft {

namespace {

constexpr const char* kAttention = "scaled_dot_product_attention";

DType common_type(const Tensor& q, const Tensor& k, const Tensor& v) {
  return promote(promote(q.dtype(), k.dtype()), v.dtype());
}

// f of the arguments in float32, as a half type.
template <class F> Tensor in_float(const F& f, const Tensor& q, const Tensor& k, const Tensor& v) {
  return to(f(to(q, kFloat32), to(k, kFloat32), to(v, kFloat32)), common_type(q, k, v));
}

Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  const NoAutocast plain;  // the products are of the arguments' dtype
  if (is_half(common_type(q, k, v)))
    return in_float([&](const Tensor& a, const Tensor& b, const Tensor& c) { return composed(a, b, c, o); },
                    q, k, v);
  Tensor s = matmul(q * *o.scale, transpose(k, -2, -1));
  if (o.causal) {
    const Tensor taken = ones({s.size(-2), s.size(-1)}, {.dtype = kBool, .device = s.device()});
    s = masked_fill(s, logical_not(tril(taken)), -INFINITY);
  }
  if (o.mask.defined())
    s = o.mask.dtype() == kBool ? masked_fill(s, logical_not(o.mask), -INFINITY) : s + to(o.mask, s.dtype());
  const bool partly = o.causal || o.mask.defined();
  const Tensor none = partly ? all(eq(s.detach(), -INFINITY), {-1}, true) : Tensor();  // rows without a key
  if (partly) s = masked_fill(s, none, 0);
  Tensor p = softmax(s, -1);
  if (partly) p = masked_fill(p, none, 0);
  return matmul(o.dropout == 0 ? p : dropout(p, o.dropout, true, o.generator), v);
}

// All sizes but the last two.
Shape leading(Shape sizes) {
  for (int i = 0; i < 2; ++i) sizes.erase(sizes.size() - 1);
  return sizes;
}

// Checks all arguments. Returns the sizes [.., L, S] of the products.
Shape product_sizes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  for (const Tensor* x : {&q, &k, &v}) {
    launch::check_floating(kAttention, *x);
    launch::check_devices(kAttention, q, *x);
    if (x->dim() < 2) throw ShapeError(str(kAttention, ": takes at least two dims, got ", x->sizes()));
  }
  if (k.size(-1) != q.size(-1))
    throw ShapeError(
        str(kAttention, ": q is ", q.sizes(), ", k is ", k.sizes(), "; their last sizes must be equal"));
  if (v.size(-2) != k.size(-2))
    throw ShapeError(
        str(kAttention, ": k is ", k.sizes(), ", v is ", v.sizes(), "; they must have as many rows"));
  Shape sizes = broadcast(kAttention, broadcast(kAttention, leading(q.sizes()), leading(k.sizes())),
                          leading(v.sizes()));
  sizes.push_back(q.size(-2)), sizes.push_back(k.size(-2));
  if (o.mask.defined()) {
    launch::check_devices(kAttention, q, o.mask);
    if (o.mask.dtype() != kBool) launch::check_floating(kAttention, o.mask);
    if (!(broadcast(kAttention, sizes, o.mask.sizes()) == sizes))
      throw ShapeError(str(kAttention, ": the mask ", o.mask.sizes(), " does not broadcast to ", sizes));
  }
  if (!(o.dropout >= 0 && o.dropout <= 1))
    throw ValueError(str(kAttention, ": dropout must be in [0, 1], is ", o.dropout));
  return sizes;
}

// Without history, of one dtype, and with dense rows that do not overlap, as the kernel reads it.
Tensor dense_rows(const Tensor& x, DType t) {
  const Tensor y = launch::cast(x.detach(), t);
  const Shape& strides = y.strides();
  return strides.back() == 1 && strides[y.dim() - 2] >= y.size(-1) ? y : launch::contiguous(y);
}

Shape with_rows(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows), batch.push_back(columns);
  return batch;
}

// x, broadcast to these sizes, as [B, H, rows, columns].
View heads_of(const Tensor& x, const Shape& sizes) {
  View v = launch::expand_view(x, sizes);
  while (v.ndim() < 4) v.sizes.insert(0, 1), v.strides.insert(0, 0);
  return v;
}

// The tensors of a call as the kernel reads them. They live as long as the views.
struct Fused {
  Tensor q, k, v, mask;
  Shape batch;
  AttentionViews views;

  Fused(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& mask_, DType t,
        const AttentionOptions& o, const Shape& products)
      : q(dense_rows(q_, t)),
        k(dense_rows(k_, t)),
        v(dense_rows(v_, t)),
        mask(!mask_.defined() || mask_.dtype() == kBool ? mask_
                                                        : launch::cast(mask_.detach(), accumulate_type(t))),
        batch(leading(products)) {
    views.q = all(q), views.k = all(k), views.v = all(v);
    views.scale = *o.scale, views.causal = o.causal;
    if (mask.defined()) views.mask = heads_of(mask, products);
  }
  View all(const Tensor& x) const { return heads_of(x, with_rows(batch, x.size(-2), x.size(-1))); }
  Tensor room(int64_t rows, int64_t columns) const { return room(rows, columns, q.dtype()); }
  Tensor room(int64_t rows, int64_t columns, DType t) const {
    return empty(with_rows(batch, rows, columns), {.dtype = t, .device = q.device()});
  }
};

GradList gradients(Fused& f, const Tensor& result, const Tensor& kept, const Tensor& g, Needs needs) {
  // hooks of saved tensors may give other strides
  const Tensor y = launch::contiguous(result), stats = launch::contiguous(kept);
  const Tensor dy = dense_rows(g, y.dtype());
  f.views.y = f.all(y), f.views.stats = f.all(stats), f.views.dy = f.all(dy);
  GradList d(3);
  const Tensor* const inputs[] = {&f.q, &f.k, &f.v};
  View* const outputs[] = {&f.views.dq, &f.views.dk, &f.views.dv};
  for (int i = 0; i < 3; ++i) {
    if (!needs[i]) continue;
    d[static_cast<size_t>(i)] = f.room(inputs[i]->size(-2), inputs[i]->size(-1));
    *outputs[i] = f.all(d[static_cast<size_t>(i)]);
  }
  launch::backend_of(y).attention_backward(launch::context(), f.views);
  return d;
}

// x with its leading dims, broadcast to `batch`, joined to one.
Tensor joined(const Tensor& x, const Shape& batch) {
  return reshape(expand(x, with_rows(batch, x.size(-2), x.size(-1))),
                 {batch.numel(), x.size(-2), x.size(-1)});
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
              const Shape& products) {
  const Shape batch = leading(products);
  if (batch.size() > 2) {  // kernels take two leading dims
    AttentionOptions flat = o;
    if (o.mask.defined() && o.mask.dim() > 2) flat.mask = joined(o.mask, batch);
    const Tensor y = attend(joined(q, batch), joined(k, batch), joined(v, batch), flat,
                            {batch.numel(), products[batch.size()], products[batch.size() + 1]});
    return reshape(y, with_rows(batch, q.size(-2), v.size(-1)));
  }
  const DType t = common_type(q, k, v);
  const bool mask_learns = o.mask.defined() && o.mask.requires_grad() && grad_enabled();
  const bool empty = products.numel() * q.size(-1) * v.size(-1) == 0;
  const auto has_kernel = [&](DType type) {
    return o.dropout == 0 && !mask_learns && !empty &&
           launch::backend_of(q).has_attention(type, q.size(-1), v.size(-1));
  };
  if (!has_kernel(t)) {
    if (!is_half(t) || !has_kernel(kFloat32)) return composed(q, k, v, o);
    return in_float(
        [&](const Tensor& a, const Tensor& b, const Tensor& c) { return attend(a, b, c, o, products); }, q, k,
        v);
  }
  Fused fused(q, k, v, o.mask, t, o, products);
  Tensor y = fused.room(q.size(-2), v.size(-1)), stats;
  fused.views.y = fused.all(y);
  Backend& backend = launch::backend_of(y);
  const int64_t kept =
      backend.attention_stats(launch::context(), fused.views, detail::wants_record({q, k, v}));
  if (kept > 0) {
    stats = fused.room(q.size(-2), kept, accumulate_type(t));
    fused.views.stats = fused.all(stats);
  }
  backend.attention(launch::context(), fused.views);
  AttentionOptions rest = o;
  rest.mask = Tensor();
  return record(kAttention, y, {q, k, v},
                [q = Saved(q), k = Saved(k), v = Saved(v), mask = Saved(o.mask), y = SavedOutput(y),
                 stats = Saved(stats), t, rest, products](const Tensor& g, Needs needs) -> GradList {
                  AttentionOptions now = rest;
                  if (mask.defined()) now.mask = mask.get();
                  const Tensor a = q.get(), b = k.get(), c = v.get();
                  if (grad_enabled())
                    return formula::composed_backward(
                        [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                          return {composed(in[0], in[1], in[2], now)};
                        },
                        {a, b, c}, {g}, needs);
                  Fused again(a, b, c, now.mask, t, now, products);
                  return gradients(again, y.get().detach(), stats.get(), g, needs);
                });
}

}  // namespace

Tensor scaled_dot_product_attention(AutocastArg q, AutocastArg k, AutocastArg v,
                                    const AttentionOptions& options) {
  launch::check_defined(kAttention, q, k, v);
  const Shape products = product_sizes(q, k, v, options);
  AttentionOptions o = options;
  if (!o.scale) o.scale = 1 / std::sqrt(static_cast<double>(q->size(-1)));
  launch::check_factor(kAttention, common_type(q, k, v), *o.scale);
  return attend(q, k, v, o, products);
}

}  // namespace weft
