// Pointwise launches and the checks they share. The path of a small op is short on purpose: equal dtypes and sizes take no detour
// through promotion or broadcasting.
#include <weft/tensor/launch.h>

#include <cmath>

namespace weft::launch {

Context& context() {
  thread_local Context c;
  return c;
}

std::string op_name(const char* row) {
  std::string name;
  for (const char* c = row; *c; ++c) {
    if (*c >= 'A' && *c <= 'Z') {
      if (!name.empty()) name += '_';
      name += static_cast<char>(*c - 'A' + 'a');
    } else {
      name += *c;
    }
  }
  const size_t tail = name.rfind("_scalar");
  if (tail != std::string::npos && tail + 7 == name.size()) name.resize(tail);
  return name;
}

namespace {

[[noreturn]] [[gnu::cold]] void throw_devices(const char* name, const Tensor& a, const Tensor& b) {
  throw DeviceError(str(name, ": tensors are on different devices: ", a.device(), " and ", b.device()));
}

[[noreturn]] [[gnu::cold]] void throw_scalar(const std::string& name, DType t, Scalar s) {
  throw DTypeError(str(name, ": the number ", s.d, " does not fit ", t,
                       "; a number never promotes a tensor, convert it with to(kFloat32)"));
}

bool fractional(DType t, Scalar s) {
  return !s.integral && !is_floating(t) && (s.d != std::trunc(s.d) || !std::isfinite(s.d));
}

bool is_scalar_test(Unary op) { return op >= Unary::kEqScalar && op <= Unary::kGeScalar; }

// A comparison is exact: an integer tensor and a number outside its type meet in a type that holds both.
DType scalar_test_dtype(DType t, Scalar s) {
  if (is_floating(t)) return t;
  return fractional(t, s) ? kFloat64 : kInt64;
}

// What a unary op computes in; scalars that would be cut are refused.
DType unary_dtype(Unary op, DType t, Scalar s, Scalar u) {
  const OpClass cls = op_class(op);
  if (is_scalar_test(op)) return scalar_test_dtype(t, s);
  const DType dtype = compute_dtype(cls, t);
  if (cls == OpClass::kNumeric && (fractional(dtype, s) || fractional(dtype, u)))
    throw_scalar(op_name(to_string(op)), dtype, fractional(dtype, s) ? s : u);
  return dtype;
}

bool overlaps_itself(const Tensor& y) {
  for (int d = 0; d < y.dim(); ++d)
    if (y.sizes()[d] > 1 && y.strides()[d] == 0) return true;
  return false;
}

bool same_geometry(const Tensor& a, const Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.dtype() == b.dtype();
}

// An argument of an in-place write: in y's dtype, and a copy when it shares memory with y in another arrangement.
Tensor argument_for(const Tensor& y, const Tensor& x) {
  Tensor a = cast(x, y.dtype());
  return a.shares_storage(y) && !same_geometry(a, y) ? clone(a) : a;
}

}  // namespace

void check_devices(const char* name, const Tensor& a, const Tensor& b) {
  if (!(a.device() == b.device())) throw_devices(name, a, b);
}

void check_floating(const char* name, const Tensor& x) {
  if (!is_floating(x.dtype())) throw DTypeError(str(name, ": takes floating types, got ", x.dtype()));
}

void check_index(const char* name, const Tensor& x) {
  if (x.dtype() != kInt64 && x.dtype() != kInt32)
    throw DTypeError(str(name, ": indices must be int64 or int32, got ", x.dtype()));
}

void check_scalar(const char* name, DType t, Scalar s) {
  if (fractional(t, s)) throw_scalar(name, t, s);
}

View expand_view(const Tensor& x, const Shape& sizes) {
  View v = x.view_of();
  if (v.sizes == sizes) return v;
  Shape strides(sizes.size(), 0);
  const int lead = sizes.size() - v.ndim();
  for (int d = 0; d < v.ndim(); ++d) strides[lead + d] = v.sizes[d] == 1 ? 0 : v.strides[d];
  v.sizes = sizes;
  v.strides = strides;
  return v;
}

Tensor unary(Unary op, const Tensor& x, Scalar s, Scalar t) {
  const DType dtype = unary_dtype(op, x.dtype(), s, t);
  const Cast in(x, dtype);
  Tensor y =
      empty(x.sizes(), {.dtype = op_class(op) == OpClass::kTest ? kBool : dtype, .device = x.device()});
  if (y.numel() != 0) backend_of(x).unary(context(), op, s, t, in->view_of(), y.view_of());
  return y;
}

Tensor binary(Binary op, const Tensor& a, const Tensor& b, Scalar s, Scalar t) {
  const OpClass cls = op_class(op);
  const Device device = a.device();
  if (!(device == b.device())) throw_devices(op_name(to_string(op)).c_str(), a, b);
  const DType dtype = compute_dtype(cls, a.dtype() == b.dtype() ? a.dtype() : promote(a.dtype(), b.dtype()));
  if (op == Binary::kAdd && fractional(dtype, s)) throw_scalar("add", dtype, s);
  const DType out = cls == OpClass::kTest ? kBool : dtype;
  if (a.dtype() == dtype && b.dtype() == dtype && a.sizes() == b.sizes()) {
    Tensor y = empty(a.sizes(), {.dtype = out, .device = device});
    if (y.numel() != 0) backend(device).binary(context(), op, s, t, a.view_of(), b.view_of(), y.view_of());
    return y;
  }
  const Shape sizes =
      a.sizes() == b.sizes() ? a.sizes() : broadcast(op_name(to_string(op)).c_str(), a.sizes(), b.sizes());
  const Cast x(a, dtype), z(b, dtype);
  Tensor y = empty(sizes, {.dtype = out, .device = device});
  if (y.numel() != 0)
    backend(device).binary(context(), op, s, t, expand_view(x, sizes), expand_view(z, sizes), y.view_of());
  return y;
}

Tensor ternary(Ternary op, const Tensor& a, const Tensor& b, const Tensor& c, Scalar s) {
  const std::string name = op_name(to_string(op));
  check_devices(name.c_str(), a, b);
  check_devices(name.c_str(), a, c);
  const DType dtype = compute_dtype(op_class(op), promote(promote(a.dtype(), b.dtype()), c.dtype()));
  if (fractional(dtype, s)) throw_scalar(name, dtype, s);
  const Shape sizes = broadcast(name.c_str(), broadcast(name.c_str(), a.sizes(), b.sizes()), c.sizes());
  const Cast x(a, dtype), y(b, dtype), z(c, dtype);
  Tensor out = empty(sizes, {.dtype = dtype, .device = a.device()});
  if (out.numel() != 0)
    backend_of(a).ternary(context(), op, s, expand_view(x, sizes), expand_view(y, sizes),
                          expand_view(z, sizes), out.view_of());
  return out;
}

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  if (cond.dtype() != kBool) throw DTypeError(str("where: the condition must be bool, got ", cond.dtype()));
  check_devices("where", cond, a);
  check_devices("where", a, b);
  const DType dtype = promote(a.dtype(), b.dtype());
  const Shape sizes = broadcast("where", broadcast("where", a.sizes(), b.sizes()), cond.sizes());
  const Cast x(a, dtype), z(b, dtype);
  Tensor y = empty(sizes, {.dtype = dtype, .device = a.device()});
  if (y.numel() != 0)
    backend_of(a).where(context(), expand_view(cond, sizes), expand_view(x, sizes), expand_view(z, sizes),
                        y.view_of());
  return y;
}

