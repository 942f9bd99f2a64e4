// Factories: constant tensors, sequences, tensors over host data, and random tensors.
#pragma once

#include <span>

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft {

/// New tensors of the given sizes, float32 on the CPU by default.
/// Throws: ShapeError for a negative size, DTypeError for a value that the dtype cannot hold (docs/ops.md),
/// OutOfMemoryError, DeviceError.
WEFT_API Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor ones(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor full(const Shape& sizes, Scalar value, const TensorOptions& options = {});
/// New row-major tensors of x's sizes, dtype and device; empty_like leaves the elements uninitialised.
WEFT_API Tensor zeros_like(const Tensor& x);
WEFT_API Tensor ones_like(const Tensor& x);
WEFT_API Tensor full_like(const Tensor& x, Scalar value);
WEFT_API Tensor empty_like(const Tensor& x);
/// start, start + step, .. before end. Shape: [ceil((end - start) / step)].
/// Throws: DTypeError if the dtype cannot hold the first or last element, or is an integer dtype and the step
/// is not whole. ValueError for a step of 0, bounds that are not finite, or a count beyond int64.
WEFT_API Tensor arange(Scalar start, Scalar end, Scalar step, const TensorOptions& options);
WEFT_API Tensor arange(int64_t end);  ///< 0 .. end-1, int64
/// `count` evenly spaced numbers from start to end, both included; {start} for a count of 1. An integer dtype
/// truncates the numbers in between. Shape: [count].
/// Throws: ValueError for a negative count, DTypeError if the dtype cannot hold start or end.
WEFT_API Tensor linspace(double start, double end, int64_t count, const TensorOptions& options = {});
/// Ones on the diagonal, zeros elsewhere. Shape: [n, n]. Throws: ValueError for a negative n.
WEFT_API Tensor eye(int64_t n, const TensorOptions& options = {});

/// A tensor of the given numbers, as in tensor({1., 2., 3.}) or tensor({{1., 2.}, {3., 4.}}); float32 by
/// default.
/// Throws: DTypeError for a number that the dtype cannot hold, ShapeError for rows of different lengths.
WEFT_API Tensor tensor(std::initializer_list<double> values, const TensorOptions& options = {});
WEFT_API Tensor tensor(std::initializer_list<std::initializer_list<double>> rows,
                       const TensorOptions& options = {});
/// Shape: [].
WEFT_API Tensor scalar_tensor(Scalar value, const TensorOptions& options = {});
/// Copies `values` into a new tensor of `sizes`, with the dtype of T.
/// Throws: ShapeError if the counts differ.
template <Element T> Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device = {});
/// Wraps memory without copying it. `release(context)` runs when the last tensor over it is destroyed, and
/// `release(data)` where context is null. The version counter of each call sees the writes of its tensors
/// only. A recorded graph that needs the memory does not notice a write by the program, or through another
/// from_blob over the same bytes. clone() such memory first.
/// Throws: ShapeError, ValueError for a null pointer, AutogradError for requires_grad of an integer dtype;
/// then `release` is not called.
WEFT_API Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options = {},
                          void (*release)(void*) = nullptr, void* context = nullptr);
/// The same with strides, in elements.
WEFT_API Tensor from_blob(void* data, const Shape& sizes, const Shape& strides, const TensorOptions& options,
                          void (*release)(void*) = nullptr, void* context = nullptr);
namespace detail {
WEFT_API Tensor from_const_blob(const void* data, const Shape& sizes, const Shape& strides,
                                const TensorOptions& options, void (*release)(void*), void* context);
}
/// Wraps read-only memory: in-place operations and optimizers throw ValueError. data() and accessor() do not
/// check this; call them with a const T. `release` is as above; it gets data without its const.
template <class T>
requires std::is_const_v<T> Tensor from_blob(T* data, const Shape& sizes, const TensorOptions& options = {},
                                             void (*release)(void*) = nullptr, void* context = nullptr) {
  return detail::from_const_blob(data, sizes, contiguous_strides(sizes), options, release, context);
}
template <class T>
requires std::is_const_v<T> Tensor from_blob(T* data, const Shape& sizes, const Shape& strides,
                                             const TensorOptions& options, void (*release)(void*) = nullptr,
                                             void* context = nullptr) {
  return detail::from_const_blob(data, sizes, strides, options, release, context);
}

/// Random numbers from `generator`, or default_generator() if null. rand: uniform in [0, 1); randn: N(0, 1);
/// randint: integers in [low, high); randperm: a permutation of 0 .. n-1, int64 [n]. A seed gives the same
/// numbers on every device and instruction set, except for the last bits of float64 normals on CUDA devices.
/// Throws: ShapeError for a negative size, DTypeError for a dtype that cannot hold the numbers, ValueError
/// for low >= high or a negative n.
WEFT_API Tensor rand(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randn(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randint(int64_t low, int64_t high, const Shape& sizes,
                        const TensorOptions& options = {.dtype = kInt64}, Generator* generator = nullptr);
WEFT_API Tensor randperm(int64_t n, Generator* generator = nullptr);

/// Text such as "tensor([[1, 2], [3, 4]], float32)"; long dims are abbreviated.
WEFT_API std::string to_string(const Tensor& x);

}  // namespace weft
