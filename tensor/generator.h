// Counter-based random numbers (Philox4x32-10). A generator is a seed and a counter, so it gives the same
// numbers on every device and for any thread count.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <weft/kernels/backend.h>

namespace weft {

class DrawScope;
/// The innermost scope of the calling thread, or null. The distributed layer saves and restores it with a
/// fiber.
WEFT_API DrawScope*& draw_scope();

/// A stream of random numbers.
/// Thread safety: take() is atomic; two threads that share a generator get disjoint blocks in arrival order.
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

  /// Starts the stream of another seed, from offset 0.
  void manual_seed(uint64_t seed) {
    seed_ = seed;
    offset_ = 0;
    epoch_ = next_epoch();
  }
  uint64_t seed() const { return seed_; }
  uint64_t offset() const { return offset_.load(); }
  /// Continues at another counter.
  void set_offset(uint64_t offset) {
    offset_ = offset;
    epoch_ = next_epoch();
  }
  /// Unique per generator and changed by every reseed, so that random state kept elsewhere (cuDNN's dropout)
  /// is seeded again. Inside a DrawScope it is the scope's number.
  uint64_t epoch() const;
  /// Changes epoch() alone.
  void renew() { epoch_ = next_epoch(); }
  /// An independent stream from offset 0. Its seed mixes this seed and `key` (SplitMix64 of each) and does
  /// not depend on the offset or the order of forks. So a layer keyed by its name draws the same numbers on
  /// any device or process.
  Generator fork(uint64_t key) const;

  /// Reserves counter blocks for `count` elements of up to 64 bits and returns the key of the first.
  PhiloxKey take(int64_t count);

 private:
  friend class DrawScope;
  PhiloxKey next(int64_t count) {
    return {seed_, offset_.fetch_add(static_cast<uint64_t>((count + 1) / 2), std::memory_order_relaxed)};
  }
  static uint64_t next_epoch();
  std::weak_ptr<const void> life();
  uint64_t seed_;
  std::atomic<uint64_t> epoch_ = next_epoch();
  std::atomic<uint64_t> offset_{0};
  std::shared_ptr<const void> life_;  // of this object alone; made when a source is noted
};

/// The draws of a piece of work, in order, from all generators.
using Draws = std::vector<PhiloxKey>;
/// The generator of a draw, the number of elements that it was asked for, and whether it still exists.
struct DrawSource {
  Generator* from = nullptr;
  int64_t count = 0;
  std::weak_ptr<const void> life;  ///< expired: the generator was destroyed; its address may be reused
  bool operator==(const DrawSource& o) const {
    return count == o.count && !life.owner_before(o.life) && !o.life.owner_before(life);
  }
};

/// For its lifetime, records the draws of the calling thread, or repeats recorded draws. Repeating advances
/// no generator and does not depend on draws of other threads. Scopes nest.
class WEFT_API DrawScope {
 public:
  enum class Mode : uint8_t { kNote, kRepeat };
  /// `draws` must outlive the scope. In mode kNote, the source of each draw is appended to `sources`, if
  /// given.
  DrawScope(Draws& draws, Mode mode, std::vector<DrawSource>* sources = nullptr);
  ~DrawScope() { draw_scope() = outer_; }
  DrawScope(const DrawScope&) = delete;
  /// In mode kRepeat: whether as many draws were made as were recorded.
  bool complete() const { return used_ == draws_.size(); }

 private:
  friend class Generator;
  PhiloxKey draw(Generator& from, int64_t count);
  Draws& draws_;
  std::vector<DrawSource>* sources_;
  Mode mode_;
  size_t used_ = 0;
  uint64_t epoch_;
  DrawScope* outer_;
};

/// The process's generator, used wherever none is given.
WEFT_API Generator& default_generator();
/// Seeds the process's generator.
WEFT_API void manual_seed(uint64_t seed);

}  // namespace weft
