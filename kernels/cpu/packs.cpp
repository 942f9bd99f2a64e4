// The table of watched operands and their packs (packs.h). One mutex guards it, which a hit only shares.
// Memory is taken and freed outside of it, because an allocation that fails drops the packs. Beyond the
// limit, only packs that no product has used for a while are dropped. Otherwise weights that are used in turn
// would push each other out for ever.
#include <weft/kernels/cpu/packs.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/cpu/limits.h>
#include <weft/kernels/packs.h>

namespace weft::kernels::packs {

std::atomic<uint16_t> watched_of_class[kClasses];

Pack::Pack(size_t bytes) : data_(kernels::allocate(bytes)), bytes_(bytes) {}
Pack::~Pack() { kernels::deallocate(data_, bytes_); }

namespace {

using PackRef = std::shared_ptr<const Pack>;

constexpr uint64_t kIdle = 4096;   // searches after which an unused pack makes room for another
constexpr size_t kMostForms = 16;  // of one operand

struct Entry {
  Form form;
  uint32_t version = 0;
  PackRef pack;
  bool again = false;  ///< a second product used this version
  uint64_t last_use = 0;
};

struct Operand {
  const Version* version = nullptr;
  std::vector<Entry> entries;
};

int64_t default_limit() { return bytes_of_environment("WEFT_PACK_BYTES", usable_memory() / 8); }

class Table {
 public:
  void watch(const void* operand, const Version& version) {
    std::vector<PackRef> gone;
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = operands_.try_emplace(operand);
    if (fresh) ++watched_of_class[class_of_operand(operand)];
    else if (at->second.version != &version) clear(at->second, gone);
    at->second.version = &version;
  }

  void forget(const Version& version) noexcept {
    while (true) {  // one by one, because a list of them would need memory
      decltype(operands_)::node_type gone;
      const std::lock_guard lock(mutex_);
      const auto at = std::find_if(operands_.begin(), operands_.end(),
                                   [&](const auto& entry) { return entry.second.version == &version; });
      if (at == operands_.end()) return;
      --watched_of_class[class_of_operand(at->first)];
      for (const Entry& e : at->second.entries)
        if (e.pack) count(e.pack, -1);
      gone = operands_.extract(at);
    }
  }

  void pause(const Version& version) {
    const std::lock_guard lock(mutex_);
    paused_.push_back(&version);
  }
  void resume(const Version& version) noexcept {
    const std::lock_guard lock(mutex_);
    paused_.erase(std::find(paused_.begin(), paused_.end(), &version));
  }

  /// The kept pack; else, if this product shall make one, null and the version of it in `make`.
  PackRef find(const Form& form, size_t bytes, std::optional<uint32_t>& make) {
    if (PackRef kept = find_kept(form)) return kept;
    PackRef gone;
    const std::lock_guard lock(mutex_);
    Operand* const operand = operand_of(form.operand);
    if (!operand) return nullptr;
    const uint32_t now = operand->version->load(std::memory_order_acquire);
    Entry* entry = entry_of(*operand, form);
    const uint64_t use = searches_;
    if (!entry) {  // the first product
      if (operand->entries.size() < kMostForms) operand->entries.push_back({form, now, nullptr, false, use});
      return nullptr;
    }
    entry->last_use = use;
    if (entry->version == now) {
      entry->again = true;
      if (entry->pack) return ++reused_, entry->pack;  // kept since then
    } else {
      if (entry->pack) count(entry->pack, -1);
      gone = std::move(entry->pack);
      entry->version = now;
      if (!std::exchange(entry->again, false)) return nullptr;
    }
    if (has_room(static_cast<int64_t>(bytes))) make = now;
    return nullptr;
  }

  void keep(const Form& form, uint32_t version, PackRef pack) {
    std::vector<PackRef> gone;
    const std::lock_guard lock(mutex_);
    Operand* const operand = operand_of(form.operand);
    Entry* const entry = operand ? entry_of(*operand, form) : nullptr;
    if (!entry || entry->version != version || entry->pack) return;
    make_room(static_cast<int64_t>(pack->bytes()), gone);
    if (stats_.bytes + static_cast<int64_t>(pack->bytes()) > limit()) return;
    count(pack, 1);
    ++stats_.made;
    entry->pack = std::move(pack);
  }

  bool drop_all() noexcept {
    bool any = false;
    while (true) {  // as in forget
      PackRef gone;
      const std::lock_guard lock(mutex_);
      for (auto& [address, operand] : operands_)
        for (Entry& e : operand.entries)
          if (!gone && e.pack) count(e.pack, -1), gone = std::move(e.pack);
      if (!gone) return any;
      any = true;
    }
  }

  int64_t limit() {
    if (limit_ < 0) limit_ = default_limit();
    return limit_;
  }
  int64_t limit_of_all() {
    const std::lock_guard lock(mutex_);
    return limit();
  }
  void set_limit(int64_t bytes) {
    std::vector<PackRef> gone;
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    while (stats_.bytes > limit_) drop_oldest(0, gone);
  }

