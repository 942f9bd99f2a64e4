// Packs of weights that outlive a product. The tensor floor states which operands are weights (watch), and
// has the number of writes to their memory. A pack belongs to one operand, form and number of writes. The
// second product with the same three makes it; later ones use it. So a training step that uses a weight once
// keeps nothing. After a write, the first product makes the pack if two used the last one. Thread safety: any
// thread. A product holds the packs it uses, so dropping one is safe at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <weft/kernels/error.h>

namespace weft::kernels::packs {

/// The number of writes to a block of memory, which identifies the block too.
using Version = std::atomic<uint32_t>;

inline constexpr int64_t kLeastBytes = 1 << 13;  // packs below this cost less than the search for them

/// A counter per class of addresses: 0 if no operand of the class is watched.
inline constexpr size_t kClasses = 1024;
extern WEFT_API std::atomic<uint16_t> watched_of_class[kClasses];
inline size_t class_of_operand(const void* operand) {
  const auto at = reinterpret_cast<uintptr_t>(operand);
  return (at >> 6 ^ at >> 16) % kClasses;
}
/// False if products with this operand keep no packs.
inline bool may_be_watched(const void* operand) {
  return watched_of_class[class_of_operand(operand)].load(std::memory_order_relaxed) != 0;
}

/// From now on, products with this operand keep packs. Idempotent.
WEFT_API void watch(const void* operand, const Version& version);
/// Ends that for all operands of a block, and drops their packs. Each block is forgotten before its end.
WEFT_API void forget(const Version& version) noexcept;
/// Until resume(), products with the block's operands neither use nor keep packs: it is written to, and its
/// version counts the writes later.
WEFT_API void pause(const Version& version);
WEFT_API void resume(const Version& version) noexcept;

/// A pack as a product needs it: of b [k, n], element (i, j) at operand[i * row + j * col]. The columns are
/// divided into `parts` of equal size, each packed by itself.
struct Form {
  const void* operand = nullptr;
  int64_t k = 0, n = 0, row = 0, col = 0;
  int parts = 1;
  int element = 0;  ///< bytes
  int lanes = 0;    ///< of a vector
  bool operator==(const Form&) const = default;
};

/// Memory of a pack.
class Pack {
 public:
  explicit Pack(size_t bytes);
  ~Pack();
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

/// The part of a product that has to do with kept packs.
class WEFT_API Lease {
 public:
  Lease() = default;
  /// Looks for a pack. Throws: OutOfMemoryError.
  Lease(const Form& form, size_t bytes);
  /// Where the pack is or goes; null if none is kept.
  void* data() const { return pack_ ? pack_->data() : nullptr; }
  bool is_filled() const { return filled_; }
  /// After the product has filled the pack.
  void keep();

 private:
  std::shared_ptr<const Pack> pack_;
  bool filled_ = false;
  uint32_t version_ = 0;
  Form form_;
};

/// Drops all packs. Returns whether there was one.
bool drop_all() noexcept;

}  // namespace weft::kernels::packs
