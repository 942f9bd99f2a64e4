// The storages in arrears. There are few, so a table outside of Storage has them, and a storage needs no
// field for it. A hidden address is null, so its use leads to the functions here.
#include <weft/tensor/inner/arrears.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {
namespace {

struct Owed {
  void* data = nullptr;
  std::shared_ptr<Arrears> arrears;
};
struct OwedTable {
  std::atomic<size_t> count{0};  // of `all`; readable without the lock
  std::mutex mutex;
  std::unordered_map<const Storage*, Owed> all;
};
OwedTable& owed_table() {
  static auto* const table = new OwedTable;  // storages of statics may outlive it otherwise
  return *table;
}

Owed owed_by(const Storage* s) {
  OwedTable& table = owed_table();
  if (table.count.load(std::memory_order_acquire) == 0) return {};
  const std::lock_guard lock(table.mutex);
  const auto found = table.all.find(s);
  return found == table.all.end() ? Owed() : found->second;
}

/// Takes the entry after it has called f with its address: a reader without an entry finds that address.
template <class F> Owed take_owed(const Storage* s, const F& f) {
  OwedTable& table = owed_table();
  const std::lock_guard lock(table.mutex);
  const auto found = table.all.find(s);
  if (found == table.all.end()) return {};
  f(found->second.data);
  Owed out = std::move(found->second);
  table.all.erase(found);
  table.count.store(table.all.size(), std::memory_order_release);
  return out;
}

}  // namespace

void* Storage::settled_data() const {
  if (const Owed owed = owed_by(this); owed.arrears) owed.arrears->settle();
  return data_.load(std::memory_order_acquire);
}

void Storage::owe(std::shared_ptr<Arrears> arrears) {
  OwedTable& table = owed_table();
  const std::lock_guard lock(table.mutex);
  void* const data = data_.exchange(nullptr, std::memory_order_acq_rel);
  Owed& owed = table.all[this];
  if (data) owed.data = data;
  owed.arrears = std::move(arrears);
  table.count.store(table.all.size(), std::memory_order_release);
}

void Storage::settled() {
  take_owed(this, [this](void* data) { data_.store(data, std::memory_order_release); });
}

void Storage::end_arrears() noexcept {
  if (data_.load(std::memory_order_relaxed) || owed_table().count.load(std::memory_order_acquire) == 0)
    return;
  const Owed owed = take_owed(this, [this](void* data) { data_.store(data, std::memory_order_relaxed); });
  if (owed.arrears) owed.arrears->forget(this);
}

namespace detail {

std::shared_ptr<Arrears> arrears_of(const Storage& s) { return owed_by(&s).arrears; }

void* unsettled_data(const Storage& s) {
  const Owed owed = owed_by(&s);
  return owed.data ? owed.data : s.data();
}

View rows_view(const Tensor& x, const Tensor& ids) {
  const Storage& s = *x.body().storage;
  const std::shared_ptr<Arrears> arrears = arrears_of(s);
  if (!arrears) return x.view_of();
  refuse_trace("uses a table whose rows an optimizer brings up to date later");
  if (!arrears->settle_rows(x, ids)) return x.view_of();
  char* const first = static_cast<char*>(unsettled_data(s)) + x.storage_offset() * size_of(x.dtype());
  return {first, x.dtype(), x.sizes(), x.strides()};
}

}  // namespace detail
}  // namespace weft
