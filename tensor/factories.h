// Factories: constant tensors, sequences, tensors over host data, and random tensors.
#pragma once

#include <concepts>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft {

/// New tensors of the given sizes, float32 on the CPU by default. A DType may stand in the place of options:
/// `zeros({2, 3}, kFloat64)`.
/// Throws: ShapeError for a negative size, DTypeError for a value that the dtype cannot hold (docs/ops.md),
/// OutOfMemoryError, DeviceError.
WEFT_API Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor ones(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor full(const Shape& sizes, Scalar value, const TensorOptions& options = {});
/// New row-major tensors of x's sizes, dtype and device; empty_like leaves the elements uninitialised.
/// Throws: ValueError for an undefined x, OutOfMemoryError.
WEFT_API Tensor zeros_like(const Tensor& x);
WEFT_API Tensor ones_like(const Tensor& x);
/// Throws: DTypeError for a value that the dtype cannot hold.
WEFT_API Tensor full_like(const Tensor& x, Scalar value);
WEFT_API Tensor empty_like(const Tensor& x);
/// The same with another dtype.
WEFT_API Tensor zeros_like(const Tensor& x, DType dtype);
WEFT_API Tensor ones_like(const Tensor& x, DType dtype);
WEFT_API Tensor full_like(const Tensor& x, Scalar value, DType dtype);
WEFT_API Tensor empty_like(const Tensor& x, DType dtype);
/// start, start + step, .. before end. int64 by default if the numbers given are of integer types, else
/// float32. Shape: [ceil((end - start) / step)].
/// Throws: DTypeError if the dtype cannot hold the first or last element, or is an integer dtype and the step
/// is not whole. ValueError for a step of 0, bounds that are not finite, or a count beyond int64.
WEFT_API Tensor arange(Scalar start, Scalar end, Scalar step = 1, const TensorOptions& options = {});
WEFT_API Tensor arange(Scalar start, Scalar end, const TensorOptions& options);
WEFT_API Tensor arange(Scalar end, const TensorOptions& options = {});  ///< from 0
/// `count` evenly spaced numbers from start to end, both included; {start} for a count of 1. An integer dtype
/// truncates the numbers in between. Shape: [count].
/// Throws: ValueError for a negative count, DTypeError if the dtype cannot hold start or end.
WEFT_API Tensor linspace(double start, double end, int64_t count, const TensorOptions& options = {});
/// Ones on the diagonal, zeros elsewhere. Shape: [n, n]. Throws: ValueError for a negative n.
WEFT_API Tensor eye(int64_t n, const TensorOptions& options = {});
template <std::floating_point T> Tensor eye(T n, const TensorOptions& options = {}) = delete;
/// Shape: [n, m]. Throws: ValueError for a negative size.
inline Tensor eye(std::integral auto n, std::integral auto m, const TensorOptions& options = {});

/// The argument of tensor(): a number, a list of numbers, or lists in lists.
/// Throws: ShapeError for parts of different sizes.
class WEFT_API Numbers {
 public:
  Numbers(const Scalar& value) : values_{value} {}
  template <class T>
  requires(std::is_arithmetic_v<T> || Element<T>) Numbers(T value) : values_{number(value)} {}
  template <class T>
  requires(std::is_arithmetic_v<T> || Element<T>) Numbers(std::initializer_list<T> list)
      : sizes_(static_cast<int64_t>(list.size())) {
    values_.reserve(list.size());
    for (const T value : list) values_.push_back(number(value));
  }
  Numbers(std::initializer_list<Numbers> parts);

  const Shape& sizes() const { return sizes_; }
  const std::vector<Scalar>& values() const { return values_; }  ///< in row-major order

 private:
  template <class T> static Scalar number(T value) {
    if constexpr (std::is_arithmetic_v<T>) return value;
    else return static_cast<float>(value);
  }
  Shape sizes_;
  std::vector<Scalar> values_;
};

/// A tensor of the given numbers, as in tensor({1., 2., 3.}), tensor({{1., 2.}, {3., 4.}}) or, without dims,
/// tensor(5.). float32 by default, whole numbers too; tensor({}) has sizes [0].
/// Throws: DTypeError for a number that the dtype cannot hold, ShapeError for rows of different lengths.
WEFT_API Tensor tensor(const Numbers& values, const TensorOptions& options = {});
/// A copy of a vector, by default with the dtype of T. Shape: [values.size()]. Throws: as above.
template <Element T> Tensor tensor(const std::vector<T>& values, const TensorOptions& options = {});
/// Shape: []. Throws: DTypeError for a value that the dtype cannot hold, DeviceError.
WEFT_API Tensor scalar_tensor(Scalar value, const TensorOptions& options = {});
/// Copies `values` into a new tensor of `sizes`, with the dtype of T.
/// Throws: ShapeError if the counts differ.
template <Element T> Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device = {});

