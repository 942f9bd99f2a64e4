// Numbers of ids that must not arrive any more. Internal to rref.h.
#pragma once

#include <cstdint>
#include <set>

namespace weft::rpc::detail {

/// The refused numbers among those that one life draws: all up to a floor, and some above it. A life counts
/// its numbers up, so a late message below a raised floor is very old, and may be refused too. Thread safety:
/// as a plain value.
class RefusedNumbers {
 public:
  bool has(uint64_t number) const { return number <= floor_ || above_.count(number) != 0; }
  /// Remembers 16,384 numbers above the floor, which rises beyond that.
  void add(uint64_t number) {
    if (has(number)) return;
    above_.insert(number);
    if (above_.size() <= kMost) return;
    floor_ = *above_.begin();
    above_.erase(above_.begin());
  }

 private:
  static constexpr size_t kMost = 1 << 14;
  uint64_t floor_ = 0;
  std::set<uint64_t> above_;
};

}  // namespace weft::rpc::detail
