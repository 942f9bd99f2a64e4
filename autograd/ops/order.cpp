// Order, counts and groups (ops_order.h). Positions are computed without recording; the gather of the values
// at these positions is recorded.
#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/ops/ops_order.h>

namespace weft {

Tensor argsort(In x, Whole dim, Flag descending) {
  launch::check_defined("argsort", x);
  NoGrad no_grad;
  return launch::named("argsort", [&] { return sort(x.get(), dim, descending).indices; });
}

namespace {

// The index of the median along dim d, or of the first NaN. d has at least one element.
Tensor median_position(const Tensor& v, int d) {
  NoGrad no_grad;
  const launch::Rows r = launch::rows("median", v, d);
  const Tensor at = launch::empty_rows(r, 1, kInt64);
  if (at.numel() == 0 || launch::backend_of(v).median(launch::context(), r.view(), launch::rows_view(r, at)))
    return launch::from_rows(r, at);
  const int64_t n = v.sizes()[d];
  const Tensor order = sort(v, d).indices;
  const Tensor middle = narrow(order, d, (n - 1) / 2, 1);
  if (!is_floating(v.dtype())) return middle;
  const Tensor nans = sum(isnan(v), {d}, true);  // NaNs are sorted after all numbers
  return where(gt(nans, 0), gather(order, d, minimum(sub(n, nans), n - 1)), middle);
}

}  // namespace

MaxResult median(In x, Whole dim, Flag keepdim) {
  launch::check_defined("median", x);
  const Tensor v = x->dim() == 0 ? reshape(x.get(), {1}) : x.get();
  const int d = wrap_dim("median", dim, v.dim());
  if (v.sizes()[d] == 0)
    throw ShapeError(str("median: no elements to choose from along dim ", d, " of ", x->sizes()));
  const Tensor at = median_position(v, d), values = gather(v, d, at);
  if (x->dim() != 0 && keepdim) return {values, at};
  return {squeeze(values, d), squeeze(at, d)};
}

Tensor median(In x) {
  launch::check_defined("median", x);
  if (x->numel() == 0) throw ShapeError(str("median: no elements to choose from in ", x->sizes()));
  const Tensor flat = reshape(x->detach(), {x->numel()});
  const Tensor y = reshape(gather(flat, 0, median_position(flat, 0)), {});
  return record("median", y, {x}, [x = Saved(x), y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    const Tensor v = x.get(), chosen = y.get().detach();
    const Tensor same = logical_or(eq(v, chosen), logical_and(isnan(v), isnan(chosen)));
    const Tensor hit = same.to(accumulate_type(g.dtype()));  // a half type cannot count them
    return {(g.to(hit.dtype()) * (hit / sum(hit))).to(g.dtype())};
  });
}

UniqueResult unique(In x, const UniqueOptions& options) {
  launch::check_defined("unique", x);
  NoGrad no_grad;
  const int64_t n = x->numel();
  const TensorOptions ids{.dtype = kInt64, .device = x->device()};
  const auto [sorted, order] = sort(reshape(x.get(), {n}), 0);
  // the first of each run of equal elements
  Tensor first = ones({n}, {.dtype = kBool, .device = x->device()});
  if (n > 1) first.slice(0, 1, n).copy_(ne(sorted.narrow(0, 1, n - 1), sorted.narrow(0, 0, n - 1)));
  const Tensor starts = reshape(nonzero(first), {-1});
  UniqueResult result;
  result.values = index_select(sorted, 0, starts);
  if (options.inverse)
    result.inverse = reshape(scatter(zeros({n}, ids), 0, order, cumsum(first, 0) - 1), x->sizes());
  if (options.counts)
    result.counts = cat({starts.slice(0, 1, starts.numel()), full({starts.numel() > 0}, n, ids)}) - starts;
  return result;
}

Tensor bincount(In x, In weights, Whole minlength) {
  launch::check_defined("bincount", x);
  launch::check_index("bincount", x);
  if (x->dim() != 1) throw ShapeError(str("bincount: x must have one dim, is ", x->sizes()));
  if (minlength < 0) throw ValueError(str("bincount: minlength must be >= 0, got ", minlength));
  if (weights->defined() && !(weights->sizes() == x->sizes()))
    throw ShapeError(str("bincount: weights are ", weights->sizes(), ", x is ", x->sizes()));
  int64_t length = minlength;
  if (x->numel() > 0) {
    const auto low = min(x.get()).item<int64_t>(), high = max(x.get()).item<int64_t>();
    if (low < 0) throw IndexError(str("bincount: ", low, " is negative"));
    if (high >= INT64_MAX / int64_t{sizeof(int64_t)})
      throw ShapeError(str("bincount: a count for each number up to ", high, " is too long"));
    length = std::max(length, high + 1);
  }
  launch::checked_bytes("bincount", {length}, kInt64);
  const Tensor one = ones({}, {.dtype = kInt64, .device = x->device()});
  const Tensor amounts = !weights->defined()             ? expand(one, x->sizes())
                         : is_floating(weights->dtype()) ? weights.get()
                                                         : to(weights.get(), kFloat64);
  const Tensor none = zeros({length}, {.dtype = amounts.dtype(), .device = x->device()});
  if (x->numel() == 0) return none;
  return x->device().is_cpu() ? scatter_add(none, 0, x.get(), amounts) : index_add(none, 0, x.get(), amounts);
}

Tensor repeat_interleave(In x, Whole repeats, std::optional<int64_t> dim) {
  launch::check_defined("repeat_interleave", x);
  if (repeats < 0) throw ValueError(str("repeat_interleave: repeats must be >= 0, got ", repeats));
  const Tensor v = dim ? x.get() : reshape(x.get(), {x->numel()});
  const int d = wrap_dim("repeat_interleave", dim.value_or(0), v.dim());
  // For the last dim, a copy per repetition is faster on the CPU.
  const bool short_runs = repeats > 0 && repeats <= 8 && d == v.dim() - 1 && v.device().is_cpu();
  Shape wide, sizes = v.sizes();
  for (int k = 0; k < v.dim(); ++k) {
    wide.push_back(v.sizes()[k]);
    if (k == d) wide.push_back(repeats);
  }
  sizes[d] = checked_numel("repeat_interleave", {v.sizes()[d], repeats});
  launch::checked_bytes("repeat_interleave", sizes, v.dtype());
  if (short_runs) return reshape(stack(std::vector<Tensor>(static_cast<size_t>(repeats), v), d + 1), sizes);
  return reshape(clone(expand(unsqueeze(v, d + 1), wide)), sizes);
}

Tensor repeat_interleave(In x, In repeats, std::optional<int64_t> dim) {
  launch::check_defined("repeat_interleave", x, repeats);
  launch::check_index("repeat_interleave", repeats);
  launch::check_devices("repeat_interleave", x, repeats);
  const Tensor v = dim ? x.get() : reshape(x.get(), {x->numel()});
  const int d = wrap_dim("repeat_interleave", dim.value_or(0), v.dim());
  const int64_t n = v.sizes()[d];
  if (repeats->dim() != 1 || (repeats->numel() != n && repeats->numel() != 1))
    throw ShapeError(
        str("repeat_interleave: repeats are ", repeats->sizes(), " for dim ", d, " of ", v.sizes()));
  if (n == 0) return clone(v);
  if (const auto low = min(repeats.get()).item<int64_t>(); low < 0)
    throw ValueError(str("repeat_interleave: repeats must be >= 0, got ", low));
  if (const auto all = sum(to(expand(repeats.get(), {n}), kFloat64)).item<double>(); all >= 0x1p60)
    throw ShapeError(str("repeat_interleave: ", all, " elements along dim ", d, " are too many"));
  // element i of v ends at place ends[i] of the result
  const Tensor ends = cumsum(expand(repeats.get(), {n}), 0);
  const auto total = select(ends, 0, n - 1).item<int64_t>();
  const Tensor ended = bincount(ends, Tensor(), total + 1);  // how many end at each place
  const Tensor at = narrow(cumsum(ended, 0), 0, 0, total);
  if (d == 0 || d != v.dim() - 1 || !v.device().is_cpu()) return index_select(v, d, at);
  Shape sizes = v.sizes();
  sizes[d] = total;
  return gather(v, d, expand(at, sizes));  // in place of two transposed copies
}

}  // namespace weft
