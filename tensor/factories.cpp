// Factories with given values: constants, ranges, and tensors from host data or over memory of the caller.
// random.cpp has the random factories.
#include <weft/tensor/factories.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <weft/kernels/backend.h>
#include <weft/kernels/inner/convert.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {
namespace {

Tensor finish(Tensor y, const TensorOptions& options) {
  if (options.requires_grad) y.requires_grad_();
  return y;
}

TensorOptions plain(TensorOptions options) {
  options.requires_grad = false;
  return options;
}

/// Options for a tensor of x's dtype and device.
TensorOptions like(const Tensor& x) { return {.dtype = x.dtype(), .device = x.device()}; }

Tensor to_device(Tensor host, Device device) {
  if (device.is_cpu()) return host;
  Tensor y = empty(host.sizes(), {.dtype = host.dtype(), .device = device});
  Context context;
  backend(device).copy_from_host(context, host.address(), y.address(),
                                 static_cast<size_t>(host.numel() * size_of(host.dtype())));
  return y;
}

template <class T, class V> T element(const V& value) {
  if constexpr (std::is_same_v<V, Scalar>) return value.template to<T>("tensor");
  else return kernels::convert<T>(value);
}

/// Tells a recording of a tensor that the host has written.
void tell_filled(const Tensor& y) {
  if (Tracer* const t = weft::detail::tracer()) [[unlikely]]
    t->filled(y);
}

/// A tensor with element i = value(i) in row-major order, converted to the dtype; written on the host.
template <class V> Tensor from_values(const Shape& sizes, const TensorOptions& options, V&& value) {
  Tensor y = empty(sizes, {.dtype = options.dtype, .pinned = options.pinned});
  const int64_t n = y.numel();
  dispatch(options.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(y.address());
    for (int64_t i = 0; i < n; ++i) out[i] = element<T>(value(i));
  });
  tell_filled(y);
  return finish(to_device(y, options.device), options);
}

}  // namespace

namespace {

Tensor filled(const char* name, const Shape& sizes, Scalar value, const TensorOptions& options) {
  launch::check_scalar(name, options.dtype, value);
  launch::checked_bytes(name, sizes, options.dtype);
  Tensor y = empty(sizes, plain(options));
  Context context;
  if (y.numel() > 0) backend(options.device).fill(context, value, y.view_of());
  return finish(y, options);
}

}  // namespace

Tensor full(const Shape& sizes, Scalar value, const TensorOptions& options) {
  return filled("full", sizes, value, options);
}
Tensor zeros(const Shape& sizes, const TensorOptions& options) { return filled("zeros", sizes, 0, options); }
Tensor ones(const Shape& sizes, const TensorOptions& options) { return filled("ones", sizes, 1, options); }
Tensor full_like(const Tensor& x, Scalar value) { return full(x.sizes(), value, like(x)); }
Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones_like(const Tensor& x) { return full_like(x, 1); }
Tensor empty_like(const Tensor& x) { return empty(x.sizes(), like(x)); }
Tensor full_like(const Tensor& x, Scalar value, DType dtype) {
  TensorOptions options = like(x);
  options.dtype = dtype;
  return full(x.sizes(), value, options);
}
Tensor zeros_like(const Tensor& x, DType dtype) { return full_like(x, 0, dtype); }
Tensor ones_like(const Tensor& x, DType dtype) { return full_like(x, 1, dtype); }
Tensor empty_like(const Tensor& x, DType dtype) {
  TensorOptions options = like(x);
  options.dtype = dtype;
  return empty(x.sizes(), options);
}
Tensor scalar_tensor(Scalar value, const TensorOptions& options) { return full({}, value, options); }

namespace {

/// Number of elements of arange. Throws: ValueError beyond int64.
int64_t arange_count(Scalar start, Scalar end, Scalar step) {
  const auto check = [&](bool fits) {
    if (!fits) throw ValueError(str("arange: from ", start, " to ", end, " by ", step, " is too long"));
  };
  if (start.integral && end.integral && step.integral) {
    const auto a = static_cast<uint64_t>(start.i), b = static_cast<uint64_t>(end.i),
               s = static_cast<uint64_t>(step.i);
    if (step.i > 0 ? end.i <= start.i : end.i >= start.i) return 0;
    const uint64_t count = step.i > 0 ? (b - a - 1) / s + 1 : (a - b - 1) / (0 - s) + 1;
    check(count <= uint64_t{std::numeric_limits<int64_t>::max()});
    return static_cast<int64_t>(count);
  }
  const double steps = std::ceil((end.d - start.d) / step.d);
  check(steps < 0x1p63);
  return steps > 0 ? static_cast<int64_t>(steps) : 0;
}

Scalar arange_last(Scalar start, Scalar step, int64_t count) {
  if (!start.integral || !step.integral) return start.d + step.d * static_cast<double>(count - 1);
  return static_cast<int64_t>(static_cast<uint64_t>(start.i) +
                              static_cast<uint64_t>(step.i) * static_cast<uint64_t>(count - 1));
}

}  // namespace