/// Wraps memory without copying it. The pointer determines the dtype. For a void pointer it is options.dtype;
/// for a pointer to another type than an element's, options must give it. A tensor over a pointer to const is
/// read-only: in-place operations and optimizers throw ValueError. So do data() and accessor() with a T that
/// is not const.
/// `release(context)` runs when the last tensor over the memory is destroyed, and `release(data)` where
/// context is null. A callable in place of `release` gets `data`. Both get a pointer to non-const.
/// The version counter of each call sees the writes of its tensors only. A recorded graph that needs the
/// memory does not notice a write by the program, or through another from_blob over the same bytes. clone()
/// such memory first.
/// Throws: ShapeError, ValueError for a null pointer, AutogradError for requires_grad of an integer dtype.
/// DTypeError if options.dtype is given and differs from the pointer's. After an error `release` is not
/// called.
WEFT_API Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options = {},
                          void (*release)(void*) = nullptr, void* context = nullptr);
/// The same with strides, in elements.
WEFT_API Tensor from_blob(void* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
                          void (*release)(void*) = nullptr, void* context = nullptr);

namespace detail {

WEFT_API Tensor eye(int64_t n, int64_t m, const TensorOptions& options);
WEFT_API Tensor wrap_blob(const void* data, bool read_only, const Shape& sizes, const Shape& strides,
                          const TensorOptions& options, void (*release)(void*), void* context);
/// The options with the dtype of the elements under a typed pointer; `element` lacks one for other types.
WEFT_API TensorOptions blob_options(const TensorOptions& options, DTypeOption element);
template <class T> TensorOptions blob_options(const TensorOptions& options) {
  if constexpr (std::is_void_v<T>) return options;
  else if constexpr (Element<std::remove_cv_t<T>>)
    return blob_options(options, dtype_of<std::remove_cv_t<T>>);
  else return blob_options(options, DTypeOption());
}
template <class T>
Tensor typed_blob(T* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
                  void (*release)(void*), void* context) {
  return wrap_blob(data, std::is_const_v<T>, sizes, strides, blob_options<T>(options), release, context);
}
template <class T, class F>
Tensor released_blob(T* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
                     F&& release) {
  struct Held {
    std::decay_t<F> release;
    void* data;
  };
  std::unique_ptr<Held> held(
      new Held{std::forward<F>(release), const_cast<void*>(static_cast<const void*>(data))});
  Tensor y = typed_blob(
      data, sizes, strides, options,
      [](void* context) {
        const std::unique_ptr<Held> mine(static_cast<Held*>(context));
        mine->release(mine->data);
      },
      held.get());
  held.release();
  return y;
}
template <class F>
concept BlobRelease = requires(F release, void* data) {
  release(data);
};
template <class F>
concept BlobCallable = BlobRelease<F> && !std::is_convertible_v<F, void (*)(void*)>;

}  // namespace detail

inline Tensor eye(std::integral auto n, std::integral auto m, const TensorOptions& options) {
  return detail::eye(n, m, options);
}
template <class T>
requires(!std::is_same_v<T, void>) Tensor
    from_blob(T* data, const Shape& sizes, const TensorOptions& options = {},
              void (*release)(void*) = nullptr, void* context = nullptr) {
  return detail::typed_blob(data, sizes, contiguous_strides(sizes), options, release, context);
}
template <class T>
requires(!std::is_same_v<T, void>) Tensor
    from_blob(T* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
              void (*release)(void*) = nullptr, void* context = nullptr) {
  return detail::typed_blob(data, sizes, strides, options, release, context);
}
template <class T, detail::BlobCallable F>
Tensor from_blob(T* data, const Shape& sizes, const TensorOptions& options, F release) {
  return detail::released_blob(data, sizes, contiguous_strides(sizes), options, std::move(release));
}
template <class T, detail::BlobCallable F>
Tensor from_blob(T* data, const Shape& sizes, const Shape& strides, const TensorOptions& options, F release) {
  return detail::released_blob(data, sizes, strides, options, std::move(release));
}
/// The same, with the arguments in LibTorch's order.
template <class T, detail::BlobRelease F>
Tensor from_blob(T* data, const Shape& sizes, F release, const TensorOptions& options = {}) {
  return detail::released_blob(data, sizes, contiguous_strides(sizes), options, std::move(release));
}

