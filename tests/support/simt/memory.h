// The emulated device memory: one range of addresses for kernels and the runtime's copies only, with each
// block between guard zones. A check after each kernel finds writes to a guard zone. With the address
// sanitizer, a read of a guard zone or a freed block ends the program. Without it such a read gives a NaN of
// every floating type, and large negative integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_SIMT_ASAN 1
#endif
#endif
#if defined(WEFT_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace weft::cuda::simt {

/// Opens device memory for its lifetime. Otherwise an access is a segmentation fault, as on a real device.
/// Scopes may nest.
struct DeviceAccess {
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
};
/// True if memory is still closed between accesses. A program with more than a few MiB leaves its memory
/// open, since closing costs time for each page.
bool closes_memory();

/// The bytes of a guard zone at even and odd addresses.
inline constexpr unsigned char kGuardBytes[2] = {0xF5, 0xFF};
inline unsigned char guard_byte(const unsigned char* p) {
  return kGuardBytes[reinterpret_cast<uintptr_t>(p) % 2];
}
/// Writes a guard zone and closes its bytes to all except first_unguarded.
inline void guard(unsigned char* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) p[i] = guard_byte(p + i);
#if defined(WEFT_SIMT_ASAN)
  __asan_poison_memory_region(p, bytes);
#endif
}
/// Opens bytes closed by guard or close_freed.
inline void unguard([[maybe_unused]] unsigned char* p, [[maybe_unused]] size_t bytes) {
#if defined(WEFT_SIMT_ASAN)
  __asan_unpoison_memory_region(p, bytes);
#endif
}
inline void close_freed([[maybe_unused]] unsigned char* p, [[maybe_unused]] size_t bytes) {
#if defined(WEFT_SIMT_ASAN)
  __asan_poison_memory_region(p, bytes);
#endif
}
/// The offset of the first changed byte of a guard zone; `bytes` if there is none.
size_t first_unguarded(const unsigned char* p, size_t bytes);

/// Throws: Fault that names the kernel if a guard zone was written.
void check_guards(const char* kernel);
/// Restores the guard zones after an intended fault.
void repair_guards();
bool is_device_memory(const void* p);
/// Number of allocated blocks.
int live_blocks();
/// Bytes of pinned host memory requested so far; copies between host and device use it.
int64_t pinned_bytes();

// ---- memory shared with other processes (ipc.cpp). All of it needs a DeviceAccess.

/// Alignment of every block.
inline constexpr size_t kBlockAlign = 512;
/// The size of the ledger after the memory in its file. It has one number that names the file, then one for
/// each possible begin of a block. The latter tells whether the block may be opened.
inline constexpr size_t ledger_bytes(size_t memory) { return sizeof(uint64_t) * (1 + memory / kBlockAlign); }
/// The file from which device memory is mapped. A forked process has a copy of the memory and no file (-1).
struct Backing {
  int file;
  unsigned char* base;
  size_t bytes;
};
Backing backing();
/// The size of the block that begins at p; none if no live block does.
std::optional<size_t> bytes_of_block(const void* p);
/// The place of a byte in its live block; none outside of all.
std::optional<size_t> offset_in_block(const void* p);
/// Invalidates the handles of a block that is freed. True: there were some.
bool withdraw(const void* block);
/// True for memory of another process that is open in this one.
bool is_opened_memory(const void* p);
/// Blocks of other processes that are open, and calls that opened one so far.
int opened_blocks();
int64_t opens();
void protect_opened(int rights);

}  // namespace weft::cuda::simt
