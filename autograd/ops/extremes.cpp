// Maxima, minima, products, cumulative sums and products. Over all elements or several dims, max and min
// share the gradient among ties. Along one dim it goes to the element whose index they return. The gradient
// of a product divides by no element: it multiplies cumulative products from both ends.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using formula::keep_dims;
using launch::Dims;
using launch::reduced_dims;

namespace {

Tensor extreme(const char* name, Reduce op, const Tensor& x, const Dims& dims, Flag keepdim) {
  Tensor y = launch::reduce(name, op, x, dims, keepdim);
  return record(name, y, {x}, [x = Saved(x), y = SavedOutput(y), dims](const Tensor& g, Needs) -> GradList {
    const Tensor v = x.get(), best = keep_dims(y.get().detach(), v.sizes(), dims);
    // NaN counts as the extreme. The count is in a wider dtype: a half dtype cannot hold it exactly.
    const Tensor hit = logical_or(eq(v, best), isnan(v)).to(accumulate_type(g.dtype()));
    Shape over;
    for (int d = 0; d < v.dim(); ++d)
      if (dims.on[d]) over.push_back(d);
    const Tensor count = over.empty() ? hit : sum(hit, over, true);
    return {(keep_dims(g, v.sizes(), dims).to(hit.dtype()) * (hit / count)).to(g.dtype())};
  });
}

MaxResult along(const char* name, Flag largest, const Tensor& x, Whole dim, Flag keepdim, bool want_values) {
  launch::check_defined(name, x);
  const Tensor v = x.dim() == 0 ? reshape(x, {1}) : x;
  const int d = launch::line_dim(name, dim, x);
  if (v.sizes()[d] == 0)
    throw ShapeError(str(name, ": no elements to choose from along dim ", d, " of ", x.sizes()));
  Shape kept = v.sizes();
  kept[d] = 1;
  Tensor values = want_values ? empty(kept, {.dtype = x.dtype(), .device = x.device()}) : Tensor();
  Tensor indices = empty(kept, {.dtype = kInt64, .device = x.device()});
  if (indices.numel() != 0)
    launch::backend_of(x).arg_reduce(launch::context(), largest, d, v.view_of(),
                                     want_values ? values.view_of() : View{}, indices.view_of());
  Shape out = kept;
  if (x.dim() == 0) out = {};
  else if (!keepdim) out.erase(d);
  if (want_values) {
    values = record(name, launch::reshaped(values, out), {x},
                    [index = Saved(indices), sizes = v.sizes(), before = x.sizes(), d](const Tensor& g,
                                                                                       Needs) -> GradList {
                      const Tensor at = index.get();
                      return {reshape(formula::scatter_zeros(reshape(g, at.sizes()), sizes, d, at), before)};
                    });
  }
  return {values, launch::reshaped(indices, out)};
}

}  // namespace

Tensor max(In x) { return extreme("max", Reduce::kMax, x, reduced_dims("max", x, {}), false); }
Tensor min(In x) { return extreme("min", Reduce::kMin, x, reduced_dims("min", x, {}), false); }
Tensor amax(In x, const Shape& dims, Flag keepdim) {
  return extreme("amax", Reduce::kMax, x, reduced_dims("amax", x, dims), keepdim);
}
Tensor amin(In x, const Shape& dims, Flag keepdim) {
  return extreme("amin", Reduce::kMin, x, reduced_dims("amin", x, dims), keepdim);
}
MaxResult max(In x, Whole dim, Flag keepdim) { return along("max", true, x, dim, keepdim, true); }
MaxResult min(In x, Whole dim, Flag keepdim) { return along("min", false, x, dim, keepdim, true); }
Tensor argmax(In x, Whole dim, Flag keepdim) { return along("argmax", true, x, dim, keepdim, false).indices; }
Tensor argmin(In x, Whole dim, Flag keepdim) {
  return along("argmin", false, x, dim, keepdim, false).indices;
}

namespace {

Tensor extreme_place(const char* name, Flag largest, const Tensor& x) {
  launch::check_defined(name, x);  // before detach()
  return along(name, largest, reshape(x.detach(), -1), 0, false, false).indices;
}

}  // namespace

Tensor argmax(In x) { return extreme_place("argmax", true, x); }
Tensor argmin(In x) { return extreme_place("argmin", false, x); }

namespace {

Tensor cumulated(Reduce op, const Tensor& x, int d) {
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : kInt64;
  const Tensor in = launch::cast(x, dtype);
  Tensor y = empty(x.sizes(), {.dtype = dtype, .device = x.device()});
  if (x.dim() == 0) launch::copy_into(y, in);
  else if (y.numel() != 0)
    launch::backend_of(x).cumulate(launch::context(), op, d, in.view_of(), y.view_of());
  return y;
}

// 1, x0, x0 x1, ..: the product of all elements before each along d.
Tensor product_before(const Tensor& x, int64_t d) {
  const int64_t n = x.size(d);
  const Tensor one = ones_like(narrow(x, d, 0, 1).detach());
  return n == 1 ? one : cumprod(cat({one, narrow(x, d, 0, n - 1)}, d), d);
}

// The product of all other elements along d, by products from both ends.
Tensor product_of_others(const Tensor& x, int64_t d) {
  return product_before(x, d) * flip(product_before(flip(x, {d}), d), {d});
}

}  // namespace

Tensor prod(Fp32Arg x, Whole dim, Flag keepdim) {
  const Dims dims = reduced_dims("prod", x, {dim});
  return record("prod", launch::reduce("prod", Reduce::kProd, x, dims, keepdim), {x},
                [x = Saved(x), dims, dim](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  if (v.numel() == 0 || v.dim() == 0) return {v.dim() == 0 ? g : zeros_like(v)};
                  return {keep_dims(g, v.sizes(), dims) * product_of_others(v, dim)};
                });
}

Tensor prod(Fp32Arg x) {
  launch::check_defined("prod", x);
  return prod(reshape(x.get(), {x->numel()}), 0);
}

Tensor cumsum(Fp32Arg x, Whole dim) {
  const int d = launch::line_dim("cumsum", dim, x);
  return record("cumsum", cumulated(Reduce::kSum, x, d), {x}, [d](const Tensor& g, Needs) -> GradList {
    return {g.dim() == 0 ? g : flip(cumsum(flip(g, {d}), d), {d})};
  });
}

Tensor cumprod(Fp32Arg x, Whole dim) {
  const int d = launch::line_dim("cumprod", dim, x);
  return record("cumprod", cumulated(Reduce::kProd, x, d), {x},
                [x = Saved(x), d](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  if (v.dim() == 0 || v.numel() == 0) return {g};
                  // dx_i = (product before i) * sum over j >= i of g_j * (product of x between i and j, both
                  // excluded at i). From the end: s_i = g_i + x_{i+1} s_{i+1}, which needs no division.
                  const int64_t n = v.size(d);
                  std::vector<Tensor> sums(static_cast<size_t>(n));
                  Tensor s = select(g, d, n - 1);
                  sums[static_cast<size_t>(n - 1)] = s;
                  for (int64_t i = n - 2; i >= 0; --i) {
                    s = select(g, d, i) + select(v, d, i + 1) * s;
                    sums[static_cast<size_t>(i)] = s;
                  }
                  return {product_before(v, d) * stack(sums, d)};
                });
}

}  // namespace weft
