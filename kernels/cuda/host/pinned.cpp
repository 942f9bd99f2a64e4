// The pool of pinned memory (pinned.h). Freed blocks that a copy may still use wait in a queue; each call
// checks their events. One mutex guards everything.
#include <weft/kernels/cuda/host/pinned.h>

#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/host/allocator.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

namespace {

struct Use {
  int device;
  void* stream;
  bool operator==(const Use&) const = default;
};
struct Block {
  size_t size;
  bool used = true;
  std::vector<Use> uses = {};
};
struct Waiting {
  std::vector<runtime::Event> events;
  char* p;
};

}  // namespace

class PinnedPool::Impl {
 public:
  explicit Impl(bool caching) : caching_(caching) {}
  ~Impl() {
    settle(true);
    for (const auto& [p, b] : blocks_) runtime::release_pinned(p);
  }

  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t size = caching_ ? (bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0) : bytes;
    settle();
    if (char* const p = take(size)) return p;
    void* p = runtime::allocate_pinned(size);
    if (!p) {
      settle(true);
      if (char* const freed = take(size)) return freed;
      empty();
      p = runtime::allocate_pinned(size);
    }
    if (!p) throw OutOfMemoryError(str("cuda: no pinned host memory for ", bytes, " bytes"));
    blocks_[static_cast<char*>(p)] = {size};
    return p;
  }

  void deallocate(char* p) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(p);
    if (found == blocks_.end() || !found->second.used) return;
    Block& b = found->second;
    b.used = false;
    Waiting waiting{{}, p};
    for (const Use& use : std::exchange(b.uses, {})) {
      runtime::set_device(use.device);
      if (runtime::capturing(use.stream)) continue;  // a graph keeps the memory that it copies
      waiting.events.push_back(runtime::new_event(false));
      runtime::record(waiting.events.back(), use.stream);
    }
    if (waiting.events.empty()) give(found);
    else waiting_.push_back(std::move(waiting));
    if (!caching_) settle();
  }

  void use(const void* p, Use use) {
    const std::lock_guard lock(mutex_);
    auto at = blocks_.upper_bound(static_cast<char*>(const_cast<void*>(p)));
    if (at == blocks_.begin()) return;
    --at;
    if (p >= at->first + at->second.size || !at->second.used) return;
    for (const Use& known : at->second.uses)
      if (known == use) return;
    at->second.uses.push_back(use);
  }

  void empty_cache() {
    const std::lock_guard lock(mutex_);
    settle(true);
    empty();
  }

 private:
  using Position = std::map<char*, Block>::iterator;

  char* take(size_t size) {
    const auto found = free_.lower_bound(size);
    if (found == free_.end() || found->first > 2 * size) return nullptr;
    char* const p = found->second;
    free_.erase(found);
    blocks_.at(p).used = true;
    return p;
  }
  void give(Position at) {
    if (caching_) {
      free_.emplace(at->second.size, at->first);
      return;
    }
    runtime::release_pinned(at->first);
    blocks_.erase(at);
  }
  void settle(bool wait = false) {
    for (size_t i = 0; i < waiting_.size();) {
      Waiting& w = waiting_[i];
      while (!w.events.empty()) {
        if (wait) runtime::synchronize_event(w.events.back());
        else if (!runtime::finished_event(w.events.back())) break;
        runtime::delete_event(w.events.back());
        w.events.pop_back();
      }
      if (!w.events.empty()) {
        ++i;
        continue;
      }
      give(blocks_.find(w.p));
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  void empty() {
    for (const auto& [size, p] : free_) {
      runtime::release_pinned(p);
      blocks_.erase(p);
    }
    free_.clear();
  }

  const bool caching_;
  std::mutex mutex_;
  std::map<char*, Block> blocks_;  // all blocks, by address
  std::multimap<size_t, char*> free_;
  std::deque<Waiting> waiting_;  // freed while a copy may still run
};

PinnedPool::PinnedPool(bool caching) : impl_(new Impl(caching)) {}
PinnedPool::~PinnedPool() = default;
void* PinnedPool::allocate(size_t bytes) { return impl_->allocate(bytes); }
void PinnedPool::deallocate(void* p) { impl_->deallocate(static_cast<char*>(p)); }
void PinnedPool::use(const void* p, int device, void* stream) { impl_->use(p, {device, stream}); }
void PinnedPool::empty_cache() { impl_->empty_cache(); }

namespace {
PinnedPool& pool() {
  // never destroyed: tensors in static storage may outlive main
  static PinnedPool* const object = new PinnedPool(Allocator::caches_by_default());
  return *object;
}

}  // namespace

void* allocate_pinned(size_t bytes) { return pool().allocate(bytes); }
void deallocate_pinned(void* p) noexcept {
  try {
    if (p) pool().deallocate(p);
  } catch (const std::exception&) {  // a broken context: the block is not reused
  }
}
void use_pinned(const void* p, int device, void* stream) { pool().use(p, device, stream); }
void empty_pinned_cache() { pool().empty_cache(); }

}  // namespace weft::cuda
