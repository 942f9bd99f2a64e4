// The emulated device memory: one range of addresses that only kernels and the runtime's copies may touch, each block between guard zones. A write to
// one is found after the kernel. A read of one ends the program where the address sanitizer is on, as do reads of freed blocks; otherwise it
// gives a NaN of every floating type, and large negative integers.
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

/// While one lives, device memory can be read and written; otherwise touching it is a segmentation fault, as on the machine. Nests.
struct DeviceAccess {
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
};
/// Whether that still holds: a program that has used more than a few MiB leaves its memory open, since closing costs time by the page.
bool closes_memory();

/// What a guard zone holds at even and odd addresses.
inline constexpr unsigned char kGuardBytes[2] = {0xF5, 0xFF};
inline unsigned char guard_byte(const unsigned char* p) {
  return kGuardBytes[reinterpret_cast<uintptr_t>(p) % 2];
}
/// Writes it, and closes the bytes to all but first_unguarded.
inline void guard(unsigned char* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) p[i] = guard_byte(p + i);
#if defined(WEFT_SIMT_ASAN)
  __asan_poison_memory_region(p, bytes);
#endif
}
/// Opens bytes that were closed by guard or close_freed.
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
/// The first of the bytes that is not a guard's any more, or `bytes`.
size_t first_unguarded(const unsigned char* p, size_t bytes);

/// Throws: Fault that names the kernel when a guard zone was written to.
void check_guards(const char* kernel);
/// Makes guard zones whole again after a planted fault.
void repair_guards();
bool is_device_memory(const void* p);
/// Blocks that are allocated now.
int live_blocks();
/// Pinned host memory that was asked for so far: what copies between host and device go through.
int64_t pinned_bytes();

// ---- what ipc.cpp shares with other processes. All of it under a DeviceAccess.

/// Every block begins at a multiple of this.
inline constexpr size_t kBlockAlign = 512;
/// Behind the memory in its file: which blocks may be opened, a number for each place where one may begin, after one that names the file.
inline constexpr size_t ledger_bytes(size_t memory) { return sizeof(uint64_t) * (1 + memory / kBlockAlign); }
/// The file that device memory is mapped from; a process that was forked has a copy of the memory and no file (-1).
struct Backing {
  int file;
  unsigned char* base;
  size_t bytes;
};
Backing backing();
/// Bytes of the block that begins at p; none when it is no live block.
std::optional<size_t> bytes_of_block(const void* p);
/// The block goes back to the device: handles of it are void from here on. Whether there were any.
bool withdraw(const void* block);
/// Memory of other processes that is open here.
bool is_opened_memory(const void* p);
void protect_opened(int rights);

}  // namespace weft::cuda::simt
