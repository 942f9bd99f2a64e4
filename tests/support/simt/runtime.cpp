// kernels/cuda/host/runtime.h on the host. Device memory is one reserved range, open only to kernels and
// copies. Work issued to a stream is complete on return, unless a test defers it (streams.h). A new block
// contains poison and is between guard zones. The range is mapped from an unnamed file, which other processes
// can open (ipc.cpp). A forked process continues with a copy.
#include <weft/kernels/cuda/host/runtime.h>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <weft/kernels/error.h>
#include "support/simt/graph.h"
#include "support/simt/memory.h"
#include "support/simt/streams.h"
#include "support/simt/thread.h"

namespace weft::cuda {

namespace simt {
namespace {
constexpr size_t kRange = size_t{1} << 30, kZone = 512, kAlign = kBlockAlign;
void copy_for_fork();

struct Memory {
  std::recursive_mutex mutex;
  int file = -1;
  unsigned char* base = nullptr;
  size_t used = 0;                         // the end of the last block's span
  size_t opened = 0;                       // bytes that may be accessed now, whole pages
  std::map<unsigned char*, size_t> live;   // block -> requested bytes
  std::map<unsigned char*, size_t> spans;  // free: begin of the first guard zone -> size with guard zones
  size_t live_bytes = 0;
  int64_t pinned_bytes = 0;
  int scopes = 0;  // of DeviceAccess