Tensor arange(Scalar start, Scalar end, Scalar step, const TensorOptions& given) {
  TensorOptions options = given;
  if (!given.dtype.given())
    options.dtype = start.integral && end.integral && step.integral ? kInt64 : kFloat32;
  if (step.d == 0 || !std::isfinite(step.d)) throw ValueError(str("arange: step is ", step));
  if (!std::isfinite(start.d) || !std::isfinite(end.d))
    throw ValueError(str("arange: from ", start, " to ", end));
  if (!is_floating(options.dtype) && options.dtype != kBool) {  // integers are counted exactly
    launch::check_scalar("arange", options.dtype, start);
    start = start.to<int64_t>(), step = step.to<int64_t>("arange");
    if (!end.integral && end.fits(kInt64)) end = end.to<int64_t>();
  }
  const int64_t count = arange_count(start, end, step);
  if (count > 0) {  // if the dtype holds both ends, it holds all elements
    launch::check_scalar("arange", options.dtype, start);
    launch::check_scalar("arange", options.dtype, arange_last(start, step, count));
  }
  launch::checked_bytes("arange", {count}, options.dtype);
  Tensor y = empty({count}, plain(options));
  Context context;
  if (count > 0) backend(options.device).arange(context, start, step, y.view_of());
  return finish(y, options);
}

Tensor arange(Scalar start, Scalar end, const TensorOptions& options) {
  return arange(start, end, 1, options);
}
Tensor arange(Scalar end, const TensorOptions& options) { return arange(0, end, 1, options); }

Tensor linspace(double start, double end, int64_t count, const TensorOptions& options) {
  if (count < 0) throw ValueError(str("linspace: count is ", count));
  launch::check_scalar("linspace", options.dtype, start);
  launch::check_scalar("linspace", options.dtype, end);
  launch::checked_bytes("linspace", {count}, options.dtype);
  const double gaps = static_cast<double>(std::max<int64_t>(count - 1, 1));
  // The difference of two large numbers may be infinite.
  const double step = std::isfinite(end - start) ? (end - start) / gaps : end / gaps - start / gaps;
  return from_values({count}, options, [=](int64_t i) {
    // From both ends, so that the last value is exactly `end`.
    return i < count / 2 || count == 1 ? start + step * static_cast<double>(i)
                                       : end - step * static_cast<double>(count - 1 - i);
  });
}

Tensor eye(int64_t n, const TensorOptions& options) { return detail::eye(n, n, options); }

Tensor detail::eye(int64_t n, int64_t m, const TensorOptions& options) {
  if (n < 0 || m < 0) throw ValueError(str("eye: the sizes are [", n, ", ", m, "]"));
  launch::checked_bytes("eye", {n, m}, options.dtype);
  Tensor y = zeros({n, m}, plain(options));
  if (const int64_t ones = std::min(n, m); ones > 0) {
    Context context;
    backend(options.device).fill(context, 1, alias(y, {ones}, {m + 1}, 0).view_of());
  }
  return finish(y, options);
}

Numbers::Numbers(std::initializer_list<Numbers> parts) : sizes_(static_cast<int64_t>(parts.size())) {
  if (parts.size() == 0) return;
  const Shape& first = parts.begin()->sizes();
  for (const int64_t size : first) sizes_.push_back(size);
  for (const Numbers& part : parts) {
    if (!(part.sizes() == first))
      throw ShapeError(first.size() == 1 && part.sizes().size() == 1
                           ? str("tensor: rows of ", first[0], " and ", part.sizes()[0], " numbers")
                           : str("tensor: parts of sizes ", first, " and ", part.sizes()));
    values_.insert(values_.end(), part.values().begin(), part.values().end());
  }
}

