// Indexing with an index of x's rank: gather and the scatters, of which each is the backward of the other.
// Also sort and topk, whose gradient is a scatter to the positions that they return.
#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/ops/ops_order.h>

namespace weft {

namespace {

// Checks index against x (sizes at most x's outside dim) and returns the wrapped dim.
int check_positions(const char* name, const Tensor& x, Whole dim, const Tensor& index) {
  launch::check_index(name, index);
  launch::check_devices(name, x, index);
  const int d = wrap_dim(name, dim, x.dim());
  bool fits = index.dim() == x.dim();
  for (int k = 0; fits && k < x.dim(); ++k) fits = k == d || index.sizes()[k] <= x.sizes()[k];
  if (!fits)
    throw ShapeError(str(name, ": index ", index.sizes(), " does not fit x ", x.sizes(), " along dim ", d));
  return d;
}

// The part of x that the index covers: x with index's sizes outside dim.
View reached(const Tensor& x, int d, const Shape& index_sizes) {
  View v = x.view_of();
  for (int k = 0; k < v.ndim(); ++k)
    if (k != d) v.sizes[k] = index_sizes[k];
  return v;
}

int check_scatter(const char* name, const Tensor& x, Whole dim, const Tensor& index, const Tensor& src) {
  const int d = check_positions(name, x, dim, index);
  launch::check_devices(name, x, src);
  if (!(src.sizes() == index.sizes()))
    throw ShapeError(str(name, ": src is ", src.sizes(), ", index is ", index.sizes()));
  if (src.dtype() != x.dtype()) throw DTypeError(str(name, ": x is ", x.dtype(), ", src is ", src.dtype()));
  return d;
}

Tensor scattered(const char* name, ScatterRule rule, const Tensor& x, Whole dim, const Tensor& index,
                 const Tensor& src) {
  const int d = check_scatter(name, x, dim, index, src);
  const bool wide = rule == ScatterRule::kAdd && is_half(x.dtype());  // sums are rounded once
  const Tensor y = wide ? launch::cast(x, kFloat32) : launch::clone(x);
  const launch::Cast from(src, y.dtype());
  if (index.numel() != 0)
    launch::named(name, [&] {
      const View to = reached(y, d, index.sizes());
      launch::backend_of(x).scatter(launch::context(), rule, d, index.view_of(), from->view_of(), to);
    });
  return launch::cast(y, x.dtype());
}

Tensor gathered(const char* name, const Tensor& x, Whole dim, const Tensor& index) {
  launch::check_defined(name, x, index);
  if (x.dim() == 0 || index.dim() == 0) {
    launch::line_dim(name, dim, x);
    return reshape(gathered(name, formula::as_line(x), dim, formula::as_line(index)), index.sizes());
  }
  const int d = check_positions(name, x, dim, index);
  Tensor y = empty(index.sizes(), {.dtype = x.dtype(), .device = x.device()});
  if (y.numel() != 0)
    launch::named(name, [&] {
      launch::backend_of(x).gather(launch::context(), d, reached(x, d, index.sizes()), index.view_of(),
                                   y.view_of());
    });
  return record(name, y, {x},
                [index = Saved(index), sizes = x.sizes(), d](const Tensor& g, Needs) -> GradList {
                  return {formula::scatter_zeros(g, sizes, d, index.get())};
                });
}

}  // namespace

Tensor gather(In x, Whole dim, In index) { return gathered("gather", x, dim, index); }

Tensor take_along(In x, In index, Whole dim) {
  launch::check_defined("take_along", x, index);
  launch::check_index("take_along", index);
  const int d = launch::line_dim("take_along", dim, x);
  Shape sizes = x->sizes();
  if (index->dim() != x->dim())
    throw ShapeError(str("take_along: index ", index->sizes(), " does not have the rank of x ", x->sizes()));
  if (x->dim() != 0) sizes[d] = index->sizes()[d];
  const Tensor at = launch::named("take_along", [&] { return expand(index.get(), sizes); });
  return gathered("take_along", x, d, at);
}

Tensor scatter(In x, Whole dim, In index, In src) {
  launch::check_defined("scatter", x, index, src);
  const int d = launch::line_dim("scatter", dim, x);
  if (x->dim() == 0 || index->dim() == 0)
    return reshape(scatter(formula::as_line(x), d, formula::as_line(index), formula::as_line(src)),
                   x->sizes());
  return record("scatter", scattered("scatter", ScatterRule::kAssign, x, d, index, src), {x, src},
                [index = Saved(index), d](const Tensor& g, Needs needs) -> GradList {
                  const Tensor at = index.get();
                  return {needs[0] ? scatter(g, d, at, 0) : Tensor(), needs[1] ? gather(g, d, at) : Tensor()};
                });
}

Tensor scatter(In x, Whole dim, In index, Scalar value) {
  launch::check_defined("scatter", x, index);
  launch::check_scalar("scatter", x->dtype(), value);
  return scatter(x.get(), dim, index.get(), expand(formula::number_like(x, value), index->sizes()));
}

namespace {

Tensor sum_at(const char* name, const Tensor& x, Whole dim, const Tensor& index, const Tensor& src) {
  launch::check_defined(name, x, index, src);
  const int d = launch::line_dim(name, dim, x);
  if (x.dim() == 0 || index.dim() == 0)
    return reshape(sum_at(name, formula::as_line(x), d, formula::as_line(index), formula::as_line(src)),
                   x.sizes());
  return record(name, scattered(name, ScatterRule::kAdd, x, d, index, src), {x, src},
                [index = Saved(index), d](const Tensor& g, Needs needs) -> GradList {
                  return {g, needs[1] ? gather(g, d, index.get()) : Tensor()};
                });
}

}  // namespace

Tensor scatter_add(In x, Whole dim, In index, In src) { return sum_at("scatter_add", x, dim, index, src); }

namespace {

Tensor& scatter_into(const char* name, ScatterRule rule, Tensor& x, Whole dim, const Tensor& index,
                     const Tensor& src) {
  launch::check_defined(name, x, index, src);
  const int d = launch::line_dim(name, dim, x);
  if (x.dim() == 0 || index.dim() == 0) {
    Tensor line = formula::as_line(x);
    scatter_into(name, rule, line, d, formula::as_line(index), formula::as_line(src));
    return x;
  }
  check_scatter(name, x, d, index, src);
  launch::check_writable(name, x);
  const Tensor at = launch::share_memory(index, x) ? index.clone() : index,
               from = launch::share_memory(src, x) ? src.clone() : src;
  const auto write = [&] {
    if (rule == ScatterRule::kAdd && is_half(x.dtype()))  // sums are rounded once
      return launch::copy_into(x, scattered(name, rule, x, d, at, from));
    if (at.numel() == 0) return;
    launch::named(name, [&] {
      launch::backend_of(x).scatter(launch::context(), rule, d, at.view_of(), from.view_of(),
                                    reached(x, d, at.sizes()));
    });
  };
  record_in_place(name, x, {src}, write, [at = Saved(at), d, rule](const Tensor& g, Needs needs) -> GradList {
    const Tensor dx = needs[0] && rule == ScatterRule::kAssign ? scatter(g, d, at.get(), 0) : g;
    return {dx, needs[1] ? gather(g, d, at.get()) : Tensor()};
  });
  return x;
}

}  // namespace

Tensor& formula::add_at(const char* name, Tensor& x, Whole dim, const Tensor& index, const Tensor& src) {
  return scatter_into(name, ScatterRule::kAdd, x, dim, index, src);
}

Tensor& Tensor::scatter_(Whole d, const Tensor& index, const Tensor& src) {
  return scatter_into("scatter_", ScatterRule::kAssign, *this, d, In(index), In(src));
}

Tensor& Tensor::scatter_(Whole d, const Tensor& index, Scalar value) {
  launch::check_defined("scatter_", *this, index);
  launch::check_scalar("scatter_", dtype(), value);
  return scatter_(d, index, weft::expand(formula::number_like(*this, value), index.sizes()));
}

Tensor& Tensor::scatter_add_(Whole d, const Tensor& index, const Tensor& src) {
  return formula::add_at("scatter_add_", *this, d, In(index), In(src));
}

namespace {

// At each element the product of start and all src elements that index it.
Tensor product_at(const Tensor& start, int d, const Tensor& index, const Tensor& src) {
  const Tensor y = scattered("scatter_reduce", ScatterRule::kMul, start, d, index, src);
  return record(
      "scatter_reduce", y, {start, src},
      [start = Saved(start), src = Saved(src), index = Saved(index), d](const Tensor& g, Needs) -> GradList {
        // The gradient of a factor is the product of the others. So with one zero among the factors only the
        // zero has a gradient, and with several none has.
        const Tensor x = start.get(), s = src.get(), at = index.get();
        const Tensor x_zero = eq(x, 0), s_zero = eq(s, 0);
        const Tensor zeros_at = scatter_add(x_zero.to(kInt64), d, at, s_zero.to(kInt64));
        if (grad_enabled() && any(zeros_at).item<bool>())
          throw AutogradError(
              "scatter_reduce: the second gradient of a product with a factor 0 is not known");
        const Tensor x_safe = masked_fill(x, x_zero, 1), s_safe = masked_fill(s, s_zero, 1);
        const Tensor rest = g * product_at(x_safe, d, at, s_safe);
        const auto part = [&](const Tensor& safe, const Tensor& zero, const Tensor& all,
                              const Tensor& count) {
          return masked_fill(all / safe, ne(count, zero.to(kInt64)), 0);
        };
        return {part(x_safe, x_zero, rest, zeros_at),
                part(s_safe, s_zero, gather(rest, d, at), gather(zeros_at, d, at))};
      });
}

// At each element the largest or smallest of x and the src elements that index it. x counts where `own` is
// true, or everywhere if it is undefined.
Tensor extreme_at(const Tensor& x, const Tensor& own, int d, const Tensor& index, const Tensor& src,
                  Flag largest) {
  const char* const name = "scatter_reduce";
  // An element of x that does not count is replaced by one of src's first.
  const Tensor from = own.defined()
                          ? where(own, x.detach(), scattered(name, ScatterRule::kAssign, x, d, index, src))
                          : x.detach();
  const Tensor y = scattered(name, largest ? ScatterRule::kMax : ScatterRule::kMin, from, d, index, src);
  return record(name, y, {x, src},
                [x = Saved(x), src = Saved(src), y = SavedOutput(y), counted = Saved(own),
                 index = Saved(index), d](const Tensor& g, Needs) -> GradList {
                  const Tensor at = index.get(), best = y.get().detach(), own = counted.get();
                  const Tensor x_best = eq(x.get(), best);
                  const Tensor x_hit = (own.defined() ? logical_and(own, x_best) : x_best).to(g.dtype());
                  const Tensor s_hit = eq(src.get(), gather(best, d, at)).to(g.dtype());
                  const Tensor share = g / maximum(scatter_add(x_hit, d, at, s_hit), 1);
                  return {share * x_hit, gather(share, d, at) * s_hit};
                });
}

}  // namespace

Tensor scatter_reduce(In x, Whole dim, In index, In src, ScatterReduce reduce, bool include_self) {
  launch::check_defined("scatter_reduce", x, index, src);
  const char* const name = "scatter_reduce";
  if (x->dim() == 0 || index->dim() == 0) {
    launch::line_dim(name, dim, x);
    return reshape(scatter_reduce(formula::as_line(x), dim, formula::as_line(index), formula::as_line(src),
                                  reduce, include_self),
                   x->sizes());
  }
  const int d = check_scatter(name, x, dim, index, src);
  if (reduce == ScatterReduce::kMean && x->dtype() == kBool)
    throw DTypeError(str(name, ": a mean takes numbers, got bool for x ", x->sizes()));
  if (is_half(x->dtype()))  // sums, products and counts are rounded once
    return formula::in_float(x, [&](const Tensor& v) {
      return scatter_reduce(v, d, index.get(), to(src.get(), kFloat32), reduce, include_self);
    });
  const auto filled = [&](const Tensor& t, Scalar value) {  // t with `value` at the targets
    return scatter(t, d, index.get(), expand(formula::number_like(t, value), index->sizes()));
  };
  const auto own = [&](DType t) {  // 1 where x counts, else 0
    const Tensor every = ones(x->sizes(), {.dtype = t, .device = x->device()});
    return include_self ? every : filled(every, 0);
  };
  if (reduce == ScatterReduce::kAmax || reduce == ScatterReduce::kAmin)
    return extreme_at(x, include_self ? Tensor() : own(kBool), d, index, src, reduce == ScatterReduce::kAmax);
  const bool product = reduce == ScatterReduce::kProd;
  const Tensor start = include_self ? x.get() : filled(x.get(), product ? 1 : 0);
  if (product) return product_at(start, d, index, src);
  const Tensor total = sum_at(name, start, d, index, src);
  if (reduce == ScatterReduce::kSum) return total;
  const Tensor one = ones({}, {.dtype = kInt64, .device = x->device()});
  const Tensor count = scatter_add(own(kInt64), d, index.get(), expand(one, index->sizes()));
  return is_floating(total.dtype()) ? total / count.to(total.dtype())
                                    : floor_divide(total, count).to(total.dtype());
}

namespace {

MaxResult sorted(const char* name, const Tensor& x, int64_t k, Whole dim, Flag descending) {
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

MaxResult sort(In x, Whole dim, Flag descending) { return sorted("sort", x, -1, dim, descending); }

MaxResult topk(In x, Whole k, Whole dim, Flag largest) {
  launch::check_defined("topk", x);
  if (k < 0) throw ValueError(str("topk: k must be >= 0, got ", k));
  return sorted("topk", x, k, dim, largest);
}

}  // namespace weft
