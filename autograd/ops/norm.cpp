// layer_norm, with one fused pass over rows each way; under create_graph its backward is composed of plain
// operations. normalize, by a p-norm.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

Tensor composed_layer_norm(const Tensor& x, const Shape& dims, const Tensor& weight, const Tensor& bias,
                           double eps) {
  // as in the kernel: subtracting the mean twice removes its rounding error
  const Tensor near = x - mean(x, dims, true), centred = near - mean(near, dims, true);
  Tensor y = centred * rsqrt(mean(square(centred), dims, true) + eps);
  if (weight.defined()) y = y * weight;
  return bias.defined() ? y + bias : y;
}

}  // namespace

Tensor layer_norm(Fp32Arg x, const Shape& sizes, Fp32Arg weight, Fp32Arg bias, double eps) {
  launch::check_floating("layer_norm", x);
  const int lead = x->dim() - sizes.size();
  bool fits = lead >= 0 && !sizes.empty();
  Shape dims;
  for (int d = 0; fits && d < sizes.size(); ++d) {
    fits = x->sizes()[lead + d] == sizes[d];
    dims.push_back(lead + d);
  }
  if (!fits) throw ShapeError(str("layer_norm: x ", x->sizes(), " does not end in ", sizes));
  for (const Tensor* p : {&weight.get(), &bias.get()}) {
    if (!p->defined()) continue;
    if (!(p->sizes() == sizes))
      throw ShapeError(str("layer_norm: weight and bias must be ", sizes, ", got ", p->sizes()));
    if (p->dtype() != x->dtype())
      throw DTypeError(str("layer_norm: x is ", x->dtype(), ", weight or bias is ", p->dtype()));
    launch::check_devices("layer_norm", x, *p);
  }
  if (!(eps >= 0)) throw ValueError(str("layer_norm: eps must be >= 0, got ", eps));
  launch::check_factor("layer_norm", x->dtype(), eps);

  const int64_t width = sizes.numel(), rows = width == 0 ? 0 : x->numel() / width;
  const auto flat = [width](const Tensor& p) {
    return p.defined() ? launch::reshaped(launch::contiguous(p), {width}) : Tensor();
  };
  const Tensor x2 = launch::reshaped(launch::contiguous(x), {rows, width}), w = flat(weight), b = flat(bias);
  const TensorOptions like{.dtype = x->dtype(), .device = x->device()};
  const TensorOptions wide{.dtype = accumulate_type(x->dtype()), .device = x->device()};
  Tensor y = empty(x->sizes(), like), mean = empty({rows}, wide), rstd = empty({rows}, wide);
  if (rows != 0)
    launch::backend_of(x).layer_norm(
        launch::context(), x2.view_of(), formula::optional_view(w), formula::optional_view(b), eps,
        launch::reshaped(y, {rows, width}).view_of(), mean.view_of(), rstd.view_of());
  return record("layer_norm", y, {x, weight, bias},
                [x = Saved(x), weight = Saved(weight), bias = Saved(bias), means = Saved(mean),
                 rstds = Saved(rstd), dims, eps, rows, width](const Tensor& g, Needs needs) -> GradList {
                  const Tensor v = x.get(), wv = weight.defined() ? weight.get() : Tensor(),
                               bv = bias.defined() ? bias.get() : Tensor();
                  if (grad_enabled()) {
                    return formula::composed_backward(
                        [&](const std::vector<Tensor>& in) {
                          return std::vector<Tensor>{composed_layer_norm(in[0], dims, in[1], in[2], eps)};
                        },
                        {v, wv, bv}, {g}, needs);
                  }
                  const Tensor mean = means.get(), rstd = rstds.get();
                  const TensorOptions kind{.dtype = v.dtype(), .device = v.device()};
                  const auto rows_of = [&](const Tensor& t) {
                    return launch::reshaped(launch::contiguous(t), {rows, width});
                  };
                  const Tensor dx = empty(v.sizes(), kind);
                  const Tensor dw =
                      wv.defined() && needs[1] ? launch::zeros(wv.sizes(), v.dtype(), v.device()) : Tensor();
                  const Tensor db =
                      bv.defined() && needs[2] ? launch::zeros(bv.sizes(), v.dtype(), v.device()) : Tensor();
                  const auto line = [&](const Tensor& t) {
                    return t.defined() ? launch::reshaped(t, {width}).view_of() : View{};
                  };
                  const Tensor w1 = wv.defined() ? launch::contiguous(wv) : Tensor();
                  if (rows != 0)
                    launch::backend_of(v).layer_norm_backward(
                        launch::context(), rows_of(v).view_of(), line(w1), mean.view_of(), rstd.view_of(),
                        rows_of(g).view_of(), rows_of(dx).view_of(), line(dw), line(db));
                  return {dx, dw, db};
                });
}

Tensor normalize(Fp32Arg x, double p, Whole dim, double eps) {
  launch::check_floating("normalize", x);
  launch::line_dim("normalize", dim, x);
  launch::check_factor("normalize", x->dtype(), eps);
  if (is_half(x->dtype()))
    return formula::in_float(x, [&](const Tensor& v) { return normalize(v, p, dim, eps); });
  return launch::named("normalize", [&] { return x.get() / maximum(norm(x.get(), p, {dim}, true), eps); });
}

}  // namespace weft