  PackStats stats() {
    const std::lock_guard lock(mutex_);
    PackStats out = stats_;
    out.reused = reused_;
    return out;
  }

 private:
  /// The kept pack, by any number of threads at once.
  PackRef find_kept(const Form& form) {
    const std::shared_lock lock(mutex_);
    Operand* const operand = operand_of(form.operand);
    Entry* const entry = operand ? entry_of(*operand, form) : nullptr;
    const uint64_t use = searches_.fetch_add(1, std::memory_order_relaxed);
    if (!entry || !entry->pack || entry->version != operand->version->load(std::memory_order_acquire))
      return nullptr;
    std::atomic_ref(entry->last_use).store(use, std::memory_order_relaxed);
    std::atomic_ref(entry->again).store(true, std::memory_order_relaxed);
    reused_.fetch_add(1, std::memory_order_relaxed);
    return entry->pack;
  }
  /// Null if the operand is not watched, or its block is paused.
  Operand* operand_of(const void* address) {
    const auto at = operands_.find(address);
    if (at == operands_.end()) return nullptr;
    if (std::find(paused_.begin(), paused_.end(), at->second.version) != paused_.end()) return nullptr;
    return &at->second;
  }
  static Entry* entry_of(Operand& operand, const Form& form) {
    for (Entry& e : operand.entries)
      if (e.form == form) return &e;
    return nullptr;
  }
  void count(const PackRef& pack, int by) {
    stats_.bytes += by * static_cast<int64_t>(pack->bytes());
    stats_.packs += by;
  }
  void clear(Operand& operand, std::vector<PackRef>& gone) {
    for (Entry& e : operand.entries)
      if (e.pack) count(e.pack, -1), gone.push_back(std::move(e.pack));
    operand.entries.clear();
  }
  bool is_idle(const Entry& e) const { return e.pack && searches_ - e.last_use > kIdle; }
  /// Whether the pack fits, with room that idle packs would make.
  bool has_room(int64_t bytes) {
    int64_t after = stats_.bytes + bytes;
    if (after <= limit()) return true;
    if (searches_ < next_look_) return false;
    next_look_ = searches_ + kIdle / 16;
    for (const auto& [address, operand] : operands_)
      for (const Entry& e : operand.entries)
        if (is_idle(e)) after -= static_cast<int64_t>(e.pack->bytes());
    return after <= limit();
  }
  void make_room(int64_t bytes, std::vector<PackRef>& gone) {
    while (stats_.bytes + bytes > limit())
      if (!drop_oldest(kIdle, gone)) return;
  }
  /// Drops the pack whose last use is longest ago, if that is more than `idle` searches.
  bool drop_oldest(uint64_t idle, std::vector<PackRef>& gone) {
    Entry* oldest = nullptr;
    for (auto& [address, operand] : operands_)
      for (Entry& e : operand.entries)
        if (e.pack && (!oldest || e.last_use < oldest->last_use)) oldest = &e;
    if (!oldest || searches_ - oldest->last_use < idle) return false;
    count(oldest->pack, -1);
    gone.push_back(std::move(oldest->pack));
    return true;
  }

  std::shared_mutex mutex_;
  std::unordered_map<const void*, Operand> operands_;
  std::vector<const Version*> paused_;
  std::atomic<uint64_t> searches_{0};
  std::atomic<int64_t> reused_{0};
  uint64_t next_look_ = 0;
  int64_t limit_ = -1;
  PackStats stats_;
};

Table& table() {
  static auto* const object = new Table;  // weights in static storage are forgotten after main
  return *object;
}

}  // namespace

void watch(const void* operand, const Version& version) { table().watch(operand, version); }
void forget(const Version& version) noexcept { table().forget(version); }
void pause(const Version& version) { table().pause(version); }
void resume(const Version& version) noexcept { table().resume(version); }
bool drop_all() noexcept { return table().drop_all(); }

Lease::Lease(const Form& form, size_t bytes) : form_(form) {
  std::optional<uint32_t> make;
  pack_ = table().find(form, bytes, make);
  filled_ = pack_ != nullptr;
  if (!make) return;
  pack_ = std::make_shared<Pack>(bytes);
  version_ = *make;
}

void Lease::keep() {
  if (pack_ && !filled_) table().keep(form_, version_, pack_);
}

}  // namespace weft::kernels::packs

namespace weft {

PackStats pack_stats() { return kernels::packs::table().stats(); }
int64_t pack_limit() { return kernels::packs::table().limit_of_all(); }
void set_pack_limit(int64_t bytes) {
  if (bytes < 0) throw ValueError(str("set_pack_limit: takes 0 or more bytes, got ", bytes));
  kernels::packs::table().set_limit(bytes);
}
void drop_packs() { kernels::packs::drop_all(); }

}  // namespace weft