  Memory() : file(memfd_create("weft device memory", MFD_CLOEXEC)) {
    if (file < 0 || ftruncate(file, static_cast<off_t>(kRange + ledger_bytes(kRange))) != 0)
      throw Error("simt: no file for device memory");
    void* p = mmap(nullptr, kRange, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) throw Error("simt: no address range for device memory");
    base = static_cast<unsigned char*>(p);
    pthread_atfork(nullptr, nullptr, copy_for_fork);
  }
  static size_t span(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign + 2 * kZone; }
  /// The free span of the lowest address that is large enough, else the next bytes: the range stays short.
  /// Null: there is no room.
  unsigned char* take(size_t span) {
    for (auto it = spans.begin(); it != spans.end(); ++it) {
      const auto [begin, bytes] = *it;
      if (bytes < span) continue;
      spans.erase(it);
      if (bytes > span) spans.emplace(begin + span, bytes - span);
      return begin;
    }
    if (span > kRange - used) return nullptr;
    used += span;
    open();
    return base + used - span;
  }
  void give_back(unsigned char* begin, size_t span) {
    auto after = spans.lower_bound(begin);
    if (after != spans.end() && begin + span == after->first)
      span += after->second, after = spans.erase(after);
    if (after != spans.begin() && std::prev(after)->first + std::prev(after)->second == begin) {
      begin = std::prev(after)->first, span += std::prev(after)->second;
      spans.erase(begin);
    }
    if (begin + span == base + used) used -= span;
    else spans.emplace(begin, span);
  }
  /// Closing and opening costs time for each page. A program with more memory than this leaves it open.
  static constexpr size_t kClosable = 4 << 20;
  bool closable() const { return used <= kClosable; }
  void open() {
    if (opened >= used) return;
    const size_t end = (used + 4095) / 4096 * 4096;
    mprotect(base + opened, end - opened, PROT_READ | PROT_WRITE);
    opened = end;
  }
  void close() {
    if (opened == 0 || !closable()) return;
    mprotect(base, opened, PROT_NONE);
    opened = 0;
  }
};
Memory& memory() {
  static Memory* const m = new Memory;
  return *m;
}

/// In the child of a fork (such as a death test): makes its later writes private. It uses the bare system
/// call, which keeps the address sanitizer's state of the range.
void copy_for_fork() {
  Memory& m = memory();
  syscall(SYS_mmap, m.base, kRange, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, m.file, 0);
  if (m.opened > 0) mprotect(m.base, m.opened, PROT_READ | PROT_WRITE);
  ::close(std::exchange(m.file, -1));
}
std::atomic<int64_t> queries = 0;  // of events
}  // namespace

int64_t event_queries() { return queries; }

Backing backing() { return {memory().file, memory().base, kRange}; }
std::optional<size_t> bytes_of_block(const void* p) {
  const auto found = memory().live.find(static_cast<unsigned char*>(const_cast<void*>(p)));
  return found == memory().live.end() ? std::nullopt : std::optional(found->second);
}
std::optional<size_t> offset_in_block(const void* p) {
  auto* const at = static_cast<unsigned char*>(const_cast<void*>(p));
  const auto after = memory().live.upper_bound(at);
  if (after == memory().live.begin()) return {};
  const auto& [begin, bytes] = *std::prev(after);
  return at < begin + bytes ? std::optional(static_cast<size_t>(at - begin)) : std::nullopt;
}

bool closes_memory() {
  const std::lock_guard lock(memory().mutex);
  return memory().closable();
}

DeviceAccess::DeviceAccess() {
  Memory& m = memory();
  m.mutex.lock();
  if (m.scopes++ > 0) return;
  m.open();
  protect_opened(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  if (--m.scopes == 0) {
    m.close();
    protect_opened(PROT_NONE);
  }
  m.mutex.unlock();
}

__attribute__((no_sanitize("address"))) size_t first_unguarded(const unsigned char* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    if (p[i] != kGuardBytes[reinterpret_cast<uintptr_t>(p + i) % 2]) return i;
  return bytes;
}

void check_guards(const char* kernel) {
  const DeviceAccess access;
  for (const auto& [p, bytes] : memory().live) {
    const size_t tail = Memory::span(bytes) - kZone - bytes;
    if (const size_t at = first_unguarded(p - kZone, kZone); at < kZone)
      throw Fault(str("kernel ", kernel, ": a write ", kZone - at, " bytes before a block of ", bytes));
    if (const size_t at = first_unguarded(p + bytes, tail); at < tail)
      throw Fault(str("kernel ", kernel, ": a write ", at, " bytes behind a block of ", bytes));
  }
}

void repair_guards() {
  const DeviceAccess access;
  for (const auto& [p, bytes] : memory().live) {
    unguard(p - kZone, Memory::span(bytes));
    guard(p - kZone, kZone);
    guard(p + bytes, Memory::span(bytes) - kZone - bytes);
  }
}

int live_blocks() {
  const DeviceAccess access;
  return static_cast<int>(memory().live.size());
}

int64_t pinned_bytes() {
  const DeviceAccess access;
  return memory().pinned_bytes;
}

namespace {
thread_local int thread_device = 0;
thread_local std::vector<std::string> ranges;
}  // namespace
std::vector<std::string> take_ranges() { return std::exchange(ranges, {}); }
int current_device() { return thread_device; }
bool is_device_memory(const void* p) {
  const auto* const at = static_cast<const unsigned char*>(p);
  return at >= memory().base && at < memory().base + kRange;
}

}  // namespace simt

namespace runtime {

namespace {
struct Mark {
  std::chrono::steady_clock::time_point at{};
  bool recorded = false;
  bool waited_for = false;
  std::shared_ptr<simt::Recording> recording = nullptr;
  simt::Past past{};  // within the recording
  simt::StreamPoint point{};
};
size_t capacity() { return simt::settings().device_bytes > 0 ? simt::settings().device_bytes : simt::kRange; }
constexpr int kDevices = 2;

std::map<const char*, size_t>& pinned() {
  static auto* const blocks = new std::map<const char*, size_t>;
  return *blocks;
}
/// True for device or pinned memory: a copy may be incomplete on return.
bool asynchronous(const void* p) {
  const simt::DeviceAccess lock;
  const auto* const at = static_cast<const char*>(p);
  if (simt::is_device_memory(p) || simt::is_opened_memory(p)) return true;
  auto found = pinned().upper_bound(at);
  return found != pinned().begin() && at < std::prev(found)->first + std::prev(found)->second;
}
}  // namespace

int device_count() { return kDevices; }
Properties properties(int) {
  const simt::Settings& s = simt::settings();
  return {"emulated", s.major, 0, s.processors, simt::kRange, s.shared_memory};
}
void set_device(int device) {
  if (device < 0 || device >= kDevices)
    throw DeviceError(str("cuda:", device, ": there are ", kDevices, " emulated devices"));
  simt::thread_device = device;
}
int current_device() { return simt::thread_device; }
bool emulated() { return true; }

void push_range(const char* name) noexcept { simt::ranges.push_back(name); }
void pop_range() noexcept { simt::ranges.push_back("end"); }

void* allocate(size_t bytes) {
  const simt::DeviceAccess access;
  simt::Memory& m = simt::memory();
  const size_t span = simt::Memory::span(bytes);
  if (m.live_bytes + bytes > capacity()) return nullptr;
  unsigned char* const begin = m.take(span);
  if (begin == nullptr) return nullptr;
  simt::unguard(begin, span);
  simt::guard(begin, simt::kZone);
  std::memset(begin + simt::kZone, simt::settings().poison, bytes);
  simt::guard(begin + simt::kZone + bytes, span - simt::kZone - bytes);
  m.live[begin + simt::kZone] = bytes;
  m.live_bytes += bytes;
  return begin + simt::kZone;
}
static void release_now(void* p) {
  const simt::DeviceAccess access;
  simt::Memory& m = simt::memory();
  const auto found = m.live.find(static_cast<unsigned char*>(p));
  if (found == m.live.end()) throw CudaError("cudaFree: not a block of device memory");
  simt::check_guards("release");
  const size_t span = simt::Memory::span(found->second);
  // for processes that still have the block open
  if (simt::withdraw(p)) std::memset(p, simt::settings().poison, found->second);
  simt::close_freed(found->first - simt::kZone, span);
  m.give_back(found->first - simt::kZone, span);
  m.live_bytes -= found->second;
  m.live.erase(found);
}
/// A real device waits for all work before it frees a block. The emulation frees it when all work is done.
void release(void* p) {
  if (!p) return;
  simt::check_may_wait("cudaFree");
  if (simt::deferring()) simt::when_idle([p] { release_now(p); });
  else release_now(p);
}
void* allocate_pinned(size_t bytes) {
  const simt::DeviceAccess lock;
  if (simt::settings().no_pinned) return nullptr;
  simt::memory().pinned_bytes += static_cast<int64_t>(bytes);
  void* const p = std::malloc(bytes > 0 ? bytes : 1);
  pinned()[static_cast<const char*>(p)] = bytes;
  return p;
}
void release_pinned(void* p) {
  const simt::DeviceAccess lock;
  pinned().erase(static_cast<const char*>(p));
  std::free(p);
}
static void copy_now(void* to, const void* from, size_t bytes) {
  const simt::DeviceAccess access;
  if (bytes > 0) std::memmove(to, from, bytes);
  simt::check_guards("copy");
}
void copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (const auto recording = simt::recording_of(stream))
    return simt::record(*recording, stream, [=] { copy_now(to, from, bytes); });
  if (!simt::deferring()) return copy_now(to, from, bytes);
  if (!asynchronous(to)) {  // pageable host memory: complete on return
    synchronize(stream);
    return copy_now(to, from, bytes);
  }
  if (asynchronous(from))
    return simt::issue(simt::current_device(), stream, [=] { copy_now(to, from, bytes); });
  const auto* const begin = static_cast<const char*>(from);
  simt::issue(simt::current_device(), stream, [to, kept = std::vector<char>(begin, begin + bytes)] {
    copy_now(to, kept.data(), kept.size());
  });
}
static void fill_now(void* to, int byte, size_t bytes) {
  const simt::DeviceAccess access;
  if (bytes > 0) std::memset(to, byte, bytes);
}
void fill(void* to, int byte, size_t bytes, Stream stream) {
  if (const auto recording = simt::recording_of(stream))
    return simt::record(*recording, stream, [=] { fill_now(to, byte, bytes); });
  simt::issue(simt::current_device(), stream, [=] { fill_now(to, byte, bytes); });
}
void enable_peer_access(int, int) {}
void memory_info(size_t* available, size_t* total) {
  const simt::DeviceAccess access;
  *total = capacity();
  *available = *total - simt::memory().live_bytes;
}

Stream new_stream(bool) { return new char; }
void delete_stream(Stream stream) { delete static_cast<char*>(stream); }
void synchronize(Stream stream) {
  simt::check_may_wait("cudaStreamSynchronize");
  simt::check_not_recorded(stream, "cudaStreamSynchronize");
  simt::run_until(simt::point_of(simt::current_device(), stream));
}
void synchronize_device() {
  simt::check_may_wait_for_device("cudaDeviceSynchronize");
  simt::run_all();
}
bool finished(Stream stream) {
  simt::check_not_recorded(stream, "cudaStreamQuery");
  return !simt::settings().hold_events && simt::passed(simt::point_of(simt::current_device(), stream));
}
Event new_event(bool) { return new Mark{}; }
void delete_event(Event event) { delete static_cast<Mark*>(event); }
void record(Event event, Stream stream) {
  const auto recording = simt::recording_of(stream);
  *static_cast<Mark*>(event) = {std::chrono::steady_clock::now(),
                                true,
                                false,
                                recording,
                                recording ? simt::past_of(*recording, stream) : simt::Past{},
                                simt::point_of(simt::current_device(), stream)};
}
void wait(Stream stream, Event event) {
  const Mark& mark = *static_cast<Mark*>(event);
  if (!mark.recorded || !simt::counts_wait()) return;
  simt::check_joins(mark.recording, stream);
  if (mark.recording) simt::join(mark.recording, stream, mark.past);
  else simt::order_after(simt::current_device(), stream, mark.point);
}
/// Also allowed in a thread that records: kernels/cuda/toolkit/runtime.cpp switches to relaxed mode, since
/// the thread may read a message meanwhile.
void synchronize_event(Event event) {
  simt::check_outside(static_cast<Mark*>(event)->recording, "cudaEventSynchronize");
  simt::run_until(static_cast<Mark*>(event)->point);
  static_cast<Mark*>(event)->waited_for = true;
}
bool finished_event(Event event) {
  ++simt::queries;
  const Mark& mark = *static_cast<Mark*>(event);
  return (!simt::settings().hold_events || mark.waited_for) && simt::passed(mark.point);
}
double elapsed_ms(Event from, Event to) {
  return std::chrono::duration<double, std::milli>(static_cast<Mark*>(to)->at - static_cast<Mark*>(from)->at)
      .count();
}

}  // namespace runtime

}  // namespace weft::cuda
