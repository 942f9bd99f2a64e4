// Tensor: a counted handle to a body (storage, offset, sizes, strides, dtype) with an opaque slot for the tape. Copying a Tensor
// copies the handle. Views share storage. Methods that compute are declared here and defined beside their free functions in
// autograd/ (one definition serves both); nothing in this file knows of gradients beyond the slot.
// Thread safety: different threads may read one tensor and build graphs on it at once; writing needs the caller's own order,
// except the steps of optimizers on parameters marked concurrent (see lock()).
#pragma once

#include <atomic>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/scalar.h>
#include <weft/kernels/view.h>
#include <weft/tensor/storage.h>

namespace weft {

class Tensor;
struct Context;
struct ParameterLock;  // tensor/parameter_lock.h

/// What the tape keeps in a tensor; defined in autograd/.
class WEFT_API AutogradSlot {
 public:
  virtual ~AutogradSlot() = default;
};

/// The shared state behind a Tensor. Library internal; users hold Tensors.
struct WEFT_API TensorBody : RefCounted {
  TensorBody(Ref<Storage> s, int64_t off, const Shape& sz, const Shape& st, DType t)
      : storage(std::move(s)), offset(off), sizes(sz), strides(st), dtype(t), device(storage->device()) {}
  static void* operator new(size_t bytes);  // thread-local free lists
  static void operator delete(void* p) noexcept;
  static void destroy(TensorBody* b) noexcept;