Tensor tensor(const Numbers& numbers, const TensorOptions& options) {
  const std::vector<Scalar>& values = numbers.values();
  for (const Scalar& value : values) launch::check_scalar("tensor", options.dtype, value);
  return from_values(numbers.sizes(), options, [&](int64_t i) { return values[static_cast<size_t>(i)]; });
}

template <Element T> Tensor tensor(const std::vector<T>& values, const TensorOptions& given) {
  TensorOptions options = given;
  if (!given.dtype.given()) options.dtype = dtype_of<T>;
  if (options.dtype != dtype_of<T>)
    for (const T value : values) launch::check_scalar("tensor", options.dtype, Numbers(value).values()[0]);
  return from_values({static_cast<int64_t>(values.size())}, options,
                     [&](int64_t i) -> T { return values[static_cast<size_t>(i)]; });
}
template WEFT_API Tensor tensor(const std::vector<bool>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<uint8_t>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<int32_t>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<int64_t>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<Half>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<BFloat16>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<float>&, const TensorOptions&);
template WEFT_API Tensor tensor(const std::vector<double>&, const TensorOptions&);

template <Element T> Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device) {
  const int64_t n = static_cast<int64_t>(values.size());
  if (checked_numel("from_vector", sizes) != n)
    throw ShapeError(str("from_vector: ", n, " values for sizes ", sizes));
  Tensor y = empty(sizes, {.dtype = dtype_of<T>});
  T* out = static_cast<T*>(y.address());
  std::copy(values.begin(), values.end(), out);
  tell_filled(y);
  return to_device(y, device);
}
template WEFT_API Tensor from_vector(const std::vector<bool>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<uint8_t>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<int32_t>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<int64_t>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<Half>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<BFloat16>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<float>&, const Shape&, Device);
template WEFT_API Tensor from_vector(const std::vector<double>&, const Shape&, Device);

TensorOptions detail::blob_options(const TensorOptions& options, DTypeOption element) {
  if (!element.given()) {
    if (!options.dtype.given())
      throw DTypeError("from_blob: the pointer is to no element of a tensor; give options.dtype");
    return options;
  }
  const DType held = element, asked = options.dtype;
  if (options.dtype.given() && asked != held)
    throw DTypeError(str("from_blob: the pointer is to ", held, ", the options ask for ", asked,
                         "; cast the pointer to void* to read it as that"));
  TensorOptions typed = options;
  typed.dtype = held;
  return typed;
}

Tensor detail::wrap_blob(const void* source, bool read_only, const Shape& sizes, const Shape& strides,
                         const TensorOptions& options, void (*release)(void*), void* context) {
  void* const data = const_cast<void*>(source);
  if (sizes.size() != strides.size())
    throw ShapeError(str("from_blob: sizes ", sizes, " and strides ", strides, " differ in length"));
  int64_t count = 1;  // elements from the first to the last
  bool none = false, fits = true;
  for (int d = 0; d < sizes.size(); ++d) {
    int64_t reach = 0;
    fits = fits && sizes[d] >= 0 && strides[d] >= 0 &&
           !__builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &reach) &&
           !__builtin_add_overflow(count, reach, &count);
    none = none || sizes[d] == 0;
  }
  int64_t bytes = 0;
  if (!fits || __builtin_mul_overflow(none ? 0 : count, size_of(options.dtype), &bytes))
    throw ShapeError(str("from_blob: sizes ", sizes, " with strides ", strides, " are not possible"));
  if (options.requires_grad && !is_floating(options.dtype))
    throw AutogradError(str("from_blob: only floating tensors have gradients, not ", options.dtype));
  if (!data && bytes > 0) throw ValueError(str("from_blob: null pointer for sizes ", sizes));
  auto storage = Storage::borrow(options.device, data, static_cast<size_t>(bytes), release,
                                 context ? context : data, read_only);
  return finish(
      Tensor(Ref<TensorBody>::adopt(new TensorBody(std::move(storage), 0, sizes, strides, options.dtype))),
      options);
}

Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options, void (*release)(void*),
                 void* context) {
  return detail::wrap_blob(data, false, sizes, contiguous_strides(sizes), options, release, context);
}

Tensor from_blob(void* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
                 void (*release)(void*), void* context) {
  return detail::wrap_blob(data, false, sizes, strides, options, release, context);
}

}  // namespace weft
