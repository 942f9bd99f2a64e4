// Factories that fill a fresh tensor from numbers. Random ones are in random.cpp.
#include <weft/tensor/factories.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <weft/kernels/backend.h>

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

/// `options` of a tensor like x.
TensorOptions like(const Tensor& x) { return {.dtype = x.dtype(), .device = x.device()}; }

Tensor to_device(Tensor host, Device device) {
  if (device.is_cpu()) return host;
  Tensor y = empty(host.sizes(), {.dtype = host.dtype(), .device = device});
  Context context;
  backend(device).copy_from_host(context, host.raw(), y.raw(),
                                 static_cast<size_t>(host.numel() * size_of(host.dtype())));
  return y;
}

/// Host memory of `sizes` written element by element: value(i) in row-major order, converted to the dtype.
template <class V> Tensor from_values(const Shape& sizes, const TensorOptions& options, V&& value) {
  Tensor y = empty(sizes, {.dtype = options.dtype, .pinned = options.pinned});
  const int64_t n = y.numel();
  dispatch(options.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(y.raw());
    for (int64_t i = 0; i < n; ++i) out[i] = Scalar(value(i)).template to<T>();
  });
  return finish(to_device(y, options.device), options);
}

}  // namespace

Tensor full(const Shape& sizes, Scalar value, const TensorOptions& options) {
  Tensor y = empty(sizes, plain(options));
  Context context;
  if (y.numel() > 0) backend(options.device).fill(context, value, y.view_of());
  return finish(y, options);
}

Tensor zeros(const Shape& sizes, const TensorOptions& options) { return full(sizes, 0, options); }
Tensor ones(const Shape& sizes, const TensorOptions& options) { return full(sizes, 1, options); }
Tensor full_like(const Tensor& x, Scalar value) { return full(x.sizes(), value, like(x)); }
Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones_like(const Tensor& x) { return full_like(x, 1); }
Tensor empty_like(const Tensor& x) { return empty(x.sizes(), like(x)); }
Tensor scalar_tensor(Scalar value, const TensorOptions& options) { return full({}, value, options); }

Tensor arange(Scalar start, Scalar end, Scalar step, const TensorOptions& options) {
  const bool integral = start.integral && end.integral && step.integral;
  const double first = start.to<double>(), last = end.to<double>(), by = step.to<double>();
  if (by == 0 || !std::isfinite(by)) throw ValueError(str("arange: step is ", by));
  if (!std::isfinite(first) || !std::isfinite(last))
    throw ValueError(str("arange: from ", first, " to ", last));
  int64_t count;
  if (integral) {
    const int64_t a = start.i, b = end.i, s = step.i;
    count = s > 0 ? (b > a ? (b - a - 1) / s + 1 : 0) : (a > b ? (a - b - 1) / -s + 1 : 0);
  } else {
    const double steps = std::ceil((last - first) / by);
    if (steps > 9e18) throw ValueError(str("arange: from ", first, " to ", last, " by ", by, " is too long"));
    count = std::max<int64_t>(0, static_cast<int64_t>(steps));
  }
  Tensor y = empty({count}, plain(options));
  Context context;
  if (count > 0) backend(options.device).arange(context, start, step, y.view_of());
  return finish(y, options);
}

Tensor arange(int64_t end) { return arange(0, end, 1, {.dtype = kInt64}); }

Tensor linspace(double start, double end, int64_t count, const TensorOptions& options) {
  if (count < 0) throw ValueError(str("linspace: count is ", count));
  const double step = count > 1 ? (end - start) / static_cast<double>(count - 1) : 0;
  return from_values({count}, options, [=](int64_t i) {
    // From both ends, so that the last value is exactly `end`.
    return i < count / 2 || count == 1 ? start + step * static_cast<double>(i)
                                       : end - step * static_cast<double>(count - 1 - i);
  });
}

Tensor eye(int64_t n, const TensorOptions& options) {
  if (n < 0) throw ValueError(str("eye: n is ", n));
  Tensor y = zeros({n, n}, plain(options));
  if (n > 0) {
    Context context;
    backend(options.device).fill(context, 1, alias(y, {n}, {n + 1}, 0).view_of());
  }
  return finish(y, options);
}

Tensor tensor(std::initializer_list<double> values, const TensorOptions& options) {
  const double* v = values.begin();
  return from_values({static_cast<int64_t>(values.size())}, options, [v](int64_t i) { return v[i]; });
}

Tensor tensor(std::initializer_list<std::initializer_list<double>> rows, const TensorOptions& options) {
  const int64_t height = static_cast<int64_t>(rows.size());
  const int64_t width = height ? static_cast<int64_t>(rows.begin()->size()) : 0;
  for (const auto& row : rows)
    if (static_cast<int64_t>(row.size()) != width)
      throw ShapeError(str("tensor: rows of ", width, " and ", static_cast<int64_t>(row.size()), " numbers"));
  return from_values({height, width}, options,
                     [&](int64_t i) { return rows.begin()[i / width].begin()[i % width]; });
}

template <class T> Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device) {
  const int64_t n = static_cast<int64_t>(values.size());
  if (sizes.numel() != n) throw ShapeError(str("from_vector: ", n, " values for sizes ", sizes));
  Tensor y = empty(sizes, {.dtype = dtype_of<T>});
  T* out = static_cast<T*>(y.raw());
  std::copy(values.begin(), values.end(), out);
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

Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options, void (*release)(void*),
                 void* context) {
  int64_t bytes = size_of(options.dtype);
  for (int64_t n : sizes)
    if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) throw ShapeError(str("from_blob: sizes ", sizes));
  if (!data && bytes > 0) throw ValueError(str("from_blob: null pointer for sizes ", sizes));
  auto storage = Storage::borrow(options.device, data, static_cast<size_t>(bytes), release, context);
  return finish(Tensor(Ref<TensorBody>::adopt(
                    new TensorBody(std::move(storage), 0, sizes, contiguous_strides(sizes), options.dtype))),
                options);
}

}  // namespace weft
