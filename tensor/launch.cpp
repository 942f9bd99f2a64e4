// Launches of pointwise operations, and their common checks. Operands of equal sizes skip broadcasting, and
// small row-major operands also skip views and loops, to keep small operations fast.
#include <weft/tensor/inner/launch.h>

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
  if (!name.ends_with("_scalar")) return name;
  name.resize(name.size() - 7);
  return name[0] == 'r' ? name.substr(1) : name;  // number - x is sub as well
}

namespace {

[[noreturn]] [[gnu::cold]] void throw_devices(const char* name, const Tensor& a, const Tensor& b) {
  throw DeviceError(str(name, ": tensors are on different devices: ", a.device(), " and ", b.device()));
}

[[noreturn]] [[gnu::cold]] void throw_scalar(const std::string& name, DType t, Scalar s) {
  const char* const hint =
      is_floating(t) ? "" : "; a number never promotes a tensor, convert it with to(kFloat32)";
  throw DTypeError(str(name, ": the number ", s, " does not fit ", t, hint));
}

// `text` with `name` in the place of the operation that it begins with.
std::string renamed(const char* name, const std::string& text) {
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
  const bool begins = end != 0 && end != std::string::npos && text.compare(end, 2, ": ") == 0;
  return str(name, begins ? text.substr(end) : ": " + text);
}

bool is_scalar_test(Unary op) { return op >= Unary::kEqScalar && op <= Unary::kGeScalar; }

// The dtype in which a tensor of dtype t is compared with s; s is converted to it. Integers are compared with
// the exact value. The dtype is theirs or int64 if that holds s, else float64, where rounding a large element
// never moves it past s. A floating tensor is compared with s rounded to its dtype.
DType scalar_test(DType t, Scalar& s) {
  if (is_floating(t)) {
    if (!s.fits(t)) return kFloat64;
    if (t == kFloat16) s = static_cast<float>(Half(static_cast<float>(s.d)));
    if (t == kBFloat16) s = static_cast<float>(BFloat16(static_cast<float>(s.d)));
    return t;
  }
  if (t != kBool && s.fits(t)) return t;
  if (s.fits(kInt64)) return kInt64;
  if (std::fabs(s.d) >= 0x1p63) s = std::copysign(HUGE_VAL, s.d);
  return kFloat64;
}

// The compute dtype of a unary operation.
DType unary_dtype(Unary op, DType t, const Scalar& s, const Scalar& u) {
  const bool real =
      (op == Unary::kPowScalar || op == Unary::kRpowScalar) && !s.integral;  // a power by a floating number
  const DType dtype = compute_dtype(real ? OpClass::kFloat : op_class(op), t);
  const DType parameter = is_half(dtype) ? kFloat32 : dtype;
  if (!s.fits(parameter) || !u.fits(parameter))
    throw_scalar(op_name(to_string(op)), parameter, s.fits(parameter) ? u : s);
  return dtype;
}

[[gnu::always_inline]] inline void* for_row(const Tensor& x) {
  const TensorBody& b = x.body();
  return static_cast<char*>(b.storage->data_for_row()) + b.offset * size_of(b.dtype);
}

// Whether the backend has run the operation by its row for inputs of dtype t.
template <class Op, class... X>
bool run_row(Op op, DType t, const PointwiseParams& params, const Tensor& y, const X&... xs) {
  if (y.numel() > kRowElements || !(y.is_contiguous() && ... && xs.is_contiguous())) return false;
  const PointwiseRow row = backend_of(y).row(op, t);
  if (!row) return false;
  void* const p[] = {for_row(y), for_row(xs)...};
  row(params, p, y.numel());
  return true;
}

bool overlaps_itself(const Tensor& y) {
  for (int d = 0; d < y.dim(); ++d)
    if (y.sizes()[d] > 1 && y.strides()[d] == 0) return true;
  return false;
}

bool same_geometry(const Tensor& a, const Tensor& b) {
  return a.address() == b.address() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.dtype() == b.dtype();
}

// An argument of an in-place write: cast to y's dtype, and copied if it shares memory with y in another
// layout.
Tensor argument_for(const Tensor& y, const Tensor& x) {
  Tensor a = cast(x, y.dtype());
  return share_memory(a, y) && !same_geometry(a, y) ? clone(a) : a;
}

}  // namespace