/// Random numbers from `generator`, or default_generator() if null. rand: uniform in [0, 1); randn: N(0, 1);
/// randint: integers in [low, high), int64 by default; randperm: a permutation of 0 .. n-1, int64 [n]. A seed
/// gives the same numbers on every device and instruction set, except for the last bits of float64 normals on
/// CUDA devices.
/// Throws: ShapeError for a negative size, DTypeError for a dtype that cannot hold the numbers, ValueError
/// for low >= high or a negative n.
WEFT_API Tensor rand(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randn(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randint(int64_t low, int64_t high, const Shape& sizes, const TensorOptions& options = {},
                        Generator* generator = nullptr);
WEFT_API Tensor randperm(int64_t n, Generator* generator = nullptr);
/// The same with x's sizes, dtype and device. Throws: DTypeError for integers.
WEFT_API Tensor rand_like(const Tensor& x, Generator* generator = nullptr);
WEFT_API Tensor randn_like(const Tensor& x, Generator* generator = nullptr);

// ---- a dtype in the place of options; templates, so that {} still means the default options
inline Tensor zeros(const Shape& sizes, std::same_as<DType> auto dtype) {
  return zeros(sizes, TensorOptions{.dtype = dtype});
}
inline Tensor ones(const Shape& sizes, std::same_as<DType> auto dtype) {
  return ones(sizes, TensorOptions{.dtype = dtype});
}
inline Tensor full(const Shape& sizes, Scalar value, std::same_as<DType> auto dtype) {
  return full(sizes, value, TensorOptions{.dtype = dtype});
}
inline Tensor arange(Scalar start, Scalar end, Scalar step, std::same_as<DType> auto dtype) {
  return arange(start, end, step, TensorOptions{.dtype = dtype});
}
inline Tensor arange(Scalar start, Scalar end, std::same_as<DType> auto dtype) {
  return arange(start, end, TensorOptions{.dtype = dtype});
}
inline Tensor arange(Scalar end, std::same_as<DType> auto dtype) {
  return arange(end, TensorOptions{.dtype = dtype});
}
inline Tensor linspace(double start, double end, int64_t count, std::same_as<DType> auto dtype) {
  return linspace(start, end, count, TensorOptions{.dtype = dtype});
}
inline Tensor eye(std::integral auto n, std::same_as<DType> auto dtype) {
  return eye(n, TensorOptions{.dtype = dtype});
}
inline Tensor eye(std::integral auto n, std::integral auto m, std::same_as<DType> auto dtype) {
  return eye(n, m, TensorOptions{.dtype = dtype});
}
inline Tensor tensor(const Numbers& values, std::same_as<DType> auto dtype) {
  return tensor(values, TensorOptions{.dtype = dtype});
}
template <Element T> Tensor tensor(const std::vector<T>& values, std::same_as<DType> auto dtype) {
  return tensor(values, TensorOptions{.dtype = dtype});
}
inline Tensor scalar_tensor(Scalar value, std::same_as<DType> auto dtype) {
  return scalar_tensor(value, TensorOptions{.dtype = dtype});
}
template <class T> Tensor from_blob(T* data, const Shape& sizes, std::same_as<DType> auto dtype) {
  return from_blob(data, sizes, TensorOptions{.dtype = dtype});
}
inline Tensor rand(const Shape& sizes, std::same_as<DType> auto dtype, Generator* generator = nullptr) {
  return rand(sizes, TensorOptions{.dtype = dtype}, generator);
}
inline Tensor randn(const Shape& sizes, std::same_as<DType> auto dtype, Generator* generator = nullptr) {
  return randn(sizes, TensorOptions{.dtype = dtype}, generator);
}
inline Tensor randint(int64_t low, int64_t high, const Shape& sizes, std::same_as<DType> auto dtype,
                      Generator* generator = nullptr) {
  return randint(low, high, sizes, TensorOptions{.dtype = dtype}, generator);
}

/// Text such as "tensor([[1, 2], [3, 4]], float32)"; long dims are abbreviated.
WEFT_API std::string to_string(const Tensor& x);

}  // namespace weft
