// The launch layer between operation bodies and the Backend. Each function checks devices, dtypes and sizes,
// and casts the arguments to a common dtype. It broadcasts them as views with stride 0, allocates the result,
// and makes one backend call. Nothing here is recorded on the tape: autograd/ does that. Errors are thrown
// before anything is allocated.
#pragma once

#include <string>

#include <weft/kernels/backend.h>
#include <weft/tensor/tensor.h>

namespace weft::launch {

/// The context of the calling thread's launches.
WEFT_API Context& context();
inline Backend& backend_of(const Tensor& x) { return backend(x.device()); }

/// The public name of a row of pointwise.h: LogSigmoid -> "log_sigmoid", RsubScalar -> "sub".
WEFT_API std::string op_name(const char* row);
/// The compute dtype of an operation of class c for arguments of common dtype t. Integers become float32 for
/// kFloat, bool becomes int64 for kNumeric.
constexpr DType compute_dtype(OpClass c, DType t) {
  if (c == OpClass::kFloat && !is_floating(t)) return kFloat32;
  if (c == OpClass::kNumeric && t == kBool) return kInt64;
  return t;
}
/// Throws the ValueError that operation or layer `name` got an undefined tensor. `which` names the tensor:
/// the number of the argument from 1, or a text as "x".
[[noreturn]] WEFT_API void throw_undefined(const char* name, size_t which);
[[noreturn]] WEFT_API void throw_undefined(const char* name, const std::string& which);
/// Throws: ValueError that names the operation and the position, from 1, of the first undefined tensor.
template <class... X> void check_defined(const char* name, const X&... xs) {
  size_t k = 0;
  const auto next = [&](const Tensor& x) { return ++k, x.defined(); };
  if (!(next(xs) && ...)) throw_undefined(name, k);
}
/// Below this number of elements a weight keeps no packs (kernels/cpu/packs.h).
inline constexpr int64_t kLeastWeight = 2048;
WEFT_API void watch_large_weight(const Tensor& w);
/// Says that w, of the dtype of the kernel, is the right operand of products now and maybe later.
inline void watch_weight(const Tensor& w) {
  if (w.numel() >= kLeastWeight) watch_large_weight(w);
}
/// Throws: DeviceError if a and b are on different devices.
WEFT_API void check_devices(const char* name, const Tensor& a, const Tensor& b);
/// Whether their storages overlap, also if two from_blob calls wrap the same memory.
WEFT_API bool share_memory(const Tensor& a, const Tensor& b);
/// Throws: DTypeError unless x is floating.
WEFT_API void check_floating(const char* name, const Tensor& x);
/// Throws: DTypeError unless x holds int64 or int32.
WEFT_API void check_index(const char* name, const Tensor& x);
/// Throws: DTypeError if dtype t cannot hold s (Scalar::fits).
WEFT_API void check_scalar(const char* name, DType t, Scalar s);
/// The same for arithmetic with dtype t, which runs in float32 for the half dtypes and in int64 for bool.
WEFT_API void check_factor(const char* name, DType t, Scalar s);
/// The bytes of a new row-major tensor. Throws: ShapeError for a negative size, or for elements or bytes that
/// an int64 does not count.
WEFT_API int64_t checked_bytes(const char* name, const Shape& sizes, DType dtype);
/// -s as an element of t: integers wrap around, so that x + minus(s) is x - s in every type.
WEFT_API Scalar minus(Scalar s, DType t);

/// wrap_dim for an operation that treats a tensor without dims as [1]: dim 0 and -1 are valid there.
WEFT_API int line_dim(const char* name, int64_t dim, const Tensor& x);

/// Rethrows the Error in flight as an error of operation `name`. This name replaces the operation with which
/// the text begins. If the text names no operation, as a kernel's, the name is inserted at its head. Errors
/// of autograd, files, memory and CUDA stay as they are.
[[noreturn]] WEFT_API void rethrow_as(const char* name);
/// Calls f(), whose errors name `name`: the operation that the user called, not its parts.
template <class F> decltype(auto) named(const char* name, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    rethrow_as(name);
  }
}

/// x as a view of `sizes` with stride 0 where it is repeated; sizes must broadcast.
WEFT_API View expand_view(const Tensor& x, const Shape& sizes);

// Pointwise, into a new tensor.
WEFT_API Tensor unary(Unary op, const Tensor& x, Scalar s = 0, Scalar t = 0);
WEFT_API Tensor binary(Binary op, const Tensor& a, const Tensor& b, Scalar s = 1, Scalar t = 0);
WEFT_API Tensor ternary(Ternary op, const Tensor& a, const Tensor& b, const Tensor& c, Scalar s = 1);
WEFT_API Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b);

