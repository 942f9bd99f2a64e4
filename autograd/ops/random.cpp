// Random operations. Each takes a range of counters from a generator once; the backward of dropout draws the
// same range again.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

Generator& chosen(Generator* g) { return g ? *g : default_generator(); }

/// Row-major index and value of the first element of p whose `sound` is false; index -1 if all are true.
std::pair<int64_t, double> first_unsound(const Tensor& p, const Tensor& sound) {
  if (all(sound).item<bool>()) return {-1, 0};
  const int64_t at = nonzero(logical_not(reshape(sound, {-1}))).select(0, 0).item<int64_t>();
  return {at, reshape(p, {-1}).select(0, at).item<double>()};
}

}  // namespace

Tensor formula::dropout_of(const Tensor& x, double p, PhiloxKey key) {
  Tensor y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
  if (y.numel() != 0) launch::backend_of(x).dropout(launch::context(), key, p, x.view_of(), y.view_of());
  return record("dropout", y, {x},
                [p, key](const Tensor& g, Needs) -> GradList { return {dropout_of(g, p, key)}; });
}

Tensor dropout(In x, double p, bool training, Generator* generator) {
  launch::check_defined("dropout", x);
  if (!(p >= 0 && p <= 1)) throw ValueError(str("dropout: p must be in [0, 1], got ", p));
  launch::check_floating("dropout", x);
  if (!training || p == 0) return x;
  const PhiloxKey key = chosen(generator).take(x->numel());
  return p == 1 ? masked_fill(x.get(), ones({}, {.dtype = kBool, .device = x->device()}), 0)
                : formula::dropout_of(x, p, key);
}

Tensor multinomial(In weights, Whole count, bool replacement, Generator* generator) {
  launch::check_floating("multinomial", weights);
  if (weights->dim() != 1 && weights->dim() != 2)
    throw ShapeError(str("multinomial: weights must be [K] or [R, K], are ", weights->sizes()));
  if (count <= 0) throw ValueError(str("multinomial: count must be positive, got ", count));
  NoGrad quiet;
  const int64_t width = weights->sizes().back(), rows = weights->dim() == 1 ? 1 : weights->sizes()[0];
  const Tensor p = launch::reshaped(launch::contiguous(weights), {rows, width});
  if (width == 0) throw ValueError(str("multinomial: no weights to draw from in ", weights->sizes()));
  if (rows != 0 && p.device().is_cpu()) {  // kernels of other devices report it, so this call does not wait
    const Tensor possible = gt(p, 0);
    const auto [bad, weight] = first_unsound(p, logical_and(ge(p, 0), isfinite(p)));
    if (bad >= 0)
      throw ValueError(str("multinomial: weight ", weight, " of class ", bad % width, " in row ", bad / width,
                           " is negative or not finite"));
    const int64_t fewest = min(sum(possible, {1})).item<int64_t>();
    if (fewest < (replacement ? 1 : int64_t{count}))
      throw ValueError(str("multinomial: ", count, replacement ? " draws" : " draws without replacement",
                           " from a row with ", fewest, " positive weights"));
  }
  launch::checked_bytes("multinomial", {rows, count}, kInt64);
  Tensor at = empty({rows, count}, {.dtype = kInt64, .device = weights->device()});
  if (rows != 0)
    launch::backend_of(p).multinomial(launch::context(),
                                      chosen(generator).take(rows * (replacement ? int64_t{count} : width)),
                                      replacement, p.view_of(), at.view_of());
  return weights->dim() == 1 ? launch::reshaped(at, {count}) : at;
}

Tensor bernoulli(In p, Generator* generator) {
  launch::check_floating("bernoulli", p);
  NoGrad quiet;
  if (p->device().is_cpu()) {
    if (const auto [bad, chance] = first_unsound(p, logical_and(ge(p.get(), 0), le(p.get(), 1))); bad >= 0)
      throw ValueError(str("bernoulli: probability ", chance, " of element ", bad, " is outside [0, 1]"));
  }
  Tensor y = empty(p->sizes(), {.dtype = p->dtype(), .device = p->device()});
  if (y.numel() != 0)
    launch::backend_of(y).bernoulli(launch::context(), chosen(generator).take(p->numel()), p->view_of(),
                                    y.view_of());
  return y;
}

}  // namespace weft
