// Tensor bodies, empty and alias (the two ways a tensor comes to be), and reading elements. Nothing here computes.
#include <weft/tensor/tensor.h>

#include <cstring>
#include <memory>

#include <weft/kernels/backend.h>
#include <weft/tensor/free_list.h>
#include <weft/tensor/parameter_lock.h>

namespace weft {

void* TensorBody::operator new(size_t bytes) { return pool_allocate(bytes); }
void TensorBody::operator delete(void* p) noexcept { pool_free(p, sizeof(TensorBody)); }

void TensorBody::destroy(TensorBody* b) noexcept {
  if (b->slot) {
    b->storage->clear_history(b);
    delete b->slot;
  }
  if (b->holds_save) b->storage->drop_save();
  delete b->lock.load(std::memory_order_relaxed);
  delete b;
}

void Tensor::undefined() { throw ValueError("undefined tensor: it holds nothing"); }

void Tensor::check_data(DType wanted) const {
  const TensorBody& b = body();
  if (b.dtype != wanted) throw DTypeError(str("data: the tensor holds ", b.dtype, ", asked for ", wanted));
  if (!b.device.is_cpu())
    throw DeviceError(str("data: the tensor lies on ", b.device, "; copy it to the CPU first"));
}

bool Tensor::is_contiguous() const { return View{nullptr, dtype(), sizes(), strides()}.is_contiguous(); }

Tensor empty(const Shape& sizes, const TensorOptions& options) {
  int64_t count = 1;
  for (int64_t n : sizes) {
    if (n < 0) throw ShapeError(str("empty: negative size in ", sizes));
    if (__builtin_mul_overflow(count, n, &count))
      throw ShapeError(str("empty: ", sizes, " has more elements than an int64 counts"));
  }
  int64_t bytes;
  if (__builtin_mul_overflow(count, size_of(options.dtype), &bytes))
    throw ShapeError(str("empty: ", sizes, " of ", options.dtype, " is too large"));
  Shape strides;
  strides.resize(sizes.size());
  int64_t step = 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    strides[d] = step;
    step *= sizes[d] > 1 ? sizes[d] : 1;
  }
  if (options.pinned && !options.device.is_cpu())
    throw DeviceError(str("empty: pinned memory is the CPU's, asked for on ", options.device));
  auto storage = options.pinned ? Storage::allocate_pinned(static_cast<size_t>(bytes))
                                : Storage::allocate(options.device, static_cast<size_t>(bytes));
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(std::move(storage), 0, sizes, strides, options.dtype)));
  if (options.requires_grad) y.requires_grad_();
  return y;
}

Tensor alias(const Tensor& base, const Shape& sizes, const Shape& strides, int64_t offset) {
  const TensorBody& from = base.body();
  if (sizes.size() != strides.size())
    throw ShapeError(str("alias: sizes ", sizes, " and strides ", strides, " differ in length"));
  int64_t first = offset, last = offset;
  bool none = false;
  for (int d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0) throw ShapeError(str("alias: negative size in ", sizes));
    if (sizes[d] == 0) none = true;
    else (strides[d] < 0 ? first : last) += (sizes[d] - 1) * strides[d];
  }
  const int64_t room = static_cast<int64_t>(from.storage->bytes()) / size_of(from.dtype);
  if (!none && (first < 0 || last >= room))
    throw IndexError(str("alias: sizes ", sizes, ", strides ", strides, ", offset ", offset,
                         " reach outside a block of ", room, " elements"));
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(from.storage, offset, sizes, strides, from.dtype)));
  if (from.holds_save) {
    from.storage->add_save();
    y.body().holds_save = true;
  }
  return y;
}

namespace {

/// The elements in row-major order in host memory; `keep` owns them when a copy was needed.
const void* host_elements(const Tensor& x, Tensor& keep) {
  keep = x;
  if (!x.is_contiguous()) {
    keep = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
    Context context;
    backend(x.device()).copy(context, x.view_of(), keep.view_of());
  }
  if (keep.device().is_cpu()) return keep.raw();
  const size_t bytes = static_cast<size_t>(x.numel() * size_of(x.dtype()));
  Tensor host = empty(x.sizes(), {.dtype = x.dtype()});
  Context context;
  backend(x.device()).copy_to_host(context, keep.raw(), host.raw(), bytes);
  keep = host;
  return keep.raw();
}

template <class To, class From> To convert(From v) {
  if constexpr (std::is_same_v<To, From>) return v;
  else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
    return convert<To>(static_cast<float>(v));
  else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>)
    return To(static_cast<float>(v));
  else return static_cast<To>(v);
}

}  // namespace

Scalar Tensor::item_scalar() const {
  if (numel() != 1) throw ShapeError(str("item: takes one element, got sizes ", sizes()));
  Tensor keep;
  const void* data = host_elements(*this, keep);
  return dispatch(dtype(), [&](auto tag) -> Scalar {
    using T = typename decltype(tag)::type;
    const T v = *static_cast<const T*>(data);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      return Scalar(static_cast<float>(v));
    else return Scalar(v);
  });
}

template <class T> std::vector<T> Tensor::to_vector() const {
  Tensor keep;
  const void* data = host_elements(*this, keep);
  const int64_t n = numel();
  std::vector<T> out(static_cast<size_t>(n));
  dispatch(dtype(), [&](auto tag) {
    using From = typename decltype(tag)::type;
    const From* from = static_cast<const From*>(data);
    for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = convert<T>(from[i]);
  });
  return out;
}
template WEFT_API std::vector<bool> Tensor::to_vector() const;
template WEFT_API std::vector<uint8_t> Tensor::to_vector() const;
template WEFT_API std::vector<int32_t> Tensor::to_vector() const;
template WEFT_API std::vector<int64_t> Tensor::to_vector() const;
template WEFT_API std::vector<Half> Tensor::to_vector() const;
template WEFT_API std::vector<BFloat16> Tensor::to_vector() const;
template WEFT_API std::vector<float> Tensor::to_vector() const;
template WEFT_API std::vector<double> Tensor::to_vector() const;

}  // namespace weft
