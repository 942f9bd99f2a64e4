// The tracers of threads, and the storages that recorded programs watch. A program reads addresses that it
// does not own, so it must be notified when each storage ends. An entry here and a mark in the storage cost
// other storages nothing.
#include <weft/tensor/inner/tracer.h>

#include <mutex>
#include <unordered_map>

#include <weft/kernels/cpu/packs.h>

namespace weft {

constinit std::atomic<int> detail::tracing_threads{0};
constinit thread_local Tracer* detail::t_tracer = nullptr;

namespace {

struct Watched {
  std::mutex mutex;
  std::unordered_multimap<const Storage*, std::shared_ptr<detail::StorageWatch>> all;
};
Watched& watched() {
  static auto* const table = new Watched;  // storages of statics may outlive it otherwise
  return *table;
}

}  // namespace

detail::TracerScope::TracerScope(Tracer& tracer) {
  t_tracer = &tracer;
  tracing_threads.fetch_add(1, std::memory_order_relaxed);
}
detail::TracerScope::~TracerScope() {
  tracing_threads.fetch_sub(1, std::memory_order_relaxed);
  t_tracer = nullptr;
}

void* Storage::watched_data() const {
  Tracer* const t = detail::tracer();
  void* p = data_.load(std::memory_order_acquire);
  if (!p) {
    if (t && bytes() != 0) t->refuse("uses a table whose rows an optimizer brings up to date later");
    p = settled_data();
  }
  if (t) t->used(*this, p);
  return p;
}

void Storage::tell_made() const {
  if (Tracer* const t = detail::tracer()) t->made(*this, data_.load(std::memory_order_relaxed));
}

void Storage::tell_end() const noexcept {
  if (has(kMadeInTrace))
    if (Tracer* const t = detail::tracer()) t->dropped(*this, data_.load(std::memory_order_relaxed));
  if (has(kCaptured)) end_watches(true);
  if (has(kWatched)) kernels::packs::forget(version_);
}

void Storage::end_watches(bool destroyed) const noexcept {
  Watched& table = watched();
  const std::lock_guard lock(table.mutex);
  const auto [first, last] = table.all.equal_range(this);
  for (auto i = first; i != last; ++i) {
    const std::lock_guard own(i->second->mutex);
    i->second->gone = true;
    i->second->destroyed = i->second->destroyed || destroyed;
  }
  table.all.erase(first, last);
}

void detail::refuse_trace_outside(const Storage& s, const char* why) {
  Tracer* const t = tracer();
  if (t && !t->owns(s, s.data())) t->refuse(why);
}

void detail::watch_storage(const Storage& s, std::shared_ptr<StorageWatch> watch) {
  Watched& table = watched();
  const std::lock_guard lock(table.mutex);
  table.all.emplace(&s, std::move(watch));
  s.allow_weak();
  s.mark(Storage::kCaptured);
}

void detail::forget_storages(const std::shared_ptr<StorageWatch>& watch) {
  Watched& table = watched();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.all, [&](const auto& entry) { return entry.second == watch; });
}

}  // namespace weft
