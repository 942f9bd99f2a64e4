// Sums, means, variances, norms, any and all. A gradient lacks the reduced dims; keep_dims adds them with
// size 1, and expand repeats it without a copy.
#include <cmath>
#include <limits>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using formula::in_float;
using formula::keep_dims;
using launch::Dims;
using launch::reduced_dims;

namespace {

Tensor sum_over(const Tensor& x, const Dims& dims, Flag keepdim) {
  return record("sum", launch::reduce("sum", Reduce::kSum, x, dims, keepdim), {x},
                [sizes = x.sizes(), dims](const Tensor& g, Needs) -> GradList {
                  return {expand(keep_dims(g, sizes, dims), sizes)};
                });
}

Tensor mean_over(const Tensor& x, const Dims& dims, Flag keepdim) {
  launch::check_floating("mean", x);
  // A sum of half-precision numbers may overflow although their mean does not.
  const Tensor wide = launch::cast(x, accumulate_type(x.dtype()));
  const auto n = static_cast<double>(reduced_count(x, dims));
  Tensor total = launch::reduce("mean", Reduce::kSum, wide, dims, keepdim);
  Tensor y = launch::cast(launch::unary(Unary::kDivScalar, total, n), x.dtype());
  return record("mean", y, {x}, [sizes = x.sizes(), dims, n](const Tensor& g, Needs) -> GradList {
    return {expand(keep_dims(g / n, sizes, dims), sizes)};
  });
}

// x minus its mean, for gradients that are differentiated again. Subtracting the mean of the differences
// removes the rounding error of the first mean: equal numbers give exactly 0.
Tensor centred(const Tensor& x, const Dims& dims) {
  const Tensor near = x - mean_over(x, dims, true);
  return near - mean_over(near, dims, true);
}

// The mean in float64, with reduced dims of size 1, and the variance.
struct Moments {
  Tensor mean, var;
};

Moments moments_of(const char* name, const Tensor& x, const Dims& dims, double correction, Flag keepdim) {
  launch::check_floating(name, x);
  const NoGrad quiet;
  Shape order, ones = x.sizes();  // the reduced dims last, as a matrix
  for (const bool reduced : {false, true})
    for (int d = 0; d < x.dim(); ++d) {
      if (dims.on[d] == reduced) order.push_back(d);
      if (dims.on[d]) ones[d] = 1;
    }
  const int64_t count = launch::reduced_count(x, dims), rows = ones.numel();
  const Tensor mean = empty({rows}, {.dtype = kFloat64, .device = x.device()}),
               var = empty({rows}, {.dtype = x.dtype(), .device = x.device()});
  if (count == 0) {
    launch::fill_into(var, std::numeric_limits<double>::quiet_NaN());
  } else if (rows != 0) {
    const Tensor matrix = reshape(permute(x, order), {rows, count});
    launch::backend_of(x).mean_var(launch::context(), correction, matrix.view_of(), mean.view_of(),
                                   var.view_of());
  }
  return {launch::reshaped(mean, ones), launch::reshaped(var, launch::reduced_sizes(x, dims, keepdim))};
}

// scale * (x - mean), where scale has reduced dims of size 1. The mean of floats is subtracted in two parts.
Tensor scaled_differences(const Tensor& x, const Tensor& mean, const Tensor& scale) {
  const Tensor high = launch::cast(mean, x.dtype());
  Tensor near = x - high;
  if (x.dtype() != kFloat64) near = near - launch::cast(mean - launch::cast(high, kFloat64), x.dtype());
  return near * scale;
}

Tensor norm_over(const Tensor& x, double p, const Dims& dims, Flag keepdim) {
  if (is_half(x.dtype())) return in_float(x, [&](const Tensor& v) { return norm_over(v, p, dims, keepdim); });
  launch::check_floating("norm", x);
  if (!(p >= 0)) throw ValueError(str("norm: p must be >= 0, got ", p));
  const bool largest = std::isinf(p);
  for (const double power : {p, 1 / p})  // 1 / 0 is infinite, which fits
    launch::check_factor("norm", x.dtype(), power);
  if (p == 0) return sum_over(ne(x, 0).to(x.dtype()), dims, keepdim);
  if (largest && launch::reduced_count(x, dims) == 0)
    throw ShapeError(str("norm: no elements to choose from in ", x.sizes()));
  Tensor y;
  {
    NoGrad quiet;
    if (largest) y = launch::reduce("norm", Reduce::kMaxAbs, x, dims, keepdim);
    else if (p == 1) y = launch::reduce("norm", Reduce::kSumAbs, x, dims, keepdim);
    else if (p == 2)
      y = launch::unary(Unary::kSqrt, launch::reduce("norm", Reduce::kSumSquares, x, dims, keepdim));
    else y = pow(sum_over(pow(abs(x), p), dims, keepdim), 1 / p);
  }
  return record("norm", y, {x},
                [x = Saved(x), y = SavedOutput(y), p, dims, largest](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get(), kept = keep_dims(y.get(), v.sizes(), dims),
                               gk = keep_dims(g, v.sizes(), dims);
                  if (p == 1) return {gk * sign(v)};
                  if (largest) {  // shared evenly by the elements of largest magnitude
                    const Tensor hit = eq(abs(v), kept).to(v.dtype());
                    return {gk * sign(v) * (hit / sum_over(hit, dims, true))};
                  }
                  const Tensor zero = eq(kept, 0), safe = masked_fill(kept, zero, 1);
                  const Tensor ratio = v / safe;
                  const Tensor direction =
                      p == 2 ? ratio : sign(v) * pow(abs(masked_fill(ratio, eq(v, 0), 1)), p - 1);
                  return {masked_fill(gk * direction, p == 2 ? zero : logical_or(zero, eq(v, 0)), 0)};
                });
}

}  // namespace

