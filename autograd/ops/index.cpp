// Rows and slices by index: forward takes rows, or gathers along a dim other than the first, and backward
// adds rows. The kernel checks the indices and names the first one out of range.
#include <algorithm>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/tensor/inner/arrears.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

namespace {

Tensor embedding_backward(const Tensor& g, const Tensor& ids, int64_t rows, int64_t padding_idx);
Tensor sparse_backward(const Tensor& g, const Tensor& ids, int64_t rows, int64_t padding_idx);

// weight [V, H] at ids [..]; ids equal to `skip` have no gradient.
Tensor take(const char* name, const Tensor& weight, const Tensor& ids, int64_t skip, bool sparse = false) {
  const int64_t width = weight.sizes()[1];
  const Tensor w = launch::contiguous(weight), index = launch::contiguous(ids);
  Shape sizes = ids.sizes();
  sizes.push_back(width);
  Tensor y = empty(sizes, {.dtype = weight.dtype(), .device = weight.device()});
  const int64_t n = ids.numel();
  const View at{index.address(), index.dtype(), {n}, {1}},
      out{y.address(), y.dtype(), {n, width}, {width, 1}};
  if (n != 0)
    launch::named(name, [&] {
      launch::backend_of(w).take_rows(launch::context(), detail::rows_view(w, index), at, out);
    });
  return record(
      name, y, {weight},
      [ids = Saved(index), rows = weight.sizes()[0], skip, sparse](const Tensor& g, Needs) -> GradList {
        // a recorded gradient is dense
        const auto backward = sparse && !grad_enabled() ? sparse_backward : embedding_backward;
        return {backward(g, ids.get(), rows, skip)};
      });
}

// dx [V, K] + dy [n, K] at index [n], written into dx. Half dtypes on the CPU are summed in float32 and
// rounded once.
Tensor add_rows(const Tensor& dx, const Tensor& index, const Tensor& dy, int64_t skip) {
  const DType t = is_half(dx.dtype()) && dx.device().is_cpu() ? kFloat32 : dx.dtype();
  const Tensor sums = launch::cast(dx, t);
  const launch::Cast from(dy, t);
  launch::backend_of(dx).add_rows(launch::context(), index.view_of(), from->view_of(), skip, sums.view_of());
  return launch::cast(sums, dx.dtype());
}

// Rows of g added up by id.
Tensor embedding_backward(const Tensor& g, const Tensor& ids, int64_t rows, int64_t skip) {
  const int64_t width = g.sizes().back(), n = ids.numel();
  Tensor dw = launch::zeros({rows, width}, g.dtype(), g.device());
  const Tensor flat = launch::reshaped(launch::contiguous(g), {n, width});
  if (n != 0) dw = add_rows(dw, launch::reshaped(ids, {n}), flat, skip);
  return record("embedding_backward", dw, {g}, [ids = Saved(ids), skip](const Tensor& gg, Needs) -> GradList {
    Tensor d = take("embedding", gg, ids.get(), skip);
    if (skip >= 0) d = masked_fill(d, unsqueeze(eq(ids.get(), skip), -1), 0);
    return {d};
  });
}

// The same, of the rows that ids name alone.
Tensor sparse_backward(const Tensor& g, const Tensor& ids, int64_t rows, int64_t skip) {
  detail::refuse_trace("makes a row-wise gradient");  // it depends on the ids, which are read here
  const int64_t width = g.sizes().back(), n = ids.numel();
  const detail::Lookups found = detail::lookups_of(launch::cast(launch::reshaped(ids, {n}), kInt64), skip);
  Tensor values = launch::zeros({found.rows.numel(), width}, g.dtype(), g.device());
  if (values.numel() != 0)
    values = add_rows(values, launch::to_device(found.at, g.device()),
                      launch::reshaped(launch::contiguous(g), {n, width}), -1);
  return detail::pack_rows({{rows, width}, found.rows, values});
}

// y[.., i, ..] = x[.., index[i], ..] along d. The dims around d are joined where x allows it.
Tensor gather_along(const Tensor& x, int d, const Tensor& index) {
  Shape sizes = x.sizes();
  const int64_t n = sizes[d], count = index.numel();
  sizes[d] = count;
  const Tensor y = empty(sizes, {.dtype = x.dtype(), .device = x.device()});
  View from = x.view_of(), to = y.view_of(), at{index.address(), index.dtype(), sizes, Shape(x.dim(), 0)};
  at.strides[d] = 1;
  if (x.is_contiguous()) {
    int64_t inner = 1;
    for (int i = d + 1; i < x.dim(); ++i) inner *= sizes[i];
    const int64_t outer = x.numel() / (n * inner);
    from = {from.data, from.dtype, {outer, n, inner}, {n * inner, inner, 1}};
    to = {to.data, to.dtype, {outer, count, inner}, {count * inner, inner, 1}};
    at = {at.data, at.dtype, {outer, count, inner}, {0, 1, 0}};
  }
  if (count != 0)
    launch::named("index_select", [&] {
      launch::backend_of(x).gather(launch::context(), x.is_contiguous() ? 1 : d, from, at, to);
    });
  return record(
      "index_select", y, {x},
      [index = Saved(index), sizes = x.sizes(), d](const Tensor& g, Needs) -> GradList {
        if (d != 0 && d == g.dim() - 1 && g.device().is_cpu() && !is_half(g.dtype())) {
          // line by line, in the order of index_add, which would transpose three times
          Shape line(g.dim(), 1);
          line[d] = g.sizes()[d];
          return {formula::scatter_zeros(g, sizes, d, expand(reshape(index.get(), line), g.sizes()))};
        }
        return {index_add(launch::zeros(sizes, g.dtype(), g.device()), d, index.get(), g)};
      });
}

void check_list(const char* name, const Tensor& x, const Tensor& index) {
  launch::check_index(name, index);
  launch::check_devices(name, x, index);
  if (index.dim() > 1)
    throw ShapeError(str(name, ": the index must have one dim or none, is ", index.sizes()));
}

}  // namespace

