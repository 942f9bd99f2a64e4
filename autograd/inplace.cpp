// In-place methods. Each checks first, then writes, and records {old x, others} when grad mode is on. What backward needs of the old value is
// copied before the write.
#include <weft/autograd/formula.h>

namespace weft {

namespace {

bool records(const Tensor& x, const Tensor& other) {
  return grad_enabled() && (x.requires_grad() || (other.defined() && other.requires_grad()));
}

// Overwriting whole: nothing of the old value lives on.
template <class W> Tensor& overwrite(const char* name, Tensor& x, W&& write) {
  launch::check_writable(name, x);
  record_in_place(name, x, {}, std::forward<W>(write),
                  [](const Tensor& g, Needs) -> GradList { return {zeros_like(g)}; });
  return x;
}

}  // namespace

Tensor& Tensor::zero_() {
  return overwrite("zero_", *this, [&] { launch::fill_into(*this, 0); });
}

Tensor& Tensor::fill_(Scalar value) {
  launch::check_scalar("fill_", dtype(), value);
  return overwrite("fill_", *this, [&] { launch::fill_into(*this, value); });
}

Tensor& Tensor::copy_(const Tensor& src) {
  const In s(src);
  if (!(broadcast("copy_", sizes(), s->sizes()) == sizes()))
    throw ShapeError(str("copy_: ", s->sizes(), " does not broadcast to ", sizes()));
  launch::check_writable("copy_", *this);
  record_in_place(
      "copy_", *this, {s}, [&] { launch::copy_into(*this, s); },
      [device = s->device()](const Tensor& g, Needs needs) -> GradList {
        return {needs[0] ? zeros_like(g) : Tensor(), needs[1] ? weft::to(g, device) : Tensor()};
      });
  return *this;
}

Tensor& Tensor::add_(const Tensor& other, Scalar alpha) {
  const In o(other);
  launch::check_into("add_", *this, o);
  launch::check_scalar("add_", dtype(), alpha);
  record_in_place(
      "add_", *this, {o}, [&] { launch::binary_into(Binary::kAdd, *this, o, alpha); },
      [alpha](const Tensor& g, Needs needs) -> GradList {
        return {g, needs[1] ? g * alpha : Tensor()};
      });
  return *this;
}

Tensor& Tensor::add_(Scalar value) {
  launch::check_scalar("add_", dtype(), value);
  launch::check_writable("add_", *this);
  record_in_place(
      "add_", *this, {}, [&] { launch::unary_into(Unary::kAddScalar, *this, value); },
      [](const Tensor& g, Needs) -> GradList { return {g}; });
  return *this;
}

Tensor& Tensor::sub_(const Tensor& other) {
  const In o(other);
  launch::check_into("sub_", *this, o);
  record_in_place(
      "sub_", *this, {o}, [&] { launch::binary_into(Binary::kSub, *this, o); },
      [](const Tensor& g, Needs needs) -> GradList {
        return {g, needs[1] ? weft::neg(g) : Tensor()};
      });
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  const In o(other);
  launch::check_into("mul_", *this, o);
  const Tensor old = o->requires_grad() && grad_enabled() ? clone() : Tensor();
  const Tensor factor = records(*this, o) && o->shares_storage(*this) ? o->clone() : o.get();
  record_in_place(
      "mul_", *this, {o}, [&] { launch::binary_into(Binary::kMul, *this, o); },
      [factor = Saved(factor), old = Saved(old)](const Tensor& g, Needs needs) -> GradList {
        return {needs[0] ? g * factor.get() : Tensor(), needs[1] ? g * old.get() : Tensor()};
      });
  return *this;
}

Tensor& Tensor::mul_(Scalar value) {
  launch::check_scalar("mul_", dtype(), value);
  launch::check_writable("mul_", *this);
  record_in_place(
      "mul_", *this, {}, [&] { launch::unary_into(Unary::kMulScalar, *this, value); },
      [value](const Tensor& g, Needs) -> GradList { return {g * value}; });
  return *this;
}

Tensor& Tensor::div_(const Tensor& other) {
  const In o(other);
  launch::check_into("div_", *this, o);
  launch::check_floating("div_", *this);
  const Tensor old = o->requires_grad() && grad_enabled() ? clone() : Tensor();
  const Tensor divisor = records(*this, o) && o->shares_storage(*this) ? o->clone() : o.get();
  record_in_place(
      "div_", *this, {o}, [&] { launch::binary_into(Binary::kDiv, *this, o); },
      [divisor = Saved(divisor), old = Saved(old)](const Tensor& g, Needs needs) -> GradList {
        const Tensor d = divisor.get(), da = g / d;
        return {da, needs[1] ? weft::neg(da * (old.get() / d)) : Tensor()};
      });
  return *this;
}

Tensor& Tensor::div_(Scalar value) {
  launch::check_floating("div_", *this);
  launch::check_writable("div_", *this);
  record_in_place(
      "div_", *this, {}, [&] { launch::unary_into(Unary::kDivScalar, *this, value); },
      [value](const Tensor& g, Needs) -> GradList { return {g / value}; });
  return *this;
}

Tensor& Tensor::clamp_(Scalar low, Scalar high) {
  if (!(low.d <= high.d)) throw ValueError(str("clamp_: low ", low.d, " is above high ", high.d));
  launch::check_scalar("clamp_", dtype(), low);
  launch::check_scalar("clamp_", dtype(), high);
  launch::check_writable("clamp_", *this);
  const Tensor outside = records(*this, Tensor()) ? logical_or(lt(*this, low), gt(*this, high)) : Tensor();
  record_in_place(
      "clamp_", *this, {}, [&] { launch::unary_into(Unary::kClamp, *this, low, high); },
      [outside](const Tensor& g, Needs) -> GradList { return {weft::masked_fill(g, outside, 0)}; });
  return *this;
}

Tensor& Tensor::relu_() {
  launch::check_writable("relu_", *this);
  record_in_place(
      "relu_", *this, {}, [&] { launch::unary_into(Unary::kRelu, *this); },
      [y = SavedOutput(*this, 0, 1)](const Tensor& g, Needs) -> GradList {
        return {weft::masked_fill(g, le(y.get().detach(), 0), 0)};
      });
  return *this;
}

Tensor& Tensor::uniform_(double low, double high) {
  launch::check_floating("uniform_", *this);
  if (!(low <= high)) throw ValueError(str("uniform_: low ", low, " is above high ", high));
  return overwrite("uniform_", *this, [&] {
    if (numel() != 0)
      launch::backend_of(*this).uniform(launch::context(), default_generator().take(numel()), low, high,
                                        view_of());
  });
}

Tensor& Tensor::normal_(double mean, double stddev) {
  launch::check_floating("normal_", *this);
  if (!(stddev >= 0)) throw ValueError(str("normal_: stddev must be >= 0, got ", stddev));
  return overwrite("normal_", *this, [&] {
    if (numel() != 0)
      launch::backend_of(*this).normal(launch::context(), default_generator().take(numel()), mean, stddev,
                                       view_of());
  });
}

Tensor& Tensor::bernoulli_(double p) {
  if (!(p >= 0 && p <= 1)) throw ValueError(str("bernoulli_: p must be in [0, 1], got ", p));
  return overwrite("bernoulli_", *this, [&] {
    if (numel() == 0) return;
    const Tensor chance = scalar_tensor(p, {.dtype = kFloat64, .device = device()});
    launch::backend_of(*this).bernoulli(launch::context(), default_generator().take(numel()),
                                        launch::expand_view(chance, sizes()), view_of());
  });
}

}  // namespace weft
