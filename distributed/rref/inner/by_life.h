// Items that end with the loss of one life of a worker, found by that life. Internal to rref.h.
#pragma once

#include <set>
#include <unordered_map>
#include <vector>

#include <weft/distributed/transport/ids.h>

namespace weft::rpc::detail {

/// True when `kept` means the life `one`. A worker whose life was not known when it was kept means any.
inline bool means(Life kept, Life one) {
  return kept.id == one.id && (kept.incarnation.value == 0 || kept.incarnation == one.incarnation);
}

/// A set of items for each life. Thread safety: as a plain value.
template <class Item> class ByLife {
 public:
  void add(Life life, const Item& item) { items_[life].insert(item); }
  void remove(Life life, const Item& item) {
    const auto found = items_.find(life);
    if (found == items_.end()) return;
    found->second.erase(item);
    if (found->second.empty()) items_.erase(found);
  }
  /// The items of a life, and those of its worker whose life was not known.
  std::vector<Item> of(Life life) const {
    std::vector<Item> all;
    add_to(all, life);
    if (life.incarnation.value != 0) add_to(all, Life(life.id));
    return all;
  }
  void clear() { items_.clear(); }

 private:
  void add_to(std::vector<Item>& all, Life life) const {
    const auto found = items_.find(life);
    if (found != items_.end()) all.insert(all.end(), found->second.begin(), found->second.end());
  }
  std::unordered_map<Life, std::set<Item>> items_;
};

}  // namespace weft::rpc::detail