void check_writable(const char* name, const Tensor& y) {
  if (overlaps_itself(y))
    throw ShapeError(str(name, ": cannot write into an expanded tensor: sizes ", y.sizes(), ", strides ",
                         y.strides(), "; clone it first"));
}

void check_into(const char* name, const Tensor& y, const Tensor& x) {
  check_devices(name, y, x);
  if (is_floating(x.dtype()) && !is_floating(y.dtype()))
    throw DTypeError(str(name, ": cannot write ", x.dtype(), " into ", y.dtype(), " in place"));
  if (!(broadcast(name, y.sizes(), x.sizes()) == y.sizes()))
    throw ShapeError(str(name, ": ", x.sizes(), " does not broadcast to ", y.sizes(), " in place"));
  check_writable(name, y);
}

void unary_into(Unary op, const Tensor& y, Scalar s, Scalar t) {
  if (unary_dtype(op, y.dtype(), s, t) != y.dtype())
    throw DTypeError(str(op_name(to_string(op)), "_: does not take ", y.dtype(), " in place"));
  if (y.numel() != 0) backend_of(y).unary(context(), op, s, t, y.view_of(), y.view_of());
}

void binary_into(Binary op, const Tensor& y, const Tensor& b, Scalar s, Scalar t) {
  if (compute_dtype(op_class(op), y.dtype()) != y.dtype())
    throw DTypeError(str(op_name(to_string(op)), "_: does not take ", y.dtype(), " in place"));
  if (y.numel() == 0) return;
  const Tensor x = argument_for(y, b);
  backend_of(y).binary(context(), op, s, t, y.view_of(), expand_view(x, y.sizes()), y.view_of());
}

void copy_into(const Tensor& y, const Tensor& x) {
  if (y.numel() == 0) return;
  if (!(x.device() == y.device())) return copy_into(y, to_device(x, y.device()));
  const Tensor a = x.shares_storage(y) && !same_geometry(x, y) ? clone(x) : x;
  backend_of(y).copy(context(), expand_view(a, y.sizes()), y.view_of());
}

void fill_into(const Tensor& y, Scalar value) {
  if (y.numel() != 0) backend_of(y).fill(context(), value, y.view_of());
}

}  // namespace weft::launch