Tensor embedding(In weight, In ids, int64_t padding_idx, bool sparse) {
  launch::check_defined("embedding", weight, ids);
  launch::check_index("embedding", ids);
  launch::check_devices("embedding", weight, ids);
  if (weight->dim() != 2) throw ShapeError(str("embedding: weight must be [V, H], is ", weight->sizes()));
  // an empty table accepts 0 as well
  if (padding_idx < -1 || padding_idx >= std::max<int64_t>(weight->sizes()[0], 1))
    throw IndexError(str("embedding: padding_idx ", padding_idx, " is outside the ", weight->sizes()[0],
                         " rows of weight"));
  return take("embedding", weight, ids, padding_idx, sparse);
}

Tensor index_select(In x, Whole dim, In index) {
  launch::check_defined("index_select", x, index);
  check_list("index_select", x, index);
  const int d = launch::line_dim("index_select", dim, x);
  if (x->dim() == 0) {
    if (index->numel() != 1)
      throw ShapeError(
          str("index_select: ", index->numel(), " indices for a tensor without dims, which takes one"));
    return reshape(index_select(formula::as_line(x), 0, index.get()), {});
  }
  if (index->dim() == 0) return index_select(x.get(), d, formula::as_line(index));
  if (x->dim() == 2 && d == 0) return take("index_select", x, index, -1);
  if (d != 0 && x->numel() != 0) return gather_along(x, d, launch::contiguous(index));
  const Tensor front = d == 0 ? x.get() : transpose(x.get(), 0, d);
  Shape sizes = front.sizes();
  const int64_t n = sizes[0], width = n == 0 ? 0 : front.numel() / n;
  const Tensor rows = take("index_select", reshape(front, {n, width}), index, -1);
  sizes[0] = index->numel();
  const Tensor y = reshape(rows, sizes);
  return d == 0 ? y : contiguous(transpose(y, 0, d));
}

