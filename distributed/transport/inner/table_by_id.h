// Pointers by worker id that are found without a lock. Internal to transports and the agent.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc::inner {

/// The owner keeps each object as long as the table has it. Thread safety: any thread.
template <class T> class TableById {
 public:
  /// Null: there is none, or the id is out of range.
  T* find(WorkerId id) const {
    if (!in_range(id)) return nullptr;
    const Page* const page = found_[index(id) / kPage].load();
    return page ? (*page)[index(id) % kPage].load() : nullptr;
  }
  /// Has no effect for an id out of range. Throws: bad_alloc.
  void set(WorkerId id, T* object) {
    if (!in_range(id)) return;
    MutexLock lock(mutex_);
    std::atomic<Page*>& page = found_[index(id) / kPage];
    if (page.load() == nullptr) {
      pages_.push_back(std::make_unique<Page>());
      page = pages_.back().get();
    }
    (*page.load())[index(id) % kPage] = object;
  }

 private:
  static constexpr size_t kPage = 256;
  using Page = std::array<std::atomic<T*>, kPage>;
  static bool in_range(WorkerId id) { return id.value >= 0 && id.value <= kMaxWorkerId; }
  static size_t index(WorkerId id) { return static_cast<size_t>(id.value); }

  std::array<std::atomic<Page*>, kMaxWorkerId / kPage + 1> found_{};
  Mutex mutex_;
  std::vector<std::unique_ptr<Page>> pages_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::inner
