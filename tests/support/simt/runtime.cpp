// kernels/cuda/runtime.h on the host. Device memory is one reserved range, closed to everybody but kernels and copies; everything issued to a stream
// is complete on return, so streams and events only count. A fresh block holds poison and lies between guard zones.
#include <weft/kernels/cuda/runtime.h>

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <weft/kernels/error.h>
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {

namespace simt {
namespace {
constexpr size_t kRange = size_t{1} << 30, kZone = 512, kAlign = 512;
constexpr unsigned char kGuardByte = 0xA5;

struct Memory {
  std::recursive_mutex mutex;
  unsigned char* base = nullptr;
  size_t used = 0;                                    // high-water mark
  std::map<unsigned char*, size_t> live;              // block -> bytes asked for
  std::multimap<size_t, unsigned char*> free_spans;   // span (with zones) -> begin of its first zone
  size_t live_bytes = 0;
  int open = 0;

  Memory() {
    void* p = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Error("simt: no address range for device memory");
    base = static_cast<unsigned char*>(p);
  }
  static size_t span(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign + 2 * kZone; }
  void protect(int rights) const {
    if (used > 0) mprotect(base, (used + 4095) / 4096 * 4096, rights);
  }
};
Memory& memory() {
  static Memory* const m = new Memory;
  return *m;
}
}  // namespace

DeviceAccess::DeviceAccess() {
  Memory& m = memory();
  m.mutex.lock();
  if (m.open++ == 0) m.protect(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  if (--m.open == 0) m.protect(PROT_NONE);
  m.mutex.unlock();
}

void check_guards(const char* kernel) {
  const DeviceAccess access;
  for (const auto& [p, bytes] : memory().live) {
    const size_t tail = Memory::span(bytes) - kZone - bytes;
    for (size_t i = 0; i < kZone; ++i)
      if (p[-static_cast<ptrdiff_t>(i) - 1] != kGuardByte) throw Fault(str("kernel ", kernel, ": a write ", i + 1, " bytes before a block of ", bytes));
    for (size_t i = 0; i < tail; ++i)
      if (p[bytes + i] != kGuardByte) throw Fault(str("kernel ", kernel, ": a write ", i, " bytes behind a block of ", bytes));
  }
}

void repair_guards() {
  const DeviceAccess access;
  for (const auto& [p, bytes] : memory().live) {
    std::memset(p - kZone, kGuardByte, kZone);
    std::memset(p + bytes, kGuardByte, Memory::span(bytes) - kZone - bytes);
  }
}

int live_blocks() {
  const DeviceAccess access;
  return static_cast<int>(memory().live.size());
}

}  // namespace simt

namespace runtime {

namespace {
struct Mark {
  std::chrono::steady_clock::time_point at{};
  bool waited_for = false;
};
size_t capacity() { return simt::settings().device_bytes > 0 ? simt::settings().device_bytes : simt::kRange; }
thread_local int current_device = 0;
constexpr int kDevices = 2;
}  // namespace

int device_count() { return kDevices; }
Properties properties(int) { return {"emulated", 9, 0, 4, simt::kRange}; }
void set_device(int device) {
  if (device < 0 || device >= kDevices) throw DeviceError(str("cuda:", device, ": there are ", kDevices, " emulated devices"));
  current_device = device;
}
bool emulated() { return true; }

void* allocate(size_t bytes) {
  const simt::DeviceAccess access;
  simt::Memory& m = simt::memory();
  const size_t span = simt::Memory::span(bytes);
  unsigned char* begin = nullptr;
  if (m.live_bytes + bytes > capacity()) return nullptr;
  if (const auto found = m.free_spans.find(span); found != m.free_spans.end()) {
    begin = found->second;
    m.free_spans.erase(found);
  } else {
    if (m.used + span > simt::kRange) return nullptr;
    begin = m.base + m.used;
    m.used += span;
    m.protect(PROT_READ | PROT_WRITE);
  }
  std::memset(begin, simt::kGuardByte, span);
  std::memset(begin + simt::kZone, simt::settings().poison, bytes);
  m.live[begin + simt::kZone] = bytes;
  m.live_bytes += bytes;
  return begin + simt::kZone;
}
void release(void* p) {
  if (!p) return;
  const simt::DeviceAccess access;
  simt::Memory& m = simt::memory();
  const auto found = m.live.find(static_cast<unsigned char*>(p));
  if (found == m.live.end()) throw CudaError("cudaFree: not a block of device memory");
  simt::check_guards("release");
  m.free_spans.emplace(simt::Memory::span(found->second), found->first - simt::kZone);
  m.live_bytes -= found->second;
  m.live.erase(found);
}
void* allocate_pinned(size_t bytes) { return std::malloc(bytes > 0 ? bytes : 1); }
void release_pinned(void* p) { std::free(p); }
void copy(void* to, const void* from, size_t bytes, Stream) {
  const simt::DeviceAccess access;
  if (bytes > 0) std::memmove(to, from, bytes);
  simt::check_guards("copy");
}
void fill(void* to, int byte, size_t bytes, Stream) {
  const simt::DeviceAccess access;
  if (bytes > 0) std::memset(to, byte, bytes);
}
void memory_info(size_t* available, size_t* total) {
  const simt::DeviceAccess access;
  *total = capacity();
  *available = *total - simt::memory().live_bytes;
}

Stream new_stream(bool) { return new char; }
void delete_stream(Stream stream) { delete static_cast<char*>(stream); }
void synchronize(Stream) {}
void synchronize_device() {}
bool finished(Stream) { return !simt::settings().hold_events; }
Event new_event(bool) { return new Mark{}; }
void delete_event(Event event) { delete static_cast<Mark*>(event); }
void record(Event event, Stream) { *static_cast<Mark*>(event) = {std::chrono::steady_clock::now()}; }
void wait(Stream, Event) {}
void synchronize_event(Event event) { static_cast<Mark*>(event)->waited_for = true; }
bool finished_event(Event event) { return !simt::settings().hold_events || static_cast<Mark*>(event)->waited_for; }
double elapsed_ms(Event from, Event to) {
  return std::chrono::duration<double, std::milli>(static_cast<Mark*>(to)->at - static_cast<Mark*>(from)->at).count();
}

void begin_capture(Stream) { throw CudaError("begin_capture: the emulation runs what is issued at once and records nothing"); }
Graph end_capture(Stream) { throw CudaError("end_capture: the emulation records nothing"); }
bool capturing(Stream) { return false; }
void launch_graph(Graph, Stream) { throw CudaError("launch_graph: the emulation records nothing"); }
void delete_graph(Graph) {}

IpcHandle export_memory(void*) { throw CudaError("export_memory: emulated memory belongs to one process"); }
void* open_memory(const IpcHandle&) { throw CudaError("open_memory: emulated memory belongs to one process"); }
void close_memory(void*) {}

}  // namespace runtime

}  // namespace weft::cuda