// y = op(..) of operands that have y's sizes and the operation's compute dtype; y may be one of them. Small
// row-major ones need no views: the backend's row (Backend::row) takes their addresses.
WEFT_API void run(Unary op, const Tensor& x, const Tensor& y, Scalar s = 0, Scalar t = 0);
WEFT_API void run(Binary op, const Tensor& a, const Tensor& b, const Tensor& y, Scalar s = 1, Scalar t = 0);
WEFT_API void run(Ternary op, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& y, Scalar s);

// Pointwise, into an existing tensor of any strides; the arguments broadcast to y and are cast to its dtype.
// check_into throws the errors of the write: DTypeError (float into integer), DeviceError, ShapeError, also
// for a y whose elements share memory.
WEFT_API void check_into(const char* name, const Tensor& y, const Tensor& x);
WEFT_API void check_writable(const char* name, const Tensor& y);
WEFT_API void unary_into(Unary op, const Tensor& y, Scalar s = 0, Scalar t = 0);
WEFT_API void binary_into(Binary op, const Tensor& y, const Tensor& b, Scalar s = 1, Scalar t = 0);
/// y = x, converted and broadcast; also between devices.
WEFT_API void copy_into(const Tensor& y, const Tensor& x);
WEFT_API void fill_into(const Tensor& y, Scalar value);

// Copies.
WEFT_API Tensor cast(const Tensor& x, DType dtype);  ///< x itself if it has that dtype
WEFT_API Tensor contiguous(const Tensor& x);         ///< x itself if row-major
WEFT_API Tensor clone(const Tensor& x);              ///< a new row-major copy
/// x itself if it is there; see Tensor::to.
WEFT_API Tensor to_device(const Tensor& x, Device device, bool non_blocking = false);
/// A new tensor of zeros.
WEFT_API Tensor zeros(const Shape& sizes, DType dtype, Device device);

/// The dims of a reduction as flags, wrapped and checked; empty means all. Throws: IndexError, ShapeError for
/// a dim named twice.
struct Dims {
  bool on[kMaxDims] = {};
  int count = 0;
};
WEFT_API Dims reduced_dims(const char* name, const Tensor& x, const Shape& dims);
/// Sizes after a reduction.
WEFT_API Shape reduced_sizes(const Tensor& x, const Dims& dims, bool keepdim);
/// Number of elements reduced to one result.
WEFT_API int64_t reduced_count(const Tensor& x, const Dims& dims);
/// Sums and products of integers and bool are int64; any and all are bool; others keep x's dtype. Throws:
/// ShapeError for a maximum or minimum of no elements.
WEFT_API Tensor reduce(const char* name, Reduce op, const Tensor& x, const Dims& dims, bool keepdim);

/// A tensor cast to a dtype. If it has the dtype already, it is referred to without a change of its reference
/// count, so it must outlive this object.
class Cast {
 public:
  Cast(const Tensor& x, DType dtype) : t_(&x) {
    if (x.dtype() != dtype) [[unlikely]]
      convert(dtype);
  }
  Cast(const Cast&) = delete;
  const Tensor& get() const { return *t_; }
  operator const Tensor&() const { return *t_; }
  const Tensor* operator->() const { return t_; }

 private:
  WEFT_API void convert(DType dtype);
  Tensor own_;
  const Tensor* t_;
};

/// x with `dim` moved to the end, row-major, as a matrix [count, width].
struct Rows {
  Tensor x;     ///< row-major, `dim` last
  Shape sizes;  ///< of the original
  int dim = 0;
  int64_t count = 0, width = 0;
  View view() const { return {x.address(), x.dtype(), {count, width}, {width, 1}}; }
};
WEFT_API Rows rows(const char* name, const Tensor& x, int64_t dim);
/// An uninitialised result with `width` numbers per row, in the layout of r.x. Also its View as [count,
/// width], and the result with `dim` moved back.
WEFT_API Tensor empty_rows(const Rows& r, int64_t width, DType dtype);
WEFT_API View rows_view(const Rows& r, const Tensor& y);
WEFT_API Tensor from_rows(const Rows& r, const Tensor& y);
/// One value per row, y [count], as the result of a reduction: x's sizes without `dim`, or with size 1 there.
WEFT_API Tensor from_row_values(const Rows& r, const Tensor& y, bool keepdim);

/// A view of a row-major x with other sizes, without history.
WEFT_API Tensor reshaped(const Tensor& x, const Shape& sizes);
/// x with two dims exchanged, without history.
WEFT_API Tensor transposed(const Tensor& x, int d0, int d1);

}  // namespace weft::launch
