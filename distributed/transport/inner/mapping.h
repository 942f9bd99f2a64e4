// The memory of segments, with its owner. Both ends of shared memory use it: the sender (shared_memory.h) and
// the receiver (known_segments.h). Internal to the gRPC transport.
//
// A segment is a memfd. Its first page has the control word: not 0 while the receiver holds the payload,
// which begins at the second page.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <weft/distributed/transport/inner/file.h>

namespace weft::rpc::inner {

/// Bytes before the payload of a segment.
inline constexpr size_t kSegmentHead = 4096;

/// The memory of a segment. Thread safety: any thread; the payload belongs to one side at a time.
class Mapping {
 public:
  /// Null: there is no memory, and errno has the reason. `populate`: with all pages.
  static std::shared_ptr<Mapping> of(const File& file, size_t bytes, bool populate) {
    const int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0);
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
    return at == MAP_FAILED ? nullptr : std::make_shared<Mapping>(at, bytes);
  }
  Mapping(void* at, size_t bytes) : at_(static_cast<char*>(at)), bytes_(bytes) {}
  ~Mapping() { munmap(at_, bytes_); }
  Mapping(const Mapping&) = delete;

  char* payload() const { return at_ + kSegmentHead; }
  size_t room() const { return bytes_ - kSegmentHead; }
  size_t bytes() const { return bytes_; }
  /// Set by the sender before the payload is the receiver's, and cleared when it is given back.
  void set_word(uint32_t value) { word().store(value, std::memory_order_release); }
  bool is_given_back() const { return word().load(std::memory_order_acquire) == 0; }
  /// Gives the memory back to the system, although the other end still maps it.
  void discard() { madvise(at_, bytes_, MADV_REMOVE); }

 private:
  std::atomic_ref<uint32_t> word() const {
    static_assert(std::atomic_ref<uint32_t>::is_always_lock_free);
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at_));
  }
  char* const at_;
  const size_t bytes_;
};

}  // namespace weft::rpc::inner
