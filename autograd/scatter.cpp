// Indices of the rank of x: gather and the scatters are each other's backward. sort and topk hand back positions, and their gradient goes there.
#include <weft/autograd/formula.h>

namespace weft {

namespace {

// Checks index against x (sizes at most x's outside dim) and gives the wrapped dim.
int check_positions(const char* name, const Tensor& x, int64_t dim, const Tensor& index) {
  launch::check_index(name, index);
  launch::check_devices(name, x, index);
  const int d = wrap_dim(name, dim, x.dim());
  bool fits = index.dim() == x.dim();
  for (int k = 0; fits && k < x.dim(); ++k) fits = k == d || index.sizes()[k] <= x.sizes()[k];
  if (!fits)
    throw ShapeError(str(name, ": index ", index.sizes(), " does not fit x ", x.sizes(), " along dim ", d));
  return d;
}

// The part of x that an index reaches: its sizes outside dim.
View reached(const Tensor& x, int d, const Shape& index_sizes) {
  View v = x.view_of();
  for (int k = 0; k < v.ndim(); ++k)
    if (k != d) v.sizes[k] = index_sizes[k];
  return v;
}

Tensor scattered(const char* name, bool add, const Tensor& x, int64_t dim, const Tensor& index,
                 const Tensor& src) {
  const int d = check_positions(name, x, dim, index);
  launch::check_devices(name, x, src);
  if (!(src.sizes() == index.sizes()))
    throw ShapeError(str(name, ": src is ", src.sizes(), ", index is ", index.sizes()));
  if (src.dtype() != x.dtype()) throw DTypeError(str(name, ": x is ", x.dtype(), ", src is ", src.dtype()));
  Tensor y = launch::clone(x);
  if (index.numel() != 0)
    launch::named(name, [&] {
      launch::backend_of(x).scatter(launch::context(), add, d, index.view_of(), src.view_of(),
                                    reached(y, d, index.sizes()));
    });
  return y;
}

}  // namespace

Tensor gather(In x, int64_t dim, In index) {
  const int d = check_positions("gather", x, dim, index);
  Tensor y = empty(index->sizes(), {.dtype = x->dtype(), .device = x->device()});
  if (y.numel() != 0)
    launch::named("gather", [&] {
      launch::backend_of(x).gather(launch::context(), d, reached(x, d, index->sizes()), index->view_of(),
                                   y.view_of());
    });
  return record("gather", y, {x},
                [index = Saved(index), sizes = x->sizes(), d](const Tensor& g, Needs) -> GradList {
                  return {formula::scatter_zeros(g, sizes, d, index.get())};
                });
}

Tensor take_along(In x, In index, int64_t dim) {
  const int d = wrap_dim("take_along", dim, x->dim());
  Shape sizes = x->sizes();
  if (index->dim() != x->dim())
    throw ShapeError(str("take_along: index ", index->sizes(), " does not have the rank of x ", x->sizes()));
  sizes[d] = index->sizes()[d];
  return gather(x.get(), d, expand(index.get(), sizes));
}

Tensor scatter(In x, int64_t dim, In index, In src) {
  const int d = wrap_dim("scatter", dim, x->dim());
  return record("scatter", scattered("scatter", false, x, d, index, src), {x, src},
                [index = Saved(index), d](const Tensor& g, Needs needs) -> GradList {
                  const Tensor at = index.get();
                  Tensor dx;
                  if (needs[0])
                    dx = scatter(g, d, at, zeros(at.sizes(), {.dtype = g.dtype(), .device = g.device()}));
                  return {dx, needs[1] ? gather(g, d, at) : Tensor()};
                });
}

Tensor scatter_add(In x, int64_t dim, In index, In src) {
  const int d = wrap_dim("scatter_add", dim, x->dim());
  return record("scatter_add", scattered("scatter_add", true, x, d, index, src), {x, src},
                [index = Saved(index), d](const Tensor& g, Needs needs) -> GradList {
                  return {g, needs[1] ? gather(g, d, index.get()) : Tensor()};
                });
}

namespace {

MaxResult sorted(const char* name, const Tensor& x, int64_t k, int64_t dim, bool descending) {
  const launch::Rows r = launch::rows(name, x, dim);
  const int64_t width = k < 0 ? r.width : k;
  if (width > r.width)
    throw ShapeError(str(name, ": k = ", k, " is more than dim ", r.dim, " of ", x.sizes(), " has"));
  if (r.sizes.empty() && width != 1) throw ShapeError(str(name, ": k = ", k, " of a single number"));
  const Tensor values = launch::empty_rows(r, width, x.dtype()), at = launch::empty_rows(r, width, kInt64);
  if (values.numel() != 0)
    launch::backend_of(x).sort(launch::context(), descending, r.view(), launch::rows_view(r, values),
                               launch::rows_view(r, at));
  const Tensor indices = launch::from_rows(r, at);
  Tensor y = launch::from_rows(r, values);
  y = record(name, y, {x},
             [index = Saved(indices), sizes = x.sizes(), d = r.dim](const Tensor& g, Needs) -> GradList {
               if (sizes.empty()) return {g};
               return {formula::scatter_zeros(g, sizes, d, index.get())};
             });
  return {y, indices};
}

}  // namespace

MaxResult sort(In x, int64_t dim, bool descending) { return sorted("sort", x, -1, dim, descending); }

MaxResult topk(In x, int64_t k, int64_t dim, bool largest) {
  if (k < 0) throw ValueError(str("topk: k must be >= 0, got ", k));
  return sorted("topk", x, k, dim, largest);
}

Tensor Tensor::gather(int64_t d, const Tensor& index) const { return weft::gather(*this, d, index); }
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const {
  return weft::masked_fill(*this, mask, value);
}

}  // namespace weft
