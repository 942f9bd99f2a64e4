// Tensor bodies, the two primitives that create tensors (empty and alias), and access to elements. Operations
// are in autograd/.
#include <weft/tensor/tensor.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <weft/kernels/backend.h>
#include <weft/tensor/inner/free_list.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

void* TensorBody::operator new(size_t bytes) { return pool_allocate(bytes); }
void TensorBody::operator delete(void* p) noexcept { pool_free(p, sizeof(TensorBody)); }

TensorBody::TensorBody(const Shape& sz, DType t, Device where, bool pinned)
    : sizes(sz), strides(sz), dtype(t), device(where) {
  int64_t count = 1, bytes = 0;
  bool none = false, refused = false;
  for (int d = sz.size() - 1; d >= 0; --d) {
    strides[d] = count;
    none = none || sz[d] == 0;
    refused = refused || sz[d] < 0 || __builtin_mul_overflow(count, sz[d] == 0 ? 1 : sz[d], &count);
  }
  numel = none ? 0 : count;
  refused = refused || __builtin_mul_overflow(numel, size_of(t), &bytes);
  if (refused) launch::checked_bytes("empty", sz, t);  // throws
  storage = pinned ? Storage::allocate_pinned(static_cast<size_t>(bytes))
                   : Storage::allocate(where, static_cast<size_t>(bytes));
}

void TensorBody::destroy(TensorBody* b) noexcept {
  if (b->slot) {
    b->storage->clear_history(b);
    delete b->slot;
  }
  if (b->holds_save) b->storage->drop_save();
  delete b;
}

void Tensor::undefined(const char* reader) { launch::throw_undefined(reader, "the tensor"); }

void Tensor::check_data(DType wanted, bool to_read) const {
  const TensorBody& b = body("data");
  detail::refuse_trace("asks for the address of elements (data, accessor)");
  if (b.dtype != wanted) throw DTypeError(str("data: the tensor holds ", b.dtype, ", asked for ", wanted));
  if (!b.device.is_cpu())
    throw DeviceError(str("data: the tensor lies on ", b.device, "; copy it to the CPU first"));
  if (to_read) return;
  if (b.storage->is_read_only())
    throw ValueError(str("data: the tensor ", b.storage->read_only_reason(), "; ask for const ", wanted,
                         ", or clone() it"));
  b.storage->expose();
}

const Tensor& Tensor::freeze() const {
  detail::refuse_trace("freezes a tensor");
  body("freeze").storage->freeze();
  return *this;
}

void Tensor::check_access(DType wanted, bool to_read, int dims) const {
  body("accessor");
  check_data(wanted, to_read);
  if (dim() != dims) throw ShapeError(str("accessor: asked for ", dims, " dims, the tensor is ", sizes()));
}

void detail::throw_access(int64_t index, int64_t size) {
  throw IndexError(str("accessor: index ", index, " is outside a dim of ", size));
}

Tensor empty(const Shape& sizes, const TensorOptions& options) {
  if (options.pinned && !options.device.is_cpu())
    throw DeviceError(str("empty: pinned memory is the CPU's, asked for on ", options.device));
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(sizes, options.dtype, options.device, options.pinned)));
  if (options.requires_grad) y.requires_grad_();
  return y;
}

Tensor alias(const Tensor& base, const Shape& sizes, const Shape& strides, int64_t offset) {
  const TensorBody& from = base.body();
  if (sizes.size() != strides.size())
    throw ShapeError(str("alias: sizes ", sizes, " and strides ", strides, " differ in length"));
  const bool none = checked_numel("alias", sizes) == 0;
  int64_t first = offset, last = offset;
  bool beyond = false;
  for (int d = 0; d < sizes.size(); ++d) {
    int64_t& end = strides[d] < 0 ? first : last;
    int64_t reach;
    beyond = beyond || __builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
             __builtin_add_overflow(end, reach, &end);
  }
  const int64_t room = static_cast<int64_t>(from.storage->bytes()) / size_of(from.dtype);
  if (!none && (beyond || first < 0 || last >= room))
    throw IndexError(str("alias: sizes ", sizes, ", strides ", strides, ", offset ", offset,
                         " reach outside a block of ", room, " elements"));
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(from.storage, offset, sizes, strides, from.dtype)));
  if (from.holds_save) {
    from.storage->add_save();
    y.body().holds_save = true;
  }
  return y;
}

Tensor detail::held(const Tensor& x) {
  const TensorBody& b = x.body();
  ParameterLock* const lock = b.storage->lock();
  if (!lock) return x;
  refuse_trace("uses a parameter marked concurrent");
  const std::lock_guard guard(lock->mutex);
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(lock->block, b)));
  lock->block->add_save();
  y.body().holds_save = true;
  return y;
}

namespace {

/// The elements in row-major order in host memory, owned by `keep`.
const void* host_elements(const Tensor& given, Tensor& keep) {
  if (Tracer* const t = detail::tracer(); t && !t->is_fixed(given.address())) [[unlikely]]
    t->refuse("reads values on the host (item, to_vector)");
  keep = detail::held(given);
  const Tensor x = keep;
  if (!x.is_contiguous()) {
    keep = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device()});
    Context context;
    backend(x.device()).copy(context, x.view_of(), keep.view_of());
  }
  if (keep.device().is_cpu()) return keep.address();
  const size_t bytes = static_cast<size_t>(x.numel() * size_of(x.dtype()));
  Tensor host = empty(x.sizes(), {.dtype = x.dtype()});
  Context context;
  backend(x.device()).copy_to_host(context, keep.address(), host.address(), bytes);
  keep = host;
  return keep.address();
}

/// An element as a number.
template <class T> Scalar number(T v) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) return static_cast<float>(v);
  else return v;
}

}  // namespace

Scalar Tensor::item_scalar() const {
  body("item");
  if (numel() != 1) throw ShapeError(str("item: takes one element, got sizes ", sizes()));
  Tensor keep;
  const void* data = host_elements(*this, keep);
  return dispatch(dtype(), [&](auto tag) -> Scalar {
    using T = typename decltype(tag)::type;
    return number(*static_cast<const T*>(data));
  });
}

template <Element T> std::vector<T> Tensor::to_vector() const {
  body("to_vector");
  Tensor keep;
  const void* data = host_elements(*this, keep);
  const int64_t n = numel();
  std::vector<T> out(static_cast<size_t>(n));
  dispatch(dtype(), [&](auto tag) {
    using From = typename decltype(tag)::type;
    const From* from = static_cast<const From*>(data);
    if constexpr (std::is_same_v<T, From>) std::copy(from, from + n, out.begin());
    else
      for (int64_t i = 0; i < n; ++i)
        out[static_cast<size_t>(i)] = number(from[i]).template to<T>("to_vector");
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
