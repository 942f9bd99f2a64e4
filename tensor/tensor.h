// Tensor: a reference-counted handle to a body (storage, offset, sizes, strides, dtype) with an opaque slot
// for the tape. Copying a Tensor copies the handle; views share storage. Methods that compute are declared
// here and defined in autograd/, together with their free functions; this file knows of gradients only the
// slot. Thread safety: several threads may read a tensor and build graphs on it at once. Writes need
// synchronisation by the caller, except optimizer steps on parameters marked concurrent
// (autograd/tape/concurrent_parameter.h).
#pragma once

#include <concepts>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/scalar.h>
#include <weft/kernels/view.h>
#include <weft/tensor/storage.h>

namespace weft {

template <class Signature> class Callback;
class Generator;
class HookHandle;
class Tensor;
struct Context;

/// Base of the tape's data in a tensor; autograd/ defines the rest.
class WEFT_API AutogradSlot {
 public:
  virtual ~AutogradSlot() = default;
};

/// The shared state behind a Tensor. Library internal; users hold Tensors.
struct WEFT_API TensorBody : RefCounted {
  TensorBody(Ref<Storage> s, int64_t off, const Shape& sz, const Shape& st, DType t)
      : storage(std::move(s)),
        offset(off),
        numel(sz.numel()),
        sizes(sz),
        strides(st),
        dtype(t),
        device(storage->device()),
        contiguous(is_row_major(sz, st)) {}
  /// The geometry of `like` over s, which has the same layout.
  TensorBody(Ref<Storage> s, const TensorBody& like)
      : storage(std::move(s)),
        offset(like.offset),
        numel(like.numel),
        sizes(like.sizes),
        strides(like.strides),
        dtype(like.dtype),
        device(like.device),
        contiguous(like.contiguous) {}
  /// A new row-major tensor over uninitialised memory.
  /// Throws: ShapeError, in the name of `empty`, for sizes that an int64 does not count; OutOfMemoryError.
  TensorBody(const Shape& sz, DType t, Device where, bool pinned);
  static void* operator new(size_t bytes);  // thread-local free lists
  static void operator delete(void* p) noexcept;
  static void destroy(TensorBody* b) noexcept;

  Ref<Storage> storage;
  int64_t offset = 0;  ///< in elements
  int64_t numel;
  Shape sizes, strides;
  DType dtype;
  Device device;               ///< the storage's
  bool contiguous = true;      ///< row-major without gaps
  bool requires_grad = false;  ///< copy of the slot's flag, so that the common check is one load
  /// a view whose history depends on its base's: an in-place write to the base may make it require grad
  bool follows_base = false;
  /// counted in storage->saves(): a snapshot of a concurrent parameter, or a view of a snapshot
  bool holds_save = false;
  /// a RowGrad on its way through the engine (autograd/tape/inner/packed_rows.h); users see none
  bool row_wise = false;
  AutogradSlot* slot = nullptr;  ///< owned
};

/// The dtype in TensorOptions: float32 unless one is given.
class DTypeOption {
 public:
  constexpr DTypeOption() = default;
  constexpr DTypeOption(DType dtype) : dtype_(dtype), given_(true) {}
  constexpr operator DType() const { return dtype_; }
  constexpr bool given() const { return given_; }

 private:
  DType dtype_ = kFloat32;
  bool given_ = false;
};

/// An int64_t argument that takes neither a floating number nor a bool: `x.select(0, 1.9)` does not compile.
class Whole {
 public:
  template <std::integral T>
  requires(!std::same_as<T, bool>) constexpr Whole(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::floating_point T> Whole(T) = delete;  // a dim, position or count is an integer, not 1.9
  template <std::same_as<bool> T> Whole(T) = delete;   // a dim, position or count is an integer, not true
  constexpr operator int64_t() const { return value_; }
  friend std::string to_string(Whole w) { return std::to_string(w.value_); }

 private:
  int64_t value_;
};

namespace detail {
template <class T>
concept NumberNotBool = std::is_arithmetic_v<T> && !std::same_as<T, bool>;
}
/// A bool argument that takes nothing else: `x.sum(0, 1)`, which means two dims in PyTorch, does not compile.
class Flag {
 public:
  template <std::same_as<bool> T> constexpr Flag(T value) : value_(value) {}
  template <detail::NumberNotBool T> Flag(T) = delete;  // a flag is true or false, not 1; two dims are {0, 1}
  constexpr operator bool() const { return value_; }

