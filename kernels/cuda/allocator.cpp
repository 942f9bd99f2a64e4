// Interim: every block straight from the device.
#include <weft/kernels/cuda/allocator.h>

#include <map>
#include <mutex>

#include <weft/kernels/cuda/runtime.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

struct Allocator::Impl {
  int device;
  std::mutex mutex;
  std::map<void*, size_t> live;
  MemoryStats stats;
};
Allocator::Allocator(int device) : impl_(new Impl{device, {}, {}, {}}) {}
Allocator::~Allocator() = default;
void* Allocator::allocate(size_t bytes, void*) {
  void* const p = runtime::allocate(bytes > 0 ? bytes : 1);
  if (!p) throw OutOfMemoryError(str("cuda:", impl_->device, ": no memory for ", bytes, " bytes"));
  const std::lock_guard lock(impl_->mutex);
  impl_->live[p] = bytes;
  impl_->stats.in_use += static_cast<int64_t>(bytes), ++impl_->stats.allocations;
  return p;
}
void Allocator::deallocate(void* p) noexcept {
  if (!p) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->stats.in_use -= static_cast<int64_t>(impl_->live[p]);
  impl_->live.erase(p);
  runtime::release(p);
}
void Allocator::record_stream(void*, void*) {}
MemoryStats Allocator::stats() const { return impl_->stats; }
void Allocator::empty_cache() {}
void Allocator::set_limit(size_t) {}
void* Allocator::segment_of(void* p) const { return p; }
void Allocator::begin_pool(void*) {}
void* Allocator::end_pool() { return nullptr; }
void Allocator::release_pool(void*) noexcept {}

}  // namespace weft::cuda