void throw_undefined(const char* name, size_t which) {
  throw_undefined(name, str("tensor argument ", which));
}

void throw_undefined(const char* name, const std::string& which) {
  throw ValueError(str(
      name, ": ", which,
      " is undefined: it was never assigned, or it is a grad() that is not there: call backward() first"));
}

void rethrow_as(const char* name) {
  try {
    throw;
  } catch (const ShapeError& e) {
    throw ShapeError(renamed(name, e.what()));
  } catch (const DTypeError& e) {
    throw DTypeError(renamed(name, e.what()));
  } catch (const DeviceError& e) {
    throw DeviceError(renamed(name, e.what()));
  } catch (const IndexError& e) {
    throw IndexError(renamed(name, e.what()));
  } catch (const ValueError& e) {
    throw ValueError(renamed(name, e.what()));
  }
}

bool share_memory(const Tensor& a, const Tensor& b) {
  if (a.shares_storage(b)) return true;
  const Storage &s = *a.body().storage, &t = *b.body().storage;
  const auto *p = static_cast<const char*>(s.data()), *q = static_cast<const char*>(t.data());
  return p < q + t.bytes() && q < p + s.bytes();
}

void check_devices(const char* name, const Tensor& a, const Tensor& b) {
  if (!(a.device() == b.device())) throw_devices(name, a, b);
}

void check_floating(const char* name, const Tensor& x) {
  check_defined(name, x);
  if (!is_floating(x.dtype())) throw DTypeError(str(name, ": takes floating types, got ", x.dtype()));
}

void check_index(const char* name, const Tensor& x) {
  if (x.dtype() != kInt64 && x.dtype() != kInt32)
    throw DTypeError(str(name, ": indices must be int64 or int32, got ", x.dtype()));
}

void check_scalar(const char* name, DType t, Scalar s) {
  if (!s.fits(t)) throw_scalar(name, t, s);
}

void check_factor(const char* name, DType t, Scalar s) {
  check_scalar(name, t == kBool ? kInt64 : is_half(t) ? kFloat32 : t, s);
}

int64_t checked_bytes(const char* name, const Shape& sizes, DType dtype) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(checked_numel(name, sizes), size_of(dtype), &bytes))
    throw ShapeError(str(name, ": ", sizes, " of ", dtype, " is too large"));
  return bytes;
}

