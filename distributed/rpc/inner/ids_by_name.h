// The ids of members by their names. Each call by name looks there, so that reading takes no lock. A growing
// table leaves its smaller ones as they are, for readers: together they have at most the size of the newest.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc {

/// Thread safety: any thread.
class IdsByName {
 public:
  IdsByName() {
    MutexLock lock(mutex_);
    grow();
  }

  std::optional<WorkerId> find(std::string_view name) const {
    const Entry* const entry = place(*newest_.load(std::memory_order_acquire), name).load();
    return entry ? std::optional(entry->id) : std::nullopt;
  }
  /// Throws: bad_alloc.
  void set(const std::string& name, WorkerId id) {
    MutexLock lock(mutex_);
    if (2 * (entries_.size() + 1) > newest_.load()->size()) grow();
    entries_.push_back(std::make_unique<const Entry>(Entry{name, id}));
    place(*newest_.load(), name) = entries_.back().get();
  }
  /// Calls f(name, id) for each name.
  template <class F> void each(const F& f) const {
    for (const auto& slot : *newest_.load(std::memory_order_acquire))
      if (const Entry* const entry = slot.load()) f(entry->name, entry->id);
  }

 private:
  struct Entry {
    std::string name;
    WorkerId id;
  };
  using Slots = std::vector<std::atomic<const Entry*>>;  ///< a power of two of them

  /// The slot of a name, or the free one for it: there always is one.
  static std::atomic<const Entry*>& place(Slots& slots, std::string_view name) {
    size_t i = std::hash<std::string_view>()(name);
    for (;; ++i) {
      std::atomic<const Entry*>& slot = slots[i & (slots.size() - 1)];
      const Entry* const entry = slot.load();
      if (entry == nullptr || entry->name == name) return slot;
    }
  }
  void grow() WEFT_REQUIRES(mutex_) {
    auto larger = std::make_unique<Slots>(tables_.empty() ? 16 : 2 * tables_.back()->size());
    if (!tables_.empty())
      for (const auto& slot : *tables_.back())
        if (const Entry* const entry = slot.load()) place(*larger, entry->name) = entry;
    tables_.push_back(std::move(larger));
    newest_ = tables_.back().get();
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<const Entry>> entries_ WEFT_GUARDED_BY(mutex_);  ///< with the replaced ones
  std::vector<std::unique_ptr<Slots>> tables_ WEFT_GUARDED_BY(mutex_);
  std::atomic<Slots*> newest_{nullptr};
};

}  // namespace weft::rpc
