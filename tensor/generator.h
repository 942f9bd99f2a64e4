// Counter-based random numbers (Philox4x32-10): a generator is a seed and a counter, so the same draws come out on every device
// and for any thread count.
#pragma once

#include <atomic>
#include <cstdint>

#include <weft/kernels/backend.h>

namespace weft {

/// A stream of draws. Thread safety: take() is atomic; two threads that share a generator get disjoint blocks in arrival order.
class WEFT_API Generator {
 public:
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  Generator(const Generator& o) : seed_(o.seed_), offset_(o.offset_.load()) {}
  Generator& operator=(const Generator& o) {
    seed_ = o.seed_;
    offset_ = o.offset_.load();
    epoch_ = next_epoch();
    return *this;
  }

  void manual_seed(uint64_t seed) {
    seed_ = seed;
    offset_ = 0;
    epoch_ = next_epoch();
  }
  uint64_t seed() const { return seed_; }
  uint64_t offset() const { return offset_.load(); }
  void set_offset(uint64_t offset) {
    offset_ = offset;
    epoch_ = next_epoch();
  }
  /// Another number in each generator, and whenever one is set anew: random numbers that are kept elsewhere and seeded from here start again then.
  uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  /// Makes them start again without a change here.
  void renew() { epoch_ = next_epoch(); }
  /// A stream of its own from offset 0: its seed mixes this seed and `key` (SplitMix64 of each), and neither the offset nor the order of
  /// forks counts, so a layer keyed by its name draws the same numbers wherever it lives.
  Generator fork(uint64_t key) const;

  /// Reserves enough counter blocks for `count` elements of up to 64 bits and returns where they start.
  PhiloxKey take(int64_t count) {
    return {seed_, offset_.fetch_add(static_cast<uint64_t>((count + 1) / 2), std::memory_order_relaxed)};
  }

 private:
  static uint64_t next_epoch();
  uint64_t seed_;
  std::atomic<uint64_t> epoch_ = next_epoch();
  std::atomic<uint64_t> offset_{0};
};

/// The generator that functions use when none is given. One per process.
WEFT_API Generator& default_generator();
WEFT_API void manual_seed(uint64_t seed);

}  // namespace weft
