// The pool of pinned memory (pinned.h). A freed block that copies may still use has an event behind the last
// copy of each stream. The events of a stream pass in their order. So an allocation queries only the first
// event of each stream. Passed events are reused. One mutex guards everything.
#include <weft/kernels/cuda/host/pinned.h>

#include <compare>
#include <deque>
#include <iterator>
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
  auto operator<=>(const Use&) const = default;
};
struct Block {
  size_t size;
  bool used = true;
  std::vector<Use> uses = {};
  size_t awaited = 0;  ///< events that a freed block waits for
};
struct Waiting {
  runtime::Event event;
  char* p;
};

}  // namespace

class PinnedPool::Impl {
 public:
  explicit Impl(bool caching) : caching_(caching) {}
  ~Impl() {
    settle(true);
    drop_events();
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
    for (const Use& use : std::exchange(b.uses, {})) {
      runtime::set_device(use.device);
      if (runtime::capturing(use.stream)) continue;  // a graph keeps the memory that it copies
      const runtime::Event event = take_event(use.device);
      runtime::record(event, use.stream);
      waiting_[use].push_back({event, p});
      ++b.awaited;
    }
    if (b.awaited == 0) give(found);
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
    drop_events();
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
  /// Gives back the blocks whose copies have ended; with `wait` all.
  void settle(bool wait = false) {
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      auto& [use, queue] = *at;
      while (!queue.empty()) {
        const auto [event, p] = queue.front();
        if (wait) runtime::synchronize_event(event);
        else if (!runtime::finished_event(event)) break;
        queue.pop_front();
        idle_events_[use.device].push_back(event);
        const Position block = blocks_.find(p);
        if (--block->second.awaited == 0) give(block);
      }
      at = queue.empty() ? waiting_.erase(at) : std::next(at);
    }
  }
  /// An event of the current device, `device`.
  runtime::Event take_event(int device) {
    std::vector<runtime::Event>& idle = idle_events_[device];
    if (idle.empty()) return runtime::new_event(false);
    const runtime::Event event = idle.back();
    idle.pop_back();
    return event;
  }
  void drop_events() {
    for (auto& [device, idle] : idle_events_)
      for (const runtime::Event event : std::exchange(idle, {})) runtime::delete_event(event);
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
  std::map<Use, std::deque<Waiting>> waiting_;  // freed while a copy may still run, in order of the events
  std::map<int, std::vector<runtime::Event>> idle_events_;  // by device
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