Tensor index_add(In x, Whole dim, In index, In src) {
  launch::check_defined("index_add", x, index, src);
  check_list("index_add", x, index);
  launch::check_devices("index_add", x, src);
  const int d = launch::line_dim("index_add", dim, x);
  if (x->dim() == 0 || index->dim() == 0)
    return reshape(index_add(formula::as_line(x), d, formula::as_line(index), formula::as_line(src)),
                   x->sizes());
  Shape expected = x->sizes();
  expected[d] = index->numel();
  if (!(src->sizes() == expected))
    throw ShapeError(str("index_add: src must be ", expected, " for x ", x->sizes(), " and ", index->numel(),
                         " indices, is ", src->sizes()));
  if (src->dtype() != x->dtype())
    throw DTypeError(str("index_add: x is ", x->dtype(), ", src is ", src->dtype()));
  Tensor front = launch::clone(d == 0 ? x.get() : launch::transposed(x, 0, d));
  const Tensor rows = launch::contiguous(d == 0 ? src.get() : launch::transposed(src, 0, d));
  const int64_t n = index->numel(), v = front.sizes()[0], width = n == 0 ? 0 : rows.numel() / n;
  if (n != 0)
    launch::named("index_add", [&] {
      const Tensor added = launch::reshaped(rows, {n, width});
      const Tensor base = launch::reshaped(front, {v, width});
      front = launch::reshaped(add_rows(base, launch::contiguous(index), added, INT64_MIN), front.sizes());
    });
  Tensor y = d == 0 ? front : launch::clone(launch::transposed(front, 0, d));
  return record("index_add", y, {x, src},
                [index = Saved(index), d](const Tensor& g, Needs needs) -> GradList {
                  return {g, needs[1] ? index_select(g, d, index.get()) : Tensor()};
                });
}

Tensor& Tensor::index_add_(Whole dim, const Tensor& index, const Tensor& src) {
  launch::check_defined("index_add_", *this, index, src);
  check_list("index_add_", *this, index);
  const int d = launch::line_dim("index_add_", dim, *this);
  const In at(index), from(src);
  if (this->dim() == 0 || at->dim() == 0) return formula::add_at("index_add_", *this, d, at, from);
  Shape expected = sizes(), column(this->dim(), 1);
  expected[d] = column[d] = at->numel();
  if (!(from->sizes() == expected))
    throw ShapeError(str("index_add_: src must be ", expected, " for x ", sizes(), " and ", at->numel(),
                         " indices, is ", from->sizes()));
  if (const int64_t n = at->numel(); n != 0 && expected.numel() == 0)  // no row to add, but indices to check
    launch::named("index_add_", [&] {
      const TensorOptions like{.dtype = dtype(), .device = device()};
      add_rows(empty({sizes()[d], 0}, like), launch::contiguous(at), empty({n, 0}, like), INT64_MIN);
    });
  return formula::add_at("index_add_", *this, d, weft::expand(weft::reshape(at.get(), column), expected),
                         from);
}

Tensor masked_select(In x, In mask) {
  launch::check_defined("masked_select", x, mask);
  if (mask->dtype() != kBool)
    throw DTypeError(str("masked_select: the mask must be bool, got ", mask->dtype()));
  launch::check_devices("masked_select", x, mask);
  const Shape sizes = broadcast("masked_select", x->sizes(), mask->sizes());
  const Tensor flat = reshape(expand(x.get(), sizes), {-1});
  const Tensor at = nonzero(reshape(expand(mask.get(), sizes), {-1}));
  return index_select(flat, 0, reshape(at, {-1}));
}

Tensor nonzero(In x) {
  launch::check_defined("nonzero", x);
  const int64_t count =
      x->numel() == 0 ? 0 : launch::backend_of(x).count_nonzero(launch::context(), x->view_of());
  Tensor y = empty({count, x->dim()}, {.dtype = kInt64, .device = x->device()});
  if (y.numel() != 0) launch::backend_of(x).nonzero(launch::context(), x->view_of(), y.view_of());
  return y;
}

Tensor one_hot(In ids, Whole classes) {
  launch::check_defined("one_hot", ids);
  launch::check_index("one_hot", ids);
  if (classes <= 0) throw ValueError(str("one_hot: classes must be positive, got ", classes));
  Shape sizes = ids->sizes();
  sizes.push_back(classes);
  launch::checked_bytes("one_hot", sizes, kInt64);
  const Tensor zero = launch::zeros(sizes, kInt64, ids->device()), index = unsqueeze(ids.get(), -1);
  return launch::named("one_hot", [&] {
    return scatter(zero, -1, index, expand(formula::number_like(zero, 1), index.sizes()));
  });
}

}  // namespace weft
