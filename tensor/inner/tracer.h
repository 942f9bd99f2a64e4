// The observer of a recording (autograd/tape/compile.h). It sees the blocks that its thread makes, uses and
// drops, which the calls of a Backend do not show. Reads and writes of values by the host have no call at
// all, so the places that make them report themselves here.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <weft/tensor/storage.h>

namespace weft {

class Tensor;
struct TensorBody;

/// Makes the functors of a replay of an optimizer's step. `replay` is 0 for a repetition of the last step.
/// Without functors it checks alone whether a replay can step. The kernel runs before the lock goes.
/// Throws: ValueError if the optimizer is not the recording's.
using StepReplay =
    std::function<std::unique_lock<std::mutex>(std::span<void* const> functors, uint64_t replay)>;

class WEFT_API Tracer {
 public:
  virtual ~Tracer() = default;
  /// A new block of the CPU.
  virtual void made(const Storage& s, void* data) = 0;
  /// Whether made() reported the block, in this recording.
  virtual bool owns(const Storage& s, const void* data) const = 0;
  /// A block that made() may have reported is destroyed.
  virtual void dropped(const Storage& s, const void* data) noexcept = 0;
  /// The address of a block is taken.
  virtual void used(const Storage& s, void* data) = 0;
  /// The host has written all elements of a new tensor.
  virtual void filled(const Tensor& y) = 0;
  /// Whether the bytes at `data` are the same in each replay: only numbers of the recording are there.
  virtual bool is_fixed(const void* data) const = 0;
  /// The grad() of a tensor is read.
  virtual void grad_read(const Tensor& x) = 0;
  /// The grad() of a leaf becomes undefined.
  virtual void grad_cleared(const Tensor& leaf) = 0;
  /// A gradient goes to the grad() of a leaf, which `has_grad` already. The caller holds the leaf's mutex.
  virtual void grad_added(TensorBody& leaf, bool has_grad) = 0;
  /// The next call of Backend::step has functors of these sizes.
  virtual void stepping(std::vector<size_t> functor_bytes, StepReplay replay) = 0;
  /// The recording cannot be replayed; the first reason counts.
  virtual void refuse(const char* why) noexcept = 0;
};

namespace detail {

extern WEFT_API constinit thread_local Tracer* t_tracer;
/// The tracer of the calling thread, or null.
inline Tracer* tracer() { return tracing_threads.load(std::memory_order_relaxed) == 0 ? nullptr : t_tracer; }
/// Sets it for the lifetime of the object. At most one per thread.
class WEFT_API TracerScope {
 public:
  explicit TracerScope(Tracer& tracer);
  ~TracerScope();
  TracerScope(const TracerScope&) = delete;
};
/// Ends the use of the calling thread's recording, if there is one.
inline void refuse_trace(const char* why) {
  if (Tracer* const t = tracer()) [[unlikely]]
    t->refuse(why);
}
/// The same if `s` was there before.
WEFT_API void refuse_trace_outside(const Storage& s, const char* why);

/// Tells a program of its captured storages. While `gone` is false and the mutex is held, all their headers
/// are there, so try_retain() may be called on them.
struct StorageWatch {
  std::mutex mutex;
  bool gone = false;       ///< one was destroyed, or another tensor over it requires grad from now on
  bool destroyed = false;  ///< it is the former
};
/// Watches a storage, of which the caller has a reference, until forget_storages. Thread safety: any thread.
WEFT_API void watch_storage(const Storage& s, std::shared_ptr<StorageWatch> watch);
WEFT_API void forget_storages(const std::shared_ptr<StorageWatch>& watch);

}  // namespace detail
}  // namespace weft
