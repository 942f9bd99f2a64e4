#include <weft/autograd/parameter_lock.h>

#include <memory>

#include <weft/autograd/record.h>
#include <weft/autograd/slot.h>
#include <weft/tensor/parameter_lock.h>

namespace weft {

void mark_concurrent(const Tensor& parameter) {
  TensorBody& b = parameter.body();
  if (!parameter.is_leaf())
    throw AutogradError(
        str("mark_concurrent: the tensor is the result of ", parameter.grad_fn_name(), ", not a leaf"));
  detail::forget_dead_base(parameter);
  if (b.follows_base)
    throw AutogradError("mark_concurrent: the tensor is a view; mark the tensor it was taken from");
  auto fresh = std::make_unique<ParameterLock>();
  ParameterLock* none = nullptr;
  if (b.lock.compare_exchange_strong(none, fresh.get(), std::memory_order_acq_rel)) fresh.release();
}

bool is_concurrent(const Tensor& parameter) {
  return parameter.body().lock.load(std::memory_order_acquire) != nullptr;
}

std::unique_lock<std::mutex> lock_parameter(const Tensor& parameter) {
  ParameterLock* lock = parameter.body().lock.load(std::memory_order_acquire);
  return lock ? std::unique_lock(lock->mutex) : std::unique_lock<std::mutex>();
}

void swap_storage(const Tensor& parameter, Ref<Storage> fresh) {
  TensorBody& b = parameter.body();
  if (!fresh) throw ValueError("swap_storage: no storage");
  const int64_t bytes = b.sizes.numel() * size_of(b.dtype);
  if (static_cast<int64_t>(fresh->bytes()) != bytes)
    throw ShapeError(str("swap_storage: a block of ", static_cast<int64_t>(fresh->bytes()),
                         " bytes for a parameter of ", bytes));
  if (fresh->device() != b.device)
    throw DeviceError(str("swap_storage: a block on ", fresh->device(), " for a parameter on ", b.device));
  b.storage->clear_history(&b);
  if (b.requires_grad) fresh->set_history(&b, true);
  b.storage.swap(fresh);
  if (b.offset != 0) b.offset = 0;
  if (const Shape strides = contiguous_strides(b.sizes); !(b.strides == strides)) b.strides = strides;
}

Tensor snapshot(const Tensor& parameter) {
  TensorBody& b = parameter.body();
  Tensor y;
  {
    const std::unique_lock<std::mutex> lock = lock_parameter(parameter);
    y = Tensor(Ref<TensorBody>::adopt(new TensorBody(b.storage, b.offset, b.sizes, b.strides, b.dtype)));
    y.body().storage->add_save();
    y.body().holds_save = true;
  }
  if (b.requires_grad) {
    detail::make_slot(y).edge = gradient_edge(parameter);
    y.body().requires_grad = true;
  }
  return y;
}

void In::pin() {
  pinned_ = snapshot(*t_);
  t_ = &pinned_;
}

}  // namespace weft
