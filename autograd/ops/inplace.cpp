// In-place methods. Each checks first, then writes, and records {old x, others} if grad mode is on. If
// backward needs the old value, it is copied before the write.
#include <cmath>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/tape/inner/slot.h>

namespace weft {

namespace {

bool records(const Tensor& x, const Tensor& other) {
  return grad_enabled() && (x.requires_grad() || (other.defined() && other.requires_grad()));
}

// A write of all elements: the gradient of the old value is zero.
template <class W> Tensor& overwrite(const char* name, Tensor& x, W&& write) {
  launch::check_writable(name, x);
  record_in_place(name, x, {}, std::forward<W>(write),
                  [](const Tensor& g, Needs) -> GradList { return {zeros_like(g)}; });
  return x;
}

// x = op(x, other), for a method without a kernel in place. Tensors that backward may need are copied first.
template <class F> Tensor& replace(const char* name, Tensor& x, const Tensor& other, F&& op) {
  const bool recorded = records(x, other);
  detail::check_in_place(name, x, recorded);
  const bool shared = recorded && other.defined() && launch::share_memory(other, x);
  const Tensor y =
      launch::named(name, [&] { return op(recorded ? x.clone() : x, shared ? other.clone() : other); });
  if (y.dtype() != x.dtype() && !(is_floating(y.dtype()) && is_floating(x.dtype())) &&
      (x.dtype() == kBool || is_floating(y.dtype())))
    throw DTypeError(str(name, ": does not take ", x.dtype(), " in place"));
  return x.copy_(y);
}

}  // namespace

void Tensor::check_seen(const char* write) const {
  if (!defined()) return;  // copy_ and fill_ throw
  const TensorBody& b = body();
  uint32_t own = 1;  // references to the memory by this tensor and by a base that only it holds
  if (b.follows_base && detail::slot_of(*this)->base.ref()->use_count() == 1) ++own;
  if (b.use_count() > 1 || b.storage->use_count() > own || b.storage->is_borrowed()) return;
  throw ValueError(str(write, ": the tensor that is written to, of sizes ", b.sizes,
                       ", is a copy that nothing else holds, and the values would be lost; "
                       "write into x itself: x[..] = v, x.index_put_(..), x.masked_scatter_(..)"));
}

Tensor& Tensor::zero_() {
  launch::check_defined("zero_", *this);
  return overwrite("zero_", *this, [&] { launch::fill_into(*this, 0); });
}

Tensor& Tensor::fill_(Scalar value) {
  launch::check_defined("fill_", *this);
  launch::check_scalar("fill_", dtype(), value);
  return overwrite("fill_", *this, [&] { launch::fill_into(*this, value); });
}

Tensor& Tensor::copy_(const Tensor& src) {
  launch::check_defined("copy_", *this, src);
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
  launch::check_factor("add_", dtype(), alpha);
  record_in_place(
      "add_", *this, {o}, [&] { launch::binary_into(Binary::kAdd, *this, o, alpha); },
      [alpha](const Tensor& g, Needs needs) -> GradList {
        return {g, needs[1] ? g * alpha : Tensor()};
      });
  return *this;
}

Tensor& Tensor::add_(Scalar value) {
  launch::check_defined("add_", *this);
  launch::check_factor("add_", dtype(), value);
  launch::check_writable("add_", *this);
  record_in_place(
      "add_", *this, {}, [&] { launch::unary_into(Unary::kAddScalar, *this, value); },
      [](const Tensor& g, Needs) -> GradList { return {g}; });
  return *this;
}

Tensor& Tensor::sub_(const Tensor& other, Scalar alpha) {
  const In o(other);
  launch::check_into("sub_", *this, o);
  launch::check_factor("sub_", dtype(), alpha);
  if (dtype() == kBool) throw DTypeError("sub_: does not take bool in place");
  const auto write = [&] {
    if (alpha.d == 1) launch::binary_into(Binary::kSub, *this, o);
    else launch::binary_into(Binary::kAdd, *this, o, launch::minus(alpha, dtype()));
  };
  record_in_place("sub_", *this, {o}, write, [alpha](const Tensor& g, Needs needs) -> GradList {
    return {g, needs[1] ? g * launch::minus(alpha, g.dtype()) : Tensor()};
  });
  return *this;
}

Tensor& Tensor::sub_(Scalar value) {
  launch::check_defined("sub_", *this);
  launch::check_factor("sub_", dtype(), value);
  launch::check_writable("sub_", *this);
  if (dtype() == kBool) throw DTypeError("sub_: does not take bool in place");
  const Scalar minus = launch::minus(value, dtype());
  record_in_place(
      "sub_", *this, {}, [&] { launch::unary_into(Unary::kAddScalar, *this, minus); },
      [](const Tensor& g, Needs) -> GradList { return {g}; });
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  const In o(other);
  launch::check_into("mul_", *this, o);
  const Tensor old = o->requires_grad() && grad_enabled() ? clone() : Tensor();
  const Tensor factor = records(*this, o) && launch::share_memory(o, *this) ? o->clone() : o.get();
  record_in_place(
      "mul_", *this, {o}, [&] { launch::binary_into(Binary::kMul, *this, o); },
      [factor = Saved(factor), old = Saved(old)](const Tensor& g, Needs needs) -> GradList {
        return {needs[0] ? g * factor.get() : Tensor(), needs[1] ? g * old.get() : Tensor()};
      });
  return *this;
}

Tensor& Tensor::mul_(Scalar value) {
  launch::check_defined("mul_", *this);
  launch::check_factor("mul_", dtype(), value);
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
  const Tensor divisor = records(*this, o) && launch::share_memory(o, *this) ? o->clone() : o.get();
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
  launch::check_factor("div_", dtype(), value);
  launch::check_writable("div_", *this);
  record_in_place(
      "div_", *this, {}, [&] { launch::unary_into(Unary::kDivScalar, *this, value); },
      [value](const Tensor& g, Needs) -> GradList { return {g / value}; });
  return *this;
}

Tensor& Tensor::remainder_(const Tensor& other) {
  const In o(other);
  launch::check_into("remainder_", *this, o);
  return replace("remainder_", *this, o,
                 [](const Tensor& x, const Tensor& d) { return weft::remainder(x, d); });
}

Tensor& Tensor::remainder_(Scalar value) {
  launch::check_defined("remainder_", *this);
  launch::check_writable("remainder_", *this);
  return replace("remainder_", *this, Tensor(),
                 [value](const Tensor& x, const Tensor&) { return weft::remainder(x, value); });
}

Tensor& Tensor::pow_(const Tensor& other) {
  const In o(other);
  launch::check_into("pow_", *this, o);
  return replace("pow_", *this, o, [](const Tensor& x, const Tensor& e) { return weft::pow(x, e); });
}

Tensor& Tensor::pow_(Scalar value) {
  launch::check_defined("pow_", *this);
  launch::check_writable("pow_", *this);
  return replace("pow_", *this, Tensor(),
                 [value](const Tensor& x, const Tensor&) { return weft::pow(x, value); });
}

Tensor& Tensor::exp_() {
  launch::check_floating("exp_", *this);
  launch::check_writable("exp_", *this);
  record_in_place(
      "exp_", *this, {}, [&] { launch::unary_into(Unary::kExp, *this); },
      [y = SavedOutput(*this, 0, 1)](const Tensor& g, Needs) -> GradList { return {g * y.get()}; });
  return *this;
}

Tensor& Tensor::neg_() {
  launch::check_defined("neg_", *this);
  launch::check_writable("neg_", *this);
  record_in_place(
      "neg_", *this, {}, [&] { launch::unary_into(Unary::kNeg, *this); },
      [](const Tensor& g, Needs) -> GradList { return {weft::neg(g)}; });
  return *this;
}

namespace {

Tensor& bits_into(const char* name, Binary op, Tensor& x, const Tensor& other) {
  launch::check_defined(name, x, other);
  const In o(other);
  for (const DType t : {x.dtype(), o->dtype()})
    if (is_floating(t)) throw DTypeError(str(name, ": takes bool and integers, got ", t));
  launch::check_into(name, x, o);
  if (promote(x.dtype(), o->dtype()) != x.dtype())
    throw DTypeError(str(name, ": cannot write ", o->dtype(), " into ", x.dtype(), " in place"));
  record_in_place(
      name, x, {}, [&] { launch::binary_into(op, x, o); },
      [](const Tensor&, Needs) -> GradList { return {}; });
  return x;
}

Tensor& bits_into(const char* name, Binary op, Tensor& x, Scalar value) {
  launch::check_defined(name, x);
  launch::check_scalar(name, x.dtype(), value);
  return bits_into(name, op, x, formula::number_like(x, value));
}

}  // namespace

Tensor& Tensor::bitwise_and_(const Tensor& other) {
  return bits_into("bitwise_and_", Binary::kBitwiseAnd, *this, other);
}
Tensor& Tensor::bitwise_and_(Scalar value) {
  return bits_into("bitwise_and_", Binary::kBitwiseAnd, *this, value);
}
Tensor& Tensor::bitwise_or_(const Tensor& other) {
  return bits_into("bitwise_or_", Binary::kBitwiseOr, *this, other);
}
Tensor& Tensor::bitwise_or_(Scalar value) {
  return bits_into("bitwise_or_", Binary::kBitwiseOr, *this, value);
}
Tensor& Tensor::bitwise_xor_(const Tensor& other) {
  return bits_into("bitwise_xor_", Binary::kBitwiseXor, *this, other);
}
Tensor& Tensor::bitwise_xor_(Scalar value) {
  return bits_into("bitwise_xor_", Binary::kBitwiseXor, *this, value);
}

Tensor& Tensor::masked_fill_(const Tensor& mask, Scalar value) {
  launch::check_defined("masked_fill_", *this, mask);
  const In m(mask);
  if (m->dtype() != kBool) throw DTypeError(str("masked_fill_: the mask must be bool, got ", m->dtype()));
  launch::check_scalar("masked_fill_", dtype(), value);
  launch::check_into("masked_fill_", *this, m);
  const Tensor where = launch::share_memory(m, *this) ? m->clone() : m.get(),
               number = formula::number_like(*this, value);
  const auto write = [&] {
    if (numel() == 0) return;
    launch::backend_of(*this).where(launch::context(), launch::expand_view(where, sizes()),
                                    launch::expand_view(number, sizes()), view_of(), view_of());
  };
  record_in_place("masked_fill_", *this, {}, write,
                  [mask = Saved(where)](const Tensor& g, Needs) -> GradList {
                    return {weft::masked_fill(g, mask.get(), 0)};
                  });
  return *this;
}

Tensor& Tensor::clamp_(std::optional<Scalar> from, std::optional<Scalar> to) {
  launch::check_defined("clamp_", *this);
  const std::pair<Scalar, Scalar> bounds = formula::clamp_bounds("clamp_", dtype(), from, to);
  const Scalar low = bounds.first, high = bounds.second;
  launch::check_writable("clamp_", *this);
  const Tensor outside =
      records(*this, Tensor()) ? weft::logical_not(weft::logical_and(ge(low), le(high))) : Tensor();
  record_in_place(
      "clamp_", *this, {},
      [&] {
        if (low.d <= high.d) launch::unary_into(Unary::kClamp, *this, low, high);
        else launch::unary_into(Unary::kMulScalar, *this, NAN);  // a bound is NaN
      },
      [outside = Saved(outside)](const Tensor& g, Needs) -> GradList {
        return {weft::masked_fill(g, outside.get(), 0)};
      });
  return *this;
}

Tensor& Tensor::relu_() {
  launch::check_defined("relu_", *this);
  launch::check_writable("relu_", *this);
  record_in_place(
      "relu_", *this, {}, [&] { launch::unary_into(Unary::kRelu, *this); },
      [y = SavedOutput(*this, 0, 1)](const Tensor& g, Needs) -> GradList {
        return {weft::masked_fill(g, weft::le(y.get().detach(), 0), 0)};
      });
  return *this;
}

Tensor& Tensor::uniform_(double low, double high) {
  launch::check_floating("uniform_", *this);
  if (!std::isfinite(low) || !std::isfinite(high))
    throw ValueError(str("uniform_: the bounds must be finite, got ", low, " and ", high));
  if (!(low <= high)) throw ValueError(str("uniform_: low ", low, " is above high ", high));
  for (const double end : {low, high}) launch::check_scalar("uniform_", dtype(), end);
  return overwrite("uniform_", *this, [&] {
    if (numel() != 0)
      launch::backend_of(*this).uniform(launch::context(), default_generator().take(numel()), low, high,
                                        view_of());
  });
}

Tensor& Tensor::normal_(double mean, double stddev) {
  launch::check_floating("normal_", *this);
  if (!(stddev >= 0)) throw ValueError(str("normal_: stddev must be >= 0, got ", stddev));
  if (!std::isfinite(mean) || !std::isfinite(stddev))
    throw ValueError(str("normal_: mean and stddev must be finite, got ", mean, " and ", stddev));
  for (const double parameter : {mean, stddev}) launch::check_scalar("normal_", dtype(), parameter);
  return overwrite("normal_", *this, [&] {
    if (numel() != 0)
      launch::backend_of(*this).normal(launch::context(), default_generator().take(numel()), mean, stddev,
                                       view_of());
  });
}

Tensor& Tensor::bernoulli_(double p) {
  launch::check_defined("bernoulli_", *this);
  if (!(p >= 0 && p <= 1)) throw ValueError(str("bernoulli_: p must be in [0, 1], got ", p));
  return overwrite("bernoulli_", *this, [&] {
    if (numel() == 0) return;
    const Tensor chance = scalar_tensor(p, {.dtype = kFloat64, .device = device()});
    launch::backend_of(*this).bernoulli(launch::context(), default_generator().take(numel()),
                                        launch::expand_view(chance, sizes()), view_of());
  });
}

}  // namespace weft