  Ref<Storage> storage;
  int64_t offset;  ///< in elements
  Shape sizes, strides;
  DType dtype;
  Device
      device;  ///< the storage's; kept here so that reading it does not touch a storage that a step may swap
  bool requires_grad = false;  ///< mirrors the slot, so that the common test costs one load
  bool follows_base =
      false;  ///< a view whose history follows its base's: an in-place write to the base may make it require grad
  bool holds_save =
      false;  ///< counted in storage->saves(): a snapshot of a concurrent parameter, or a view of one
  std::atomic<ParameterLock*> lock{
      nullptr};                  ///< owned; set once marked concurrent (autograd/parameter_lock.h), else null
  AutogradSlot* slot = nullptr;  ///< owned
};

/// Options of factories: `zeros({2, 3}, {.dtype = kFloat64})`.
struct TensorOptions {
  DType dtype = kFloat32;
  Device device = {};
  bool requires_grad = false;
  bool pinned = false;  ///< CPU memory that CUDA devices read and write by themselves; see pin_memory()
};

struct MaxResult;  // {values, indices}, autograd/ops.h

/// An n-dimensional array of one dtype on one device; the default-constructed one is undefined.
class WEFT_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorBody> body) : body_(std::move(body)) {}

  // ---- what it is
  bool defined() const { return static_cast<bool>(body_); }
  explicit operator bool() const = delete;  ///< use defined() or item()
  int dim() const { return body().sizes.size(); }
  const Shape& sizes() const { return body().sizes; }
  const Shape& shape() const { return body().sizes; }
  const Shape& strides() const { return body().strides; }
  int64_t size(int64_t d) const { return body().sizes[wrap_dim("size", d, dim())]; }
  int64_t numel() const { return body().sizes.numel(); }
  DType dtype() const { return body().dtype; }
  Device device() const { return body().device; }
  int64_t storage_offset() const { return body().offset; }
  bool is_contiguous() const;
  bool is_floating_point() const { return is_floating(dtype()); }
  bool shares_storage(const Tensor& other) const { return body().storage == other.body().storage; }
  bool is_same(const Tensor& other) const { return body_ == other.body_; }
  uint32_t version() const { return body().storage->version(); }

  // ---- raw access (CPU tensors; contiguous or by strides())
  /// Pointer to the first element. Throws: DTypeError when T is not dtype(), DeviceError off the CPU.
  template <class T> T* data() const {
    check_data(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  void* raw() const {
    return static_cast<char*>(body().storage->data()) + body().offset * size_of(body().dtype);
  }
  /// What kernels take.
  View view_of() const { return {raw(), dtype(), body().sizes, body().strides}; }
  /// The only element, converted. Shape: one element. Throws: ShapeError.
  template <class T> T item() const { return item_scalar().template to<T>(); }
  Scalar item_scalar() const;
  /// All elements in row-major order, converted to T.
  template <class T> std::vector<T> to_vector() const;

  // ---- gradients (autograd/)
  bool requires_grad() const { return body().follows_base ? view_requires_grad() : body().requires_grad; }
  Tensor& requires_grad_(bool on = true);  ///< Throws: AutogradError on a non-leaf or a non-floating tensor.
  bool is_leaf() const;
  Tensor grad() const;  ///< undefined when there is none
  void set_grad(const Tensor& g) const;
  void zero_grad() const { set_grad(Tensor()); }
  void retain_grad() const;
  const char* grad_fn_name() const;  ///< "" for leaves
  /// Gradients of this tensor with respect to the leaves, added to their grad(). Throws: AutogradError.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  Tensor detach() const;  ///< shares storage and version, no history
  Tensor& detach_();

  // ---- views (Throws: ShapeError, IndexError); all differentiable
  Tensor view(const Shape& sizes) const;     ///< one size may be -1; needs compatible strides
  Tensor reshape(const Shape& sizes) const;  ///< view where possible, else a copy
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor t() const;
  Tensor transpose(int64_t d0, int64_t d1) const;
  Tensor permute(const Shape& dims) const;
  Tensor expand(const Shape& sizes) const;  ///< -1 keeps a size
  Tensor squeeze() const;
  Tensor squeeze(int64_t d) const;
  Tensor unsqueeze(int64_t d) const;
  Tensor narrow(int64_t d, int64_t start, int64_t length) const;
  Tensor select(int64_t d, int64_t index) const;
  Tensor slice(int64_t d, int64_t start, int64_t end, int64_t step = 1) const;
  Tensor operator[](int64_t index) const { return select(0, index); }
  std::vector<Tensor> split(int64_t length, int64_t d = 0) const;
  std::vector<Tensor> chunk(int64_t parts, int64_t d = 0) const;
  std::vector<Tensor> unbind(int64_t d = 0) const;

  // ---- copies and conversions
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  /// On the device; this tensor when it is there. `non_blocking`: a copy from pinned memory returns before it is done, and one to the CPU
  /// returns a pinned tensor that may be read once its stream (or device) was waited for. Throws: DeviceError.
  Tensor to(Device device, bool non_blocking = false) const;
  /// A copy in pinned memory without history, this tensor detached when it is there: copies between it and a CUDA device need no staging and
  /// can run beside other work. Throws: DeviceError for a tensor that is not on the CPU, or without a CUDA device.
  Tensor pin_memory() const;
  bool is_pinned() const { return body().storage->is_pinned(); }

  // ---- in place; bump the version; recorded when grad mode is on. Throws: AutogradError on a leaf that requires grad.
  Tensor& zero_();
  Tensor& fill_(Scalar value);
  Tensor& copy_(const Tensor& src);
  Tensor& add_(const Tensor& other, Scalar alpha = 1);
  Tensor& add_(Scalar value);
  Tensor& sub_(const Tensor& other);
  Tensor& mul_(const Tensor& other);
  Tensor& mul_(Scalar value);
  Tensor& div_(const Tensor& other);
  Tensor& div_(Scalar value);
  Tensor& clamp_(Scalar low, Scalar high);
  Tensor& relu_();
  Tensor& uniform_(double low = 0, double high = 1);
  Tensor& normal_(double mean = 0, double stddev = 1);
  Tensor& bernoulli_(double p = 0.5);
  Tensor& operator+=(const Tensor& o) { return add_(o); }
  Tensor& operator-=(const Tensor& o) { return sub_(o); }
  Tensor& operator*=(const Tensor& o) { return mul_(o); }
  Tensor& operator/=(const Tensor& o) { return div_(o); }

  // ---- the usual methods; each is the free function of the same name in autograd/ops.h
  Tensor neg() const;
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor square() const;
  Tensor pow(Scalar exponent) const;
  Tensor tanh() const;
  Tensor sigmoid() const;
  Tensor relu() const;
  Tensor clamp(Scalar low, Scalar high) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const { return matmul(other); }
  Tensor sum() const;
  Tensor sum(const Shape& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Shape& dims, bool keepdim = false) const;
  Tensor max() const;
  MaxResult max(int64_t d, bool keepdim = false) const;
  Tensor min() const;
  MaxResult min(int64_t d, bool keepdim = false) const;
  Tensor argmax(int64_t d = -1, bool keepdim = false) const;
  Tensor std(int64_t correction = 1) const;
  Tensor var(int64_t correction = 1) const;
  Tensor norm(double p = 2) const;
  Tensor softmax(int64_t d) const;
  Tensor log_softmax(int64_t d) const;
  Tensor gather(int64_t d, const Tensor& index) const;
  Tensor index_select(int64_t d, const Tensor& index) const;
  Tensor masked_fill(const Tensor& mask, Scalar value) const;

  // ---- internal
  TensorBody& body() const {
    if (!body_) undefined();
    return *body_;
  }
  TensorBody* body_ptr() const { return body_.get(); }
  const Ref<TensorBody>& ref() const { return body_; }

 private:
  [[noreturn]] static void undefined();  // Throws ValueError: undefined tensor
  void check_data(DType wanted) const;
  bool view_requires_grad() const;  // a view asks its base first, autograd/
  Ref<TensorBody> body_;
};

/// Uninitialised row-major memory. The one allocation path of all ops.
WEFT_API Tensor empty(const Shape& sizes, const TensorOptions& options = {});
/// A tensor over the same storage with another geometry and no history; bounds checked. Offset in elements.
WEFT_API Tensor alias(const Tensor& base, const Shape& sizes, const Shape& strides, int64_t offset);

}  // namespace weft
