// softmax, log_softmax and logsumexp along one dim. The kernels take rows of a matrix [R, K], so the dim is
// moved to the end first.
#include <limits>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

Tensor run_softmax(const char* name, bool log, const Tensor& x, Whole dim) {
  launch::check_floating(name, x);
  const launch::Rows r = launch::rows(name, x, dim);
  Tensor y = launch::empty_rows(r, r.width, x.dtype());
  if (y.numel() != 0)
    launch::backend_of(x).softmax(launch::context(), log, r.view(), launch::rows_view(r, y));
  return launch::from_rows(r, y);
}

Tensor softmax_grad(const char* name, bool log, const Tensor& y, const Tensor& g, Whole dim) {
  const launch::Rows ry = launch::rows(name, y, dim),
                     rg = launch::rows(name, launch::Cast(g, y.dtype()), dim);
  Tensor dx = launch::empty_rows(ry, ry.width, y.dtype());
  if (dx.numel() != 0)
    launch::backend_of(y).softmax_backward(launch::context(), log, ry.view(), rg.view(),
                                           launch::rows_view(ry, dx));
  return launch::from_rows(ry, dx);
}

Tensor sum_kept(const Tensor& x, Whole dim) { return x.dim() == 0 ? x : sum(x, {dim}, true); }

}  // namespace

Tensor softmax(Fp32Arg x, Whole dim) {
  Tensor y = run_softmax("softmax", false, x, dim);
  return record("softmax", y, {x}, [y = SavedOutput(y), dim](const Tensor& g, Needs) -> GradList {
    const Tensor p = y.get();
    if (!grad_enabled()) return {softmax_grad("softmax", false, p, g, dim)};
    return {p * (g - sum_kept(g * p, dim))};
  });
}

Tensor log_softmax(Fp32Arg x, Whole dim) {
  Tensor y = run_softmax("log_softmax", true, x, dim);
  return record("log_softmax", y, {x}, [y = SavedOutput(y), dim](const Tensor& g, Needs) -> GradList {
    const Tensor p = y.get();
    if (!grad_enabled()) return {softmax_grad("log_softmax", true, p, g, dim)};
    return {g - exp(p) * sum_kept(g, dim)};
  });
}

Tensor logsumexp(Fp32Arg x, Whole dim, Flag keepdim) {
  launch::check_floating("logsumexp", x);
  const launch::Rows r = launch::rows("logsumexp", x, dim);
  Tensor values = empty({r.count}, {.dtype = x->dtype(), .device = x->device()});
  if (r.width == 0) launch::fill_into(values, -std::numeric_limits<double>::infinity());
  else if (r.count != 0) launch::backend_of(x).logsumexp(launch::context(), r.view(), values.view_of());
  return record("logsumexp", launch::from_row_values(r, values, keepdim), {x},
                [x = Saved(x), d = r.dim, keepdim](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {softmax(v, d) * (keepdim || v.dim() == 0 ? g : unsqueeze(g, d))};
                });
}

}  // namespace weft