Tensor sum(Fp32Arg x) { return sum_over(x, reduced_dims("sum", x, {}), false); }
Tensor sum(Fp32Arg x, const Shape& dims, Flag keepdim) {
  return sum_over(x, reduced_dims("sum", x, dims), keepdim);
}
Tensor mean(In x) { return mean_over(x, reduced_dims("mean", x, {}), false); }
Tensor mean(In x, const Shape& dims, Flag keepdim) {
  return mean_over(x, reduced_dims("mean", x, dims), keepdim);
}

Tensor sum_to(In x, const Shape& sizes) {
  launch::check_defined("sum_to", x);
  if (!is_floating(x->dtype()) && x->dtype() != kInt64) return sum_to(to(x.get(), kInt64), sizes);
  if (x->sizes() == sizes) return x;
  if (!(broadcast("sum_to", x->sizes(), sizes) == x->sizes()))
    throw ShapeError(str("sum_to: ", sizes, " does not broadcast to ", x->sizes()));
  const int lead = x->dim() - sizes.size();
  Shape dims;
  for (int d = 0; d < x->dim(); ++d)
    if (d < lead || (sizes[d - lead] == 1 && x->sizes()[d] != 1)) dims.push_back(d);
  Tensor y = dims.empty() ? x.get() : sum(x.get(), dims, true);
  return lead == 0 ? y : reshape(y, sizes);
}

Tensor var(Fp32Arg x) { return var(x.get(), {}); }

Tensor var(Fp32Arg x, const Shape& dim_list, double correction, Flag keepdim) {
  launch::check_defined("var", x);
  if (is_half(x->dtype()))
    return in_float(x, [&](const Tensor& v) { return var(v, dim_list, correction, keepdim); });
  const Dims dims = reduced_dims("var", x, dim_list);
  const double n = static_cast<double>(launch::reduced_count(x, dims)) - correction;
  const Moments moments = moments_of("var", x, dims, correction, keepdim);
  return record("var", moments.var, {x},
                [x = Saved(x), mean = Saved(moments.mean), dims, n](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get(), scale = keep_dims(g * (2 / n), v.sizes(), dims);
                  if (grad_enabled()) return {scale * centred(v, dims)};
                  return {scaled_differences(v, mean.get(), scale)};
                });
}

Tensor std(Fp32Arg x) { return std(x.get(), {}); }

Tensor std(Fp32Arg x, const Shape& dim_list, double correction, Flag keepdim) {
  launch::check_defined("std", x);
  if (is_half(x->dtype()))
    return in_float(x, [&](const Tensor& v) { return std(v, dim_list, correction, keepdim); });
  const Dims dims = reduced_dims("std", x, dim_list);
  const double n = static_cast<double>(launch::reduced_count(x, dims)) - correction;
  const Moments moments = moments_of("std", x, dims, correction, keepdim);
  Tensor y = launch::unary(Unary::kSqrt, moments.var);
  return record("std", y, {x},
                [x = Saved(x), y = SavedOutput(y), mean = Saved(moments.mean), dims, n](const Tensor& g,
                                                                                        Needs) -> GradList {
                  const Tensor v = x.get(), s = y.get(), flat = eq(s, 0);
                  const Tensor scaled = masked_fill(g / (masked_fill(s, flat, 1) * n), flat, 0);
                  const Tensor scale = keep_dims(scaled, v.sizes(), dims);
                  if (grad_enabled()) return {scale * centred(v, dims)};
                  return {scaled_differences(v, mean.get(), scale)};
                });
}

Tensor norm(Fp32Arg x, double p) { return norm_over(x, p, reduced_dims("norm", x, {}), false); }
Tensor norm(Fp32Arg x, double p, const Shape& dims, Flag keepdim) {
  return norm_over(x, p, reduced_dims("norm", x, dims), keepdim);
}

Tensor any(In x) { return launch::reduce("any", Reduce::kAny, x, reduced_dims("any", x, {}), false); }
Tensor any(In x, const Shape& dims, Flag keepdim) {
  return launch::reduce("any", Reduce::kAny, x, reduced_dims("any", x, dims), keepdim);
}
Tensor all(In x) { return launch::reduce("all", Reduce::kAll, x, reduced_dims("all", x, {}), false); }
Tensor all(In x, const Shape& dims, Flag keepdim) {
  return launch::reduce("all", Reduce::kAll, x, reduced_dims("all", x, dims), keepdim);
}

}  // namespace weft