 private:
  bool value_;
};

/// Options of factories: `zeros({2, 3}, {.dtype = kFloat64})`.
struct TensorOptions {
  DTypeOption dtype = {};
  Device device = {};
  bool requires_grad = false;
  bool pinned = false;  ///< CPU memory that CUDA devices access directly; see pin_memory()
};

struct MaxResult;     // {values, indices}, autograd/ops/ops_reduce.h
struct RowGrad;       // {sizes, rows, values}, autograd/tape/row_grad.h
struct UniqueResult;  // {values, inverse, counts}, autograd/ops/ops_order.h
struct UniqueOptions;
enum class ScatterReduce : uint8_t;
class Indexed;  // x[mask], tensor/index.h
class TensorIndex;
struct Slice;
template <class T, int N, bool Checked> class Accessor;  // tensor/accessor.h
#ifdef NDEBUG
inline constexpr bool kCheckedAccess = false;
#else
inline constexpr bool kCheckedAccess = true;
#endif

/// An n-dimensional array of one dtype on one device; a default-constructed Tensor is undefined. Assigning to
/// a named Tensor makes it refer to another tensor. Assigning to one without a name, such as `x[0] = y`,
/// writes the values into its memory.
class WEFT_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorBody> body) : body_(std::move(body)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// `x[0] = y`, `x.slice(..) = y`: copy_.
  /// Throws: as copy_; ValueError if no other tensor shares the memory, so that the write would be lost, as
  /// in `x.index_select(..) = y`.
  Tensor operator=(const Tensor& src) && { return check_seen("operator="), copy_(src); }
  /// `x[0] = 5`: fill_. Throws: as fill_; ValueError as above.
  Tensor operator=(Scalar value) && { return check_seen("operator="), fill_(value); }

  // ---- properties
  bool defined() const { return static_cast<bool>(body_); }
  explicit operator bool() const = delete;  // a Tensor is no condition: use defined(), item<bool>() or any()
  int dim() const { return body("dim").sizes.size(); }
  const Shape& sizes() const { return body("sizes").sizes; }
  const Shape& shape() const { return body("shape").sizes; }
  const Shape& strides() const { return body("strides").strides; }
  int64_t size(Whole d) const { return body("size").sizes[wrap_dim("size", d, dim())]; }
  int64_t numel() const { return body("numel").numel; }
  DType dtype() const { return body("dtype").dtype; }
  Device device() const { return body("device").device; }
  int64_t storage_offset() const { return body("storage_offset").offset; }
  bool is_contiguous() const { return body("is_contiguous").contiguous; }
  bool is_floating_point() const { return is_floating(body("is_floating_point").dtype); }
  bool shares_storage(const Tensor& other) const {
    const Storage &a = *body("shares_storage").storage, &b = *other.body("shares_storage").storage;
    return &a == &b || (a.bytes() != 0 && a.data() == b.data());
  }
  bool is_same(const Tensor& other) const { return body_ == other.body_; }
  uint32_t version() const { return body("version").storage->version(); }

  // ---- raw access (CPU tensors; contiguous or by strides())
  /// Pointer to the first element; T may be const. An optimizer step on a parameter marked concurrent may
  /// replace the memory. After a call without const, products keep no packs of it (kernels/packs.h). Throws:
  /// DTypeError if T is not dtype(), DeviceError off the CPU. ValueError for a frozen tensor or other
  /// read-only memory unless T is const.
  template <class T> T* data() const {
    check_data(dtype_of<std::remove_const_t<T>>, std::is_const_v<T>);
    return static_cast<T*>(address());
  }
  /// Elements by N indices, `a[i][j]`; T may be const. The accessor holds pointers but no reference: keep
  /// this tensor. An index out of range is an IndexError in code compiled without NDEBUG, and undefined
  /// behaviour with it. Throws: as data(); ShapeError unless dim() is N.
  template <class T, int N> Accessor<T, N, kCheckedAccess> accessor() const;
  /// Address of the first element, of any dtype; on a CUDA device an address of device memory. Throws:
  /// ValueError for a frozen tensor.
  void* raw() const { return body().storage->expose(), address(); }
  const void* const_raw() const { return address(); }  ///< the same to read only
  /// The only element, converted to T.
  /// Throws: ShapeError unless numel() is 1, DTypeError if T cannot hold the value (NaN as an integer, 300 as
  /// uint8).
  template <class T> T item() const { return item_scalar().template to<T>("item"); }
  Scalar item_scalar() const;  ///< the only element; Throws: ShapeError unless numel() is 1
  /// All elements in row-major order, converted to T. Throws: DTypeError if T cannot hold one of them.
  template <Element T> std::vector<T> to_vector() const;
  /// From now on, a write through weft to this memory, by views and aliases too, is a ValueError. That
  /// includes optimizer steps, set_data, data<T>() without const and raw(). The caller promises not to write
  /// by an older address, so products may keep packs (kernels/packs.h) even of from_blob memory. Cannot be
  /// undone; clone() allows writes. Throws: ValueError for a parameter marked concurrent.
  const Tensor& freeze() const;
  bool is_frozen() const { return body("is_frozen").storage->has(Storage::kFrozen); }

  // ---- gradients (autograd/)
  bool requires_grad() const {
    return body("requires_grad").follows_base ? view_requires_grad() : body().requires_grad;
  }
  /// Makes a leaf require grad, or not. Throws: AutogradError for a non-leaf or a non-floating tensor.
  Tensor& requires_grad_(bool on = true);
  bool is_leaf() const;  ///< true unless an operation recorded it
  /// The gradient, or undefined. A row-wise gradient is returned as a dense copy, which refuses writes.
  Tensor grad() const;
  /// Replaces grad(); an undefined g clears it. Throws: ShapeError, DTypeError, DeviceError unless g matches.
  void set_grad(const Tensor& g) const;
  /// The row-wise gradient that a sparse embedding made; its values share memory with it. Undefined if grad()
  /// is dense or there is none.
  RowGrad row_grad() const;
  /// Replaces grad() by a copy of the rows; an undefined g clears it. Throws: as set_grad; ValueError unless
  /// the rows ascend.
  void set_row_grad(const RowGrad& g) const;
  void zero_grad() const { body("zero_grad"), set_grad(Tensor()); }
  /// Lets backward store the gradient of a non-leaf in grad(). Throws: AutogradError unless it requires grad.
  void retain_grad() const;
  const char* grad_fn_name() const;  ///< name of the operation that recorded it, "" for leaves
  /// Adds the gradients of this tensor with respect to the leaves to their grad(). `gradient` is the gradient
  /// of this tensor; undefined means 1, for one element. Throws: AutogradError, ShapeError.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// weft::register_hook: `hook` gets the gradient of this tensor in each backward, and may replace it.
  HookHandle register_hook(Callback<Tensor(const Tensor&)> hook) const;
  Tensor detach() const;  ///< an alias that shares storage and version, without history
  /// Drops the history in place. Throws: AutogradError for a view.
  Tensor& detach_();

  // ---- views; all differentiable. ops_shape.h has their sizes and errors.
  Tensor view(const Shape& sizes) const;     ///< one size may be -1; needs compatible strides
  Tensor reshape(const Shape& sizes) const;  ///< view if possible, else a copy
  Tensor flatten(Whole start = 0, Whole end = -1) const;
  Tensor t() const;  ///< a matrix transposed; fewer dims unchanged. Throws: ShapeError for more than two dims
  Tensor transpose(int64_t d0, int64_t d1) const;
  Tensor permute(const Shape& dims) const;
  Tensor expand(const Shape& sizes) const;  ///< -1 keeps a size
  Tensor expand_as(const Tensor& other) const { return expand(other.body("expand_as").sizes); }
  Tensor squeeze() const;
  Tensor squeeze(Whole d) const;
  Tensor unsqueeze(Whole d) const;
  Tensor narrow(Whole d, Whole start, Whole length) const;
  Tensor select(Whole d, Whole index) const;
  Tensor slice(Whole d, Whole start, Whole end = INT64_MAX, Whole step = 1) const;
  Tensor as_strided(const Shape& sizes, const Shape& strides, int64_t offset = 0) const;
  Tensor diagonal(Whole offset = 0, int64_t d0 = 0, int64_t d1 = 1) const;
  Tensor operator[](int64_t index) const& { return select(0, index); }
  Tensor operator[](const Slice& s) const&;  ///< `x[{1, 3}]`, of the first dim
  /// by a mask or positions: a copy; `x[mask] = v` assigns to the elements of x
  Indexed operator[](const Tensor& index) const&;
  /// on a temporary: releases its memory first, so that a lost write throws
  Tensor operator[](int64_t index) &&;
  Tensor operator[](const Slice& s) &&;
  Indexed operator[](const Tensor& index) &&;
  template <std::floating_point T> Tensor operator[](T) const = delete;  // an index is an integer, not 1.9
  template <std::same_as<bool> T> Tensor operator[](T) const = delete;   // an index is an integer, not true
  std::vector<Tensor> split(int64_t length, Whole d = 0) const;
  std::vector<Tensor> split(const Shape& lengths, Whole d = 0) const;
  template <std::floating_point T> void split(T, Whole = 0) const = delete;  // a length is an integer
  std::vector<Tensor> chunk(Whole parts, Whole d = 0) const;
  std::vector<Tensor> unbind(Whole d = 0) const;

  // ---- copies and conversions (ops_shape.h)
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  /// A copy on the device; this tensor if it is there. `non_blocking`: a copy from pinned memory returns
  /// before it is done. A copy to the CPU returns a pinned tensor that may be read after waiting for its
  /// stream (or the device). Throws: DeviceError.
  Tensor to(Device device, bool non_blocking = false) const;
  Tensor to(Device device, DType dtype, bool non_blocking = false) const;
  /// A copy in pinned memory without history; this tensor detached if it is pinned. Copies between pinned
  /// memory and a CUDA device need no staging and can overlap other work.
  /// Throws: DeviceError for a tensor that is not on the CPU, or without a CUDA device.
  Tensor pin_memory() const;
  bool is_pinned() const { return body("is_pinned").storage->is_pinned(); }

  // ---- in place; they increment the version and are recorded if grad mode is on. Arguments broadcast to
  // this tensor and are cast to its dtype. Throws, before the write: ShapeError for an argument that does not
  // broadcast to this tensor, or a tensor that shows elements twice. DTypeError for a floating argument of an
  // integer tensor, or a Scalar that the dtype cannot hold. DTypeError for a mask that is not bool, and for
  // indices that are not int64 or int32. IndexError for an index or a dim out of range (index_put_, scatter_,
  // scatter_add_, index_add_). DeviceError. ValueError for read-only memory. AutogradError for a leaf that
  // requires grad or a view of one, while grad mode is on.
  Tensor& zero_();
  Tensor& fill_(Scalar value);
  Tensor& copy_(const Tensor& src);  ///< from any dtype and device
  Tensor& add_(const Tensor& other, Scalar alpha = 1);
  Tensor& add_(Scalar value);
  Tensor& sub_(const Tensor& other, Scalar alpha = 1);
  Tensor& sub_(Scalar value);
  Tensor& mul_(const Tensor& other);
  Tensor& mul_(Scalar value);
  Tensor& div_(const Tensor& other);  ///< floating tensors only
  Tensor& div_(Scalar value);
  /// Throws: ValueError for a zero among integer divisors on the CPU; a CUDA device writes 0 there.
  Tensor& remainder_(const Tensor& other);
  Tensor& remainder_(Scalar value);  ///< Throws: ValueError for integers and the number 0, on every device
  Tensor& pow_(const Tensor& other);
  Tensor& pow_(Scalar value);  ///< Throws: ValueError for a negative power of integers
  Tensor& exp_();              ///< floating tensors only
  Tensor& neg_();
  Tensor& bitwise_and_(const Tensor& other);
  Tensor& bitwise_and_(Scalar value);
  Tensor& bitwise_or_(const Tensor& other);
  Tensor& bitwise_or_(Scalar value);
  Tensor& bitwise_xor_(const Tensor& other);
  Tensor& bitwise_xor_(Scalar value);
  /// Throws: ValueError for low > high, or for neither bound.
  Tensor& clamp_(std::optional<Scalar> low, std::optional<Scalar> high = {});
  Tensor& relu_();
  Tensor& masked_fill_(const Tensor& mask, Scalar value);
  Tensor& masked_scatter_(const Tensor& mask, const Tensor& source);
  /// Writes `values`, broadcast, to the elements that index({...}) reads. Of positions named twice the last
  /// value counts; with `accumulate` all values are added.
  Tensor& index_put_(const std::vector<TensorIndex>& at, const Tensor& values, bool accumulate = false);
  Tensor& index_put_(const std::vector<TensorIndex>& at, Scalar value, bool accumulate = false);
  Tensor& scatter_(Whole d, const Tensor& index, const Tensor& src);
  Tensor& scatter_(Whole d, const Tensor& index, Scalar value);
  Tensor& scatter_add_(Whole d, const Tensor& index, const Tensor& src);
  Tensor& index_add_(Whole d, const Tensor& index, const Tensor& src);
  // random numbers of default_generator(). Throws: ValueError for low > high, stddev < 0, a bound, mean or
  // stddev that is not finite, or p outside [0, 1]
  Tensor& uniform_(double low = 0, double high = 1);    ///< U(low, high), floating tensors only
  Tensor& normal_(double mean = 0, double stddev = 1);  ///< N(mean, stddev^2), floating tensors only
  Tensor& bernoulli_(double p = 0.5);                   ///< 1 with probability p, else 0
  // += -= *= /= %= &= |= ^= by a tensor or a number. Throws: ValueError for a tensor without a name whose
  // memory no other tensor shares: the write would be lost, as in `x.index_select(..) += 1`.
#define WEFT_COMPOUND(symbol, method, Other)              \
  Tensor& operator symbol(Other o)& { return method(o); } \
  Tensor operator symbol(Other o)&& { return check_seen("operator" #symbol), method(o); }
#define WEFT_COMPOUNDS(Other)            \
  WEFT_COMPOUND(+=, add_, Other)         \
  WEFT_COMPOUND(-=, sub_, Other)         \
  WEFT_COMPOUND(*=, mul_, Other)         \
  WEFT_COMPOUND(/=, div_, Other)         \
  WEFT_COMPOUND(%=, remainder_, Other)   \
  WEFT_COMPOUND(&=, bitwise_and_, Other) \
  WEFT_COMPOUND(|=, bitwise_or_, Other)  \
  WEFT_COMPOUND(^=, bitwise_xor_, Other)
  WEFT_COMPOUNDS(const Tensor&)
  WEFT_COMPOUNDS(Scalar)
#undef WEFT_COMPOUND

  // ---- methods for the free functions of the same name in autograd/ops/ops.h; this tensor is the first
  // argument
  Tensor add(const Tensor&other, Scalar alpha = 1) const, add(Scalar other) const;
  Tensor sub(const Tensor&other, Scalar alpha = 1) const, sub(Scalar other) const;
  Tensor mul(const Tensor&other) const, mul(Scalar other) const;
  Tensor div(const Tensor&other) const, div(Scalar other) const;
  Tensor pow(const Tensor&exponent) const, pow(Scalar exponent) const;
  Tensor remainder(const Tensor&other) const, remainder(Scalar other) const, fmod(const Tensor&other) const,
      fmod(Scalar other) const;
  Tensor floor_divide(const Tensor&other) const, floor_divide(Scalar other) const;
  Tensor nan_to_num(Scalar nan = 0, std::optional<Scalar> posinf = {},
                    std::optional<Scalar> neginf = {}) const;
  Tensor maximum(const Tensor&other) const, maximum(Scalar other) const;
  Tensor minimum(const Tensor&other) const, minimum(Scalar other) const;
  Tensor atan2(const Tensor& other) const;
  Tensor clamp(std::optional<Scalar> low, std::optional<Scalar> high = {}) const,
      clamp(const Tensor&low, const Tensor&high) const;
  /// this tensor where the condition is true: weft::where(condition, *this, other)
  Tensor where(const Tensor&condition, const Tensor&other) const,
      where(const Tensor&condition, Scalar other) const;
  Tensor masked_fill(const Tensor& mask, Scalar value) const;
  Tensor addcmul(const Tensor& a, const Tensor& b, Scalar value = 1) const;
  Tensor addcdiv(const Tensor& a, const Tensor& b, Scalar value = 1) const;
  Tensor lerp(const Tensor&end, const Tensor&weight) const, lerp(const Tensor&end, Scalar weight) const;
  Tensor neg() const, abs() const, sign() const, square() const, sqrt() const, rsqrt() const,
      reciprocal() const;
  Tensor exp() const, expm1() const, log() const, log1p() const, log2() const, erf() const;
  Tensor sin() const, cos() const, tan() const, tanh() const, sigmoid() const, relu() const;
  Tensor floor() const, ceil() const, round() const, trunc() const;
  Tensor eq(const Tensor&other) const, eq(Scalar other) const, ne(const Tensor&other) const,
      ne(Scalar other) const;
  Tensor lt(const Tensor&other) const, lt(Scalar other) const, le(const Tensor&other) const,
      le(Scalar other) const;
  Tensor gt(const Tensor&other) const, gt(Scalar other) const, ge(const Tensor&other) const,
      ge(Scalar other) const;
  Tensor logical_and(const Tensor&other) const, logical_or(const Tensor&other) const,
      logical_xor(const Tensor&other) const;
  Tensor bitwise_and(const Tensor&other) const, bitwise_or(const Tensor&other) const,
      bitwise_xor(const Tensor&other) const;
  Tensor bitwise_and(Scalar other) const, bitwise_or(Scalar other) const, bitwise_xor(Scalar other) const;
  Tensor logical_not() const, bitwise_not() const, isnan() const, isinf() const, isfinite() const;
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8) const;
  bool equal(const Tensor& other) const;
  Tensor sum() const, sum(const Shape&dims, Flag keepdim = false) const, sum_to(const Shape&sizes) const;
  Tensor mean() const, mean(const Shape&dims, Flag keepdim = false) const;
  Tensor prod() const, prod(Whole d, Flag keepdim = false) const;
  Tensor max() const, min() const, max(const Tensor&other) const, min(const Tensor&other) const;
  MaxResult max(Whole d, Flag keepdim = false) const, min(Whole d, Flag keepdim = false) const;
  Tensor amax(const Shape& dims = {}, Flag keepdim = false) const;
  Tensor amin(const Shape& dims = {}, Flag keepdim = false) const;
  Tensor argmax() const, argmax(Whole d, Flag keepdim = false) const;
  Tensor argmin() const, argmin(Whole d, Flag keepdim = false) const;
  Tensor any() const, any(const Shape&dims, Flag keepdim = false) const;
  Tensor all() const, all(const Shape&dims, Flag keepdim = false) const;
  Tensor var() const, var(const Shape&dims, double correction = 1, Flag keepdim = false) const;
  Tensor std() const, std(const Shape&dims, double correction = 1, Flag keepdim = false) const;
  Tensor norm(double p = 2) const, norm(double p, const Shape&dims, Flag keepdim = false) const;
  Tensor median() const;
  MaxResult median(Whole d, Flag keepdim = false) const;
  Tensor logsumexp(Whole d, Flag keepdim = false) const;
  Tensor cumsum(Whole d) const, cumprod(Whole d) const, softmax(Whole d) const, log_softmax(Whole d) const;
  Tensor matmul(const Tensor&other) const, mm(const Tensor&other) const, bmm(const Tensor&other) const;
  Tensor mv(const Tensor&other) const, dot(const Tensor&other) const, outer(const Tensor&other) const;
  Tensor addmm(const Tensor& a, const Tensor& b, Scalar beta = 1, Scalar alpha = 1) const;
  /// x.index({0, Slice(1, 3), None, Ellipsis, mask})
  Indexed index(std::vector<TensorIndex> at) const&;
  Indexed index(std::vector<TensorIndex> at) &&;  // as operator[] of a temporary
  Tensor index_put(const std::vector<TensorIndex>& at, const Tensor& values, bool accumulate = false) const;
  Tensor masked_scatter(const Tensor& mask, const Tensor& source) const;
  Tensor index_select(Whole d, const Tensor& index) const;
  Tensor gather(Whole d, const Tensor& index) const;
  Tensor scatter(Whole d, const Tensor&index, const Tensor&src) const,
      scatter(Whole d, const Tensor&index, Scalar value) const;
  Tensor scatter_add(Whole d, const Tensor& index, const Tensor& src) const;
  Tensor index_add(Whole d, const Tensor& index, const Tensor& src) const;
  Tensor scatter_reduce(Whole d, const Tensor& index, const Tensor& src, ScatterReduce reduce,
                        bool include_self = true) const;
  Tensor take_along(const Tensor& index, Whole d) const;
  Tensor masked_select(const Tensor& mask) const;
  Tensor nonzero() const;
  MaxResult sort(Whole d = -1, Flag descending = false) const;
  Tensor argsort(Whole d = -1, Flag descending = false) const;
  UniqueResult unique() const, unique(const UniqueOptions&options) const;
  Tensor bincount(const Tensor& weights = Tensor(), Whole minlength = 0) const;
  Tensor repeat_interleave(Whole repeats, std::optional<int64_t> d = {}) const;
  Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> d = {}) const;
  MaxResult topk(Whole k, Whole d = -1, Flag largest = true) const;
  Tensor repeat(const Shape&times) const, flip(const Shape&dims) const, roll(Whole shift) const,
      roll(Whole shift, Whole d) const;
  Tensor tril(Whole k = 0) const, triu(Whole k = 0) const, diag(Whole k = 0) const;
  Tensor multinomial(Whole count, bool replacement = false, Generator* generator = nullptr) const;
  Tensor bernoulli(Generator* generator = nullptr) const;
  Tensor bernoulli(double p, Generator* generator = nullptr) const;  ///< of the sizes of this tensor

  /// As to_string.
  friend WEFT_API std::ostream& operator<<(std::ostream& out, const Tensor& x);

  // ---- internal
  /// Throws: ValueError that names `reader` if this tensor is undefined.
  TensorBody& body(const char* reader = "body") const {
    if (!body_) undefined(reader);
    return *body_;
  }
  TensorBody* body_ptr() const { return body_.get(); }
  const Ref<TensorBody>& ref() const { return body_; }
  /// raw() for the library, which counts its writes by Storage::bump_version().
  [[gnu::always_inline]] void* address() const {
    const TensorBody& b = body();
    return static_cast<char*>(b.storage->data()) + b.offset * size_of(b.dtype);
  }
  /// The tensor in the form of kernel arguments; as address().
  View view_of() const { return {address(), dtype(), body().sizes, body().strides}; }

 private:
  friend class Indexed;
  [[noreturn]] static void undefined(const char* reader);
  void check_data(DType wanted, bool to_read) const;
  void check_access(DType wanted, bool to_read, int dims) const;
  bool view_requires_grad() const;  // first brings a view up to date with its base; autograd/
  // Throws ValueError that names the write if nothing else holds the memory of a temporary
  void check_seen(const char* write) const;
  Ref<TensorBody> body_;
};

/// Uninitialised row-major memory. All operations allocate through it.
/// Throws: ShapeError for a negative size, or sizes that multiply beyond int64. OutOfMemoryError. DeviceError
/// for a device that is not there, or pinned memory elsewhere than on the CPU. AutogradError for
/// requires_grad of an integer dtype.
WEFT_API Tensor empty(const Shape& sizes, const TensorOptions& options = {});
inline Tensor empty(const Shape& sizes, std::same_as<DType> auto dtype) {
  return empty(sizes, TensorOptions{.dtype = dtype});
}
/// A tensor over the same storage with other sizes, strides and offset (in elements), without history.
/// Throws: IndexError for elements outside the storage.
WEFT_API Tensor alias(const Tensor& base, const Shape& sizes, const Shape& strides, int64_t offset);

}  // namespace weft

#include <weft/tensor/accessor.h>
#include <weft/tensor/index.h>
