// gradcheck and gradgradcheck by central differences, (f(x + eps) - f(x - eps)) / (2 eps) for each element x
// of each input. The second derivative is the gradcheck of the function that computes gradients.
#include <weft/autograd/tape/gradcheck.h>

#include <cmath>

#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/tensor/factories.h>

namespace weft {
namespace {

void check_inputs(const char* what, const std::vector<Tensor>& inputs) {
  bool any = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    if (!x.defined() || !x.requires_grad()) continue;
    any = true;
    if (x.dtype() != kFloat64)
      throw DTypeError(
          str(what, ": input ", static_cast<int64_t>(i), " is ", x.dtype(), "; differences need float64"));
    if (!x.device().is_cpu())
      throw DeviceError(str(what, ": input ", static_cast<int64_t>(i), " lies on ", x.device()));
    if (!x.is_leaf())
      throw AutogradError(str(what, ": input ", static_cast<int64_t>(i), " is the result of ",
                              x.grad_fn_name(), ", not a leaf"));
    if (x.is_frozen())
      throw ValueError(str(what, ": input ", static_cast<int64_t>(i), " is frozen; clone() it first"));
    if (detail::overlaps_itself(x.sizes(), x.strides()))
      throw AutogradError(str(what, ": input ", static_cast<int64_t>(i), " shows elements twice"));
  }
  if (!any) throw AutogradError(str(what, ": no input requires grad"));
}

/// Random cotangents: N(0, 1) for floating outputs, undefined for others.
std::vector<Tensor> cotangents(const std::vector<Tensor>& outputs, uint64_t seed) {
  Generator generator(seed);
  std::vector<Tensor> out;
  for (const Tensor& y : outputs)
    out.push_back(y.defined() && y.is_floating_point() ? randn(y.sizes(), {.dtype = y.dtype()}, &generator)
                                                       : Tensor());
  return out;
}

double inner(const std::vector<Tensor>& outputs, const std::vector<Tensor>& vs) {
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!vs[i].defined()) continue;
    const std::vector<double> y = outputs[i].to_vector<double>(), v = vs[i].to_vector<double>();
    for (size_t k = 0; k < y.size(); ++k) sum += y[k] * v[k];
  }
  return sum;
}

/// Pointer to the element of row-major index `k`.
double* element(const Tensor& x, int64_t k) {
  int64_t offset = 0;
  for (int d = x.dim() - 1; d >= 0; --d) {
    offset += k % x.sizes()[d] * x.strides()[d];
    k /= x.sizes()[d];
  }
  return static_cast<double*>(x.address()) + offset;
}

}  // namespace

GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  check_inputs("gradcheck", inputs);
  std::vector<Tensor> outputs;
  {
    EnableGrad on;
    outputs = f(inputs);
  }
  const std::vector<Tensor> vs = cotangents(outputs, options.seed);
  const auto value = [&] {
    NoGrad off;
    for (const Tensor& x : inputs)  // the writes below do not count
      if (x.defined()) x.body().storage->forget_packs();
    return inner(f(inputs), vs);
  };
  if (const double first = value(), second = value();
      first != second && !(std::isnan(first) && std::isnan(second)))
    return {false, str("the function is not deterministic: ", first, " and ", second)};

  std::vector<Tensor> roots, seeds, leaves;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (vs[i].defined() && outputs[i].requires_grad()) {
      roots.push_back(outputs[i]);
      seeds.push_back(vs[i]);
    }
  for (const Tensor& x : inputs)
    if (x.defined() && x.requires_grad()) leaves.push_back(x);
  std::vector<Tensor> grads(leaves.size());
  if (!roots.empty())
    grads = grad(roots, leaves, seeds, {.retain_graph = false, .create_graph = false, .allow_unused = true});

  GradcheckResult result;
  double worst = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Tensor& x = leaves[i];
    const int64_t n = x.numel();
    const std::vector<double> analytic =
        grads[i].defined() ? grads[i].to_vector<double>() : std::vector<double>(static_cast<size_t>(n), 0.0);
    for (int64_t k = 0; k < n; ++k) {
      double* p = element(x, k);
      const double before = *p;
      *p = before + options.eps;
      const double above = value();
      *p = before - options.eps;
      const double below = value();
      *p = before;
      x.body().storage->forget_packs();
      const double numeric = (above - below) / (2 * options.eps), given = analytic[static_cast<size_t>(k)];
      const double excess = std::abs(given - numeric) - options.atol - options.rtol * std::abs(numeric);
      if (excess <= 0 || (!result.ok && excess <= worst)) continue;
      const bool broken = std::isnan(excess);
      if (!broken || result.ok)
        result = {false, str("input ", static_cast<int64_t>(i), ", element ", k, " of sizes ", x.sizes(),
                             ": backward says ", given, ", differences say ", numeric)};
      worst = broken ? worst : excess;
    }
  }
  return result;
}

GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options) {
  check_inputs("gradgradcheck", inputs);
  std::vector<Tensor> all = inputs;
  std::vector<bool> used;  // outputs that get a cotangent
  {
    EnableGrad on;
    const std::vector<Tensor> outputs = f(inputs);
    const std::vector<Tensor> vs = cotangents(outputs, options.seed + 1);
    for (size_t i = 0; i < outputs.size(); ++i) {
      used.push_back(vs[i].defined() && outputs[i].requires_grad());
      if (used.back()) all.push_back(vs[i].detach().requires_grad_());
    }
  }
  const size_t count = inputs.size();
  const TensorFunction gradients = [&](const std::vector<Tensor>& given) {
    EnableGrad on;
    const std::vector<Tensor> xs(given.begin(), given.begin() + static_cast<int64_t>(count));
    const std::vector<Tensor> outputs = f(xs);
    std::vector<Tensor> roots, leaves;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (used[i]) roots.push_back(outputs[i]);
    for (const Tensor& x : xs)
      if (x.defined() && x.requires_grad()) leaves.push_back(x);
    std::vector<Tensor> out;
    for (Tensor& g : grad(roots, leaves, {given.begin() + static_cast<int64_t>(count), given.end()},
                          {.retain_graph = true, .create_graph = true, .allow_unused = true}))
      if (g.defined()) out.push_back(std::move(g));
    return out;
  };
  return gradcheck(gradients, all, options);
}

}  // namespace weft