Scalar minus(Scalar s, DType t) {
  if (is_floating(t)) return -s.d;
  const int64_t wrapped = static_cast<int64_t>(0 - static_cast<uint64_t>(s.to<int64_t>()));
  if (t == kUInt8) return static_cast<uint8_t>(wrapped);
  return t == kInt32 ? static_cast<int32_t>(wrapped) : wrapped;
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

void run(Unary op, const Tensor& x, const Tensor& y, Scalar s, Scalar t) {
  if (y.numel() == 0 || run_row(op, x.dtype(), {s, t}, y, x)) return;
  backend_of(y).unary(context(), op, s, t, x.view_of(), y.view_of());
}

void run(Binary op, const Tensor& a, const Tensor& b, const Tensor& y, Scalar s, Scalar t) {
  if (y.numel() == 0 || run_row(op, a.dtype(), {s, t}, y, a, b)) return;
  backend_of(y).binary(context(), op, s, t, a.view_of(), b.view_of(), y.view_of());
}

void run(Ternary op, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& y, Scalar s) {
  if (y.numel() == 0 || run_row(op, a.dtype(), {s, {}}, y, a, b, c)) return;
  backend_of(y).ternary(context(), op, s, a.view_of(), b.view_of(), c.view_of(), y.view_of());
}

Tensor unary(Unary op, const Tensor& x, Scalar s, Scalar t) {
  if (!x.defined()) throw_undefined(op_name(to_string(op)).c_str(), 1);
  const DType dtype = is_scalar_test(op) ? scalar_test(x.dtype(), s) : unary_dtype(op, x.dtype(), s, t);
  const Cast in(x, dtype);
  Tensor y =
      empty(x.sizes(), {.dtype = op_class(op) == OpClass::kTest ? kBool : dtype, .device = x.device()});
  run(op, in, y, s, t);
  return y;
}

Tensor binary(Binary op, const Tensor& a, const Tensor& b, Scalar s, Scalar t) {
  if (!a.defined() || !b.defined()) throw_undefined(op_name(to_string(op)).c_str(), a.defined() ? 2 : 1);
  const OpClass cls = op_class(op);
  const Device device = a.device();
  if (!(device == b.device())) throw_devices(op_name(to_string(op)).c_str(), a, b);
  const DType dtype = compute_dtype(cls, a.dtype() == b.dtype() ? a.dtype() : promote(a.dtype(), b.dtype()));
  if (op == Binary::kAdd && s.d != 1) check_factor("add", dtype, s);
  const DType out = cls == OpClass::kTest ? kBool : dtype;
  if (a.sizes() == b.sizes()) {
    if (a.dtype() != dtype || b.dtype() != dtype) return binary(op, cast(a, dtype), cast(b, dtype), s, t);
    Tensor y = empty(a.sizes(), {.dtype = out, .device = device});
    run(op, a, b, y, s, t);
    return y;
  }
  const Shape sizes = broadcast(op_name(to_string(op)).c_str(), a.sizes(), b.sizes());
  const Cast x(a, dtype), z(b, dtype);
  Tensor y = empty(sizes, {.dtype = out, .device = device});
  if (y.numel() != 0)
    backend(device).binary(context(), op, s, t, expand_view(x, sizes), expand_view(z, sizes), y.view_of());
  return y;
}

Tensor ternary(Ternary op, const Tensor& a, const Tensor& b, const Tensor& c, Scalar s) {
  const std::string name = op_name(to_string(op));
  check_defined(name.c_str(), a, b, c);
  check_devices(name.c_str(), a, b);
  check_devices(name.c_str(), a, c);
  const DType dtype = compute_dtype(op_class(op), promote(promote(a.dtype(), b.dtype()), c.dtype()));
  check_factor(name.c_str(), dtype, s);
  if (a.sizes() == b.sizes() && a.sizes() == c.sizes()) {
    const Cast x(a, dtype), y(b, dtype), z(c, dtype);
    Tensor out = empty(a.sizes(), {.dtype = dtype, .device = a.device()});
    run(op, x, y, z, out, s);
    return out;
  }
  const Shape sizes = broadcast(name.c_str(), broadcast(name.c_str(), a.sizes(), b.sizes()), c.sizes());
  const Cast x(a, dtype), y(b, dtype), z(c, dtype);
  Tensor out = empty(sizes, {.dtype = dtype, .device = a.device()});
  if (out.numel() != 0)
    backend_of(a).ternary(context(), op, s, expand_view(x, sizes), expand_view(y, sizes),
                          expand_view(z, sizes), out.view_of());
  return out;
}

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  check_defined("where", cond, a, b);
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
  check_defined(name, y, x);
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
  run(op, y, y, s, t);
}

void binary_into(Binary op, const Tensor& y, const Tensor& b, Scalar s, Scalar t) {
  if (compute_dtype(op_class(op), y.dtype()) != y.dtype())
    throw DTypeError(str(op_name(to_string(op)), "_: does not take ", y.dtype(), " in place"));
  if (y.numel() == 0) return;
  if (is_half(y.dtype()) && promote(y.dtype(), b.dtype()) != y.dtype())  // one rounding
    return copy_into(y, binary(op, y, b, s, t));
  const Tensor x = argument_for(y, b);
  if (x.sizes() == y.sizes()) return run(op, y, x, y, s, t);
  backend_of(y).binary(context(), op, s, t, y.view_of(), expand_view(x, y.sizes()), y.view_of());
}

void copy_into(const Tensor& y, const Tensor& x) {
  if (y.numel() == 0) return;
  if (!(x.device() == y.device())) return copy_into(y, to_device(x, y.device()));
  const Tensor a = share_memory(x, y) && !same_geometry(x, y) ? clone(x) : x;
  backend_of(y).copy(context(), expand_view(a, y.sizes()), y.view_of());
}

void fill_into(const Tensor& y, Scalar value) {
  if (y.numel() != 0) backend_of(y).fill(context(), value, y.view_of());
}

void watch_large_weight(const Tensor& w) {
  if (w.device().is_cpu() && is_floating(w.dtype())) w.body().storage->watch_packs(w.address());
}

}  // namespace weft::launch
