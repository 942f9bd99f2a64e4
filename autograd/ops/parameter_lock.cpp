// Parameters marked concurrent: several threads read them while optimizer steps replace their memory
// (autograd/tape/concurrent_parameter.h). Locks of several parameters are taken in the order of their
// addresses, so that two threads cannot deadlock.
#include <weft/autograd/tape/inner/parameter_lock.h>

#include <algorithm>
#include <functional>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft {

void check_can_be_concurrent(const Tensor& parameter, const char* caller) {
  const TensorBody& b = parameter.body();
  if (!parameter.is_leaf())
    throw AutogradError(
        str(caller, ": the tensor is the result of ", parameter.grad_fn_name(), ", not a leaf"));
  detail::forget_dead_base(parameter);
  if (b.follows_base)
    throw AutogradError(str(caller, ": the tensor is a view; mark the tensor it was taken from"));
  if (b.storage->has(Storage::kFrozen))
    throw ValueError(str(caller, ": the parameter of sizes ", b.sizes, " is frozen; clone() it first"));
  if (b.storage->is_borrowed())
    throw ValueError(str(caller, ": the parameter of sizes ", b.sizes,
                         " lies in memory of from_blob(), whose owner would not see the blocks that steps "
                         "put in its place; clone() it first"));
}

void mark_concurrent(const Tensor& parameter) {
  check_can_be_concurrent(parameter, "mark_concurrent");
  parameter.body().storage->share();
}

bool is_concurrent(const Tensor& parameter) { return parameter.body().storage->lock() != nullptr; }

std::unique_lock<std::mutex> lock_parameter(const Tensor& parameter) {
  ParameterLock* const lock = parameter.body().storage->lock();
  return lock ? std::unique_lock(lock->mutex) : std::unique_lock<std::mutex>();
}

std::vector<std::unique_lock<std::mutex>> lock_parameters(std::span<const Tensor> parameters) {
  std::vector<ParameterLock*> locks;
  for (const Tensor& p : parameters)
    if (ParameterLock* const lock = p.body().storage->lock()) locks.push_back(lock);
  std::sort(locks.begin(), locks.end(), std::less<>());
  locks.erase(std::unique(locks.begin(), locks.end()), locks.end());
  std::vector<std::unique_lock<std::mutex>> held;
  for (ParameterLock* const lock : locks) held.emplace_back(lock->mutex);
  return held;
}

void swap_block(const Tensor& parameter, Ref<Storage> fresh) {
  Storage& storage = *parameter.body().storage;
  if (!storage.lock()) throw ValueError("swap_block: the parameter is not marked concurrent");
  if (!fresh) throw ValueError("swap_block: no block");
  if (fresh->bytes() != storage.bytes())
    throw ShapeError(str("swap_block: a block of ", static_cast<int64_t>(fresh->bytes()),
                         " bytes for a storage of ", static_cast<int64_t>(storage.bytes())));
  if (fresh->device() != storage.device())
    throw DeviceError(
        str("swap_block: a block on ", fresh->device(), " for a parameter on ", storage.device()));
  storage.replace_block(std::move(fresh));
}

Tensor snapshot(const Tensor& parameter) {
  if (!is_concurrent(parameter)) return clone(parameter);
  const Tensor y = detail::held(parameter);
  if (parameter.requires_grad()) {
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
