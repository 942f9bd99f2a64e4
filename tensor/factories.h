// Tensors from numbers, from nothing and from chance.
#pragma once

#include <span>

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft {

/// New tensors of shape `sizes`, float32 on the CPU unless `options` say otherwise. Throws: ShapeError for a negative size, OutOfMemoryError, DeviceError.
WEFT_API Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor ones(const Shape& sizes, const TensorOptions& options = {});
WEFT_API Tensor full(const Shape& sizes, Scalar value, const TensorOptions& options = {});
/// New tensors of x's shape, dtype and device, dense in memory; empty_like leaves the elements unset.
WEFT_API Tensor zeros_like(const Tensor& x);
WEFT_API Tensor ones_like(const Tensor& x);
WEFT_API Tensor full_like(const Tensor& x, Scalar value);
WEFT_API Tensor empty_like(const Tensor& x);
/// start, start + step, ... below end. Shape: [ceil((end - start) / step)].
WEFT_API Tensor arange(Scalar start, Scalar end, Scalar step, const TensorOptions& options);
WEFT_API Tensor arange(int64_t end);  ///< 0 .. end-1, int64
/// `count` numbers from start to end, both among them; {start} for a count of 1. Shape: [count]. Throws: ValueError for a negative count.
WEFT_API Tensor linspace(double start, double end, int64_t count, const TensorOptions& options = {});
/// Ones on the diagonal, zeros elsewhere. Shape: [n, n]. Throws: ValueError for a negative n.
WEFT_API Tensor eye(int64_t n, const TensorOptions& options = {});

/// A copy of host numbers: `tensor({1., 2., 3.})`, `tensor({{1., 2.}, {3., 4.}})`. float32 for floating literals unless said otherwise.
WEFT_API Tensor tensor(std::initializer_list<double> values, const TensorOptions& options = {});
WEFT_API Tensor tensor(std::initializer_list<std::initializer_list<double>> rows,
                       const TensorOptions& options = {});
/// Shape: [].
WEFT_API Tensor scalar_tensor(Scalar value, const TensorOptions& options = {});
/// Copies `values` (dtype from T) into a new tensor of `sizes`. Throws: ShapeError when the counts differ.
template <class T> Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device = {});
/// Wraps memory without copying; `release(context)` runs when the last tensor over it is gone.
WEFT_API Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options,
                          void (*release)(void*) = nullptr, void* context = nullptr);

/// Random numbers of `generator`, or of the process's: rand uniform in [0, 1), randn from N(0, 1), randint whole numbers in [low, high), randperm a
/// permutation of 0 .. n-1 (int64, shape [n]). The same seed gives the same numbers on every device and instruction set, but for the last bits of
/// float64 normals on CUDA devices.
/// Throws: ShapeError for a negative size, DTypeError for a dtype that cannot hold them, ValueError for low >= high or a negative n.
WEFT_API Tensor rand(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randn(const Shape& sizes, const TensorOptions& options = {}, Generator* generator = nullptr);
WEFT_API Tensor randint(int64_t low, int64_t high, const Shape& sizes,
                        const TensorOptions& options = {.dtype = kInt64}, Generator* generator = nullptr);
WEFT_API Tensor randperm(int64_t n, Generator* generator = nullptr);

/// "tensor([[1, 2], [3, 4]], float32)" with long dims elided.
WEFT_API std::string to_string(const Tensor& x);

}  // namespace weft
