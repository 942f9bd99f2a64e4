// The caching allocator of a device (allocator.h). Segments are allocated from the device; a segment is a
// chain of neighbouring blocks. A free block is in the set of its owner, kind and stream. The owner is the
// ordinary cache or the pool of one graph. One mutex guards everything: a call is a lookup in a small tree,
// which costs far less than the launch that follows it.
#include <weft/kernels/cuda/host/allocator.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

namespace {

constexpr size_t kStep = 512, kMega = size_t{1} << 20;
/// A kind of request: up to `limit` bytes, cut from segments of `segment` bytes; a remainder above `rest` is
/// split off. With `segment` 0, or without memory for a segment, a request gets a separate segment in steps
/// of 2 MiB.
struct Kind {
  size_t limit, segment, rest;
};
constexpr Kind kKinds[] = {
    {kMega, 2 * kMega, kStep - 1}, {8 * kMega, 32 * kMega, kMega}, {SIZE_MAX, 0, kMega}};
constexpr int kKindCount = 3;
constexpr size_t kLargest = size_t{1} << 60;

int kind_of(size_t size) { return size <= kKinds[0].limit ? 0 : size <= kKinds[1].limit ? 1 : 2; }

struct Owner;
enum class State : uint8_t { kFree, kUsed, kWaiting };  // waiting: freed, but other streams may still use it

struct Block {
  char* p;
  size_t size;
  Owner* owner;
  void* stream;
  int kind;
  State state = State::kFree;
  bool direct = false;                         // not part of a segment
  int awaited = 0;                             // events
  Block *before = nullptr, *behind = nullptr;  // in the segment
  std::vector<void*> users = {};               // other streams that use it

  void add_user(void* s) {
    if (!direct && s != stream && std::find(users.begin(), users.end(), s) == users.end()) users.push_back(s);
  }
};

struct Smaller {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return std::less<>()(a->stream, b->stream);
    if (a->size != b->size) return a->size < b->size;
    return std::less<>()(a->p, b->p);
  }
};

struct Owner {
  std::set<Block*, Smaller> free[kKindCount];
};

/// Numbers from a random start, so that two processes do not give the same one.
uint64_t next_number() {
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  const uint64_t number = next++;
  return number != 0 ? number : next++;
}

std::string sized(size_t bytes) {
  if (bytes < kMega) return str(bytes, " bytes");
  const double mega = static_cast<double>(bytes) / static_cast<double>(kMega);
  return mega < 1024 ? str(std::round(mega * 100) / 100, " MiB")
                     : str(std::round(mega / 1024 * 100) / 100, " GiB");
}

}  // namespace

struct Allocator::Impl {
  Impl(int d, bool c) : device(d), caching(c) {}

  const int device;
  const bool caching;
  std::mutex mutex;
  Owner cache;
  std::unordered_map<void*, Block*> live;
  std::map<char*, Segment> segments;                                       // by begin
  std::map<void*, std::deque<std::pair<runtime::Event, Block*>>> awaited;  // by stream, in order of the frees
  std::vector<runtime::Event> idle_events;
  size_t limit = 0;
  MemoryStats stats;
  // The graph that is being recorded.
  Owner* recording = nullptr;
  void* recording_stream = nullptr;
  std::thread::id recording_thread;
  // freed during a recording, and direct or with other users: an event now would become part of the graph
  std::vector<Block*> deferred;

  /// Whether the calling thread records: then it must neither wait nor free memory.
  bool thread_records() const { return recording && std::this_thread::get_id() == recording_thread; }
  /// Whether a request belongs to the recording.
  bool recorded(void* stream) const { return recording && (stream == recording_stream || thread_records()); }

  void add_segment(char* p, size_t bytes) {
    segments[p] = {p, bytes, next_number()};
    stats.reserved += static_cast<int64_t>(bytes);
    stats.peak_reserved = std::max(stats.peak_reserved, stats.reserved);
  }
  /// Null for a pointer from elsewhere.
  const Segment* segment_of(void* p) const {
    const auto at = segments.upper_bound(static_cast<char*>(p));
    if (at == segments.begin()) return nullptr;
    const Segment& s = std::prev(at)->second;
    return static_cast<char*>(p) < s.begin + s.bytes ? &s : nullptr;
  }
  void use(Block* b) {
    b->state = State::kUsed;
    live[b->p] = b;
    stats.in_use += static_cast<int64_t>(b->size);
  }

  /// Null if the device is full or the limit is reached.
  char* from_device(size_t bytes) {
    if (limit > 0 && static_cast<size_t>(stats.reserved) + bytes > limit) return nullptr;
    runtime::set_device(device);
    return static_cast<char*>(runtime::allocate(bytes));
  }

  Block* take(Owner& owner, size_t size, void* stream) {
    const int kind = kind_of(size);
    auto& free = owner.free[kind];
    Block key{nullptr, size, nullptr, stream, kind};
    const auto found = free.lower_bound(&key);
    if (found == free.end() || (*found)->stream != stream) return nullptr;
    Block* const b = *found;
    free.erase(found);
    return cut(b, size);
  }

  Block* cut(Block* b, size_t size) {
    if (b->size - size <= kKinds[b->kind].rest) return b;
    auto* const rest = new Block{b->p + size, b->size - size, b->owner, b->stream, b->kind};
    rest->before = b, rest->behind = b->behind;
    if (b->behind) b->behind->before = rest;
    b->behind = rest, b->size = size;
    b->owner->free[b->kind].insert(rest);
    return b;
  }

  Block* from_new_segment(Owner& owner, size_t size, void* stream) {
    const int kind = kind_of(size);
    size_t bytes = (size + 2 * kMega - 1) / (2 * kMega) * (2 * kMega);
    char* p = nullptr;
    if (kKinds[kind].segment > bytes && (p = from_device(kKinds[kind].segment))) bytes = kKinds[kind].segment;
    if (!p) p = from_device(bytes);
    if (!p) return nullptr;
    add_segment(p, bytes);
    return cut(new Block{p, bytes, &owner, stream, kind}, size);
  }

  Block* direct(size_t bytes, void* stream) {
    const size_t size = std::max<size_t>(bytes, 1);
    char* const p = from_device(size);
    if (!p) return nullptr;
    add_segment(p, size);
    auto* const b = new Block{p, size, nullptr, stream, 0};
    b->direct = true;
    return b;
  }

  void merge(Block* b, Block* behind) {
    b->size += behind->size;
    b->behind = behind->behind;
    if (b->behind) b->behind->before = b;
    delete behind;
  }

  void make_free(Block* b) {
    auto& free = b->owner->free[b->kind];
    b->state = State::kFree;
    b->users.clear();
    if (Block* const next = b->behind; next && next->state == State::kFree) {
      free.erase(next);
      merge(b, next);
    }
    if (Block* const first = b->before; first && first->state == State::kFree) {
      free.erase(first);
      merge(first, b);
      b = first;
    }
    free.insert(b);
  }

  runtime::Event event() {
    if (idle_events.empty()) return runtime::new_event(false);
    const runtime::Event e = idle_events.back();
    idle_events.pop_back();
    return e;
  }

  /// Frees the block once its other streams have done the work issued to them so far.
  void await_users(Block* b) {
    runtime::set_device(device);
    for (void* const user : b->users) {
      const runtime::Event e = event();
      runtime::record(e, user);
      awaited[user].emplace_back(e, b);
      ++b->awaited;
    }
  }

  void arrived(runtime::Event e, Block* b) {
    idle_events.push_back(e);
    if (--b->awaited == 0) make_free(b);
  }

  /// Frees the blocks whose other streams are done; with `wait`, waits for all of them.
  void settle(bool wait) {
    if (thread_records()) return;
    for (auto at = awaited.begin(); at != awaited.end();) {
      auto& queue = at->second;
      while (!queue.empty()) {
        const auto [e, b] = queue.front();
        if (wait) runtime::synchronize_event(e);
        else if (!runtime::finished_event(e)) break;
        queue.pop_front();
        arrived(e, b);
      }
      at = queue.empty() ? awaited.erase(at) : std::next(at);
    }
  }

  void release_segment(char* p, size_t bytes) {
    segments.erase(p);
    stats.reserved -= static_cast<int64_t>(bytes);
    runtime::set_device(device);
    runtime::release(p);
  }

  /// Frees a direct block; the device waits for its use before it frees memory.
  void release(Block* b) {
    release_segment(b->p, b->size);
    delete b;
  }

  void empty(Owner& owner) {
    for (auto& free : owner.free)
      for (auto at = free.begin(); at != free.end();) {
        Block* const b = *at;
        if (b->before || b->behind) {
          ++at;
          continue;
        }
        at = free.erase(at);
        release_segment(b->p, b->size);
        delete b;
      }
  }

  [[noreturn]] void full(size_t bytes) {
    size_t available = 0, total = 0;
    try {
      runtime::set_device(device);
      runtime::memory_info(&available, &total);
    } catch (const Error&) {  // report without the device's numbers
    }
    throw OutOfMemoryError(str("cuda:", device, ": out of memory: asked for ", sized(bytes), "; reserved ",
                               sized(static_cast<size_t>(stats.reserved)), ", of which in use ",
                               sized(static_cast<size_t>(stats.in_use)), "; free on the device ",
                               sized(available), " of ", sized(total), "; limit ",
                               limit > 0 ? sized(limit) : std::string("none")));
  }
};

bool Allocator::caches_by_default() {
  const char* const off = std::getenv("WEFT_NO_CACHE");
  return !runtime::emulated() && !(off && *off && *off != '0');
}

Allocator::Allocator(int device, bool caching) : impl_(new Impl(device, caching)) {}

Allocator::~Allocator() {
  Impl& m = *impl_;
  try {
    m.settle(true);
    for (const auto& [p, b] : m.live) delete b;
    for (const auto& free : m.cache.free)
      for (const Block* const b : free) delete b;
    for (const auto& [p, segment] : m.segments) runtime::release(p);
    for (const runtime::Event e : m.idle_events) runtime::delete_event(e);
  } catch (const Error&) {  // the device is lost, and its memory with it
  }
}

void* Allocator::allocate(size_t bytes, void* stream) { return allocate(bytes, stream, true); }
void* Allocator::allocate_outside_pool(size_t bytes, void* stream) { return allocate(bytes, stream, false); }
void* Allocator::allocate(size_t bytes, void* stream, bool from_pool) {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  if (bytes > kLargest) m.full(bytes);
  const size_t size = bytes > 0 ? (bytes + kStep - 1) / kStep * kStep : kStep;
  const bool recorded = m.recorded(stream);
  Owner& owner = recorded && from_pool ? *m.recording : m.cache;
  Block* b;
  if (!m.caching && &owner == &m.cache) {
    b = m.direct(bytes, stream);
    if (!b) m.full(bytes);
  } else {
    m.settle(false);
    b = m.take(owner, size, stream);
    if (!b) b = m.from_new_segment(owner, size, stream);
    if (!b && !recorded) {
      m.settle(true);
      b = m.take(owner, size, stream);
      if (!b) {
        m.empty(m.cache);
        b = m.from_new_segment(owner, size, stream);
      }
    }
    if (!b) m.full(bytes);
  }
  m.use(b);
  ++m.stats.allocations;
  return b->p;
}

void Allocator::deallocate(void* p) noexcept {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  const auto found = m.live.find(p);
  if (found == m.live.end()) return;
  Block* const b = found->second;
  m.live.erase(found);
  m.stats.in_use -= static_cast<int64_t>(b->size);
  try {
    if (b->direct && m.recording) {  // no memory is freed during a recording
      m.deferred.push_back(b);
    } else if (b->direct) {
      m.release(b);
    } else if (b->users.empty()) {
      m.make_free(b);
    } else {
      b->state = State::kWaiting;
      if (m.recording) m.deferred.push_back(b);
      else m.await_users(b);
    }
    // with a broken context the next call that may throw fails; the block is never reused
  } catch (const std::exception&) {
  }
}

void Allocator::record_stream(void* p, void* stream) {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  auto found = m.live.find(p);
  if (found == m.live.end() && m.segment_of(p))
    found = std::find_if(m.live.begin(), m.live.end(), [&](const auto& entry) {
      return p >= entry.second->p && p < entry.second->p + entry.second->size;
    });
  if (found != m.live.end()) found->second->add_user(stream);
}

MemoryStats Allocator::stats() const {
  const std::lock_guard lock(impl_->mutex);
  MemoryStats s = impl_->stats;
  s.cached = s.reserved - s.in_use;
  return s;
}

void Allocator::empty_cache() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->thread_records()) return;
  impl_->settle(true);
  impl_->empty(impl_->cache);
}

void Allocator::set_limit(size_t bytes) {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  if (bytes > 0 && static_cast<size_t>(m.stats.in_use) > bytes)
    throw ValueError(str("set_memory_limit: cuda:", m.device, " has ",
                         sized(static_cast<size_t>(m.stats.in_use)), " in use, more than the limit of ",
                         sized(bytes)));
  m.limit = bytes;
  if (bytes > 0 && static_cast<size_t>(m.stats.reserved) > bytes && !m.thread_records()) {
    m.settle(true);
    m.empty(m.cache);
  }
}

Allocator::Segment Allocator::segment_of(void* p) const {
  const std::lock_guard lock(impl_->mutex);
  if (const Segment* const found = impl_->segment_of(p)) return *found;
  throw ValueError(
      str("cuda:", impl_->device, ": the pointer is not into a block of this device's allocator"));
}

void Allocator::begin_pool(void* stream) {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  if (m.recording) throw CudaError(str("begin_capture: cuda:", m.device, " is recording another graph"));
  m.recording = new Owner;
  m.recording_stream = stream;
  m.recording_thread = std::this_thread::get_id();
}

void* Allocator::end_pool() {
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  Owner* const pool = std::exchange(m.recording, nullptr);
  for (Block* const b : std::exchange(m.deferred, {})) {
    if (b->direct) m.release(b);
    else m.await_users(b);
  }
  return pool;
}

void Allocator::release_pool(void* pool, std::span<void* const> replayed_on) noexcept {
  if (!pool) return;
  Impl& m = *impl_;
  const std::lock_guard lock(m.mutex);
  auto* const owner = static_cast<Owner*>(pool);
  try {
    if (!m.recording) m.empty(*owner);  // free segments could be reused only on the graph's stream
  } catch (const Error&) {              // they go to the cache
  }
  for (int kind = 0; kind < kKindCount; ++kind) {
    for (Block* const b : owner->free[kind]) b->owner = &m.cache;
    m.cache.free[kind].merge(owner->free[kind]);
  }
  const auto adopt = [&](Block* b) {
    if (b->owner == owner) b->owner = &m.cache;
  };
  for (const auto& [p, b] : m.live) {
    if (b->owner == owner)
      for (void* const stream : replayed_on) b->add_user(stream);
    adopt(b);
  }
  for (const auto& [stream, queue] : m.awaited)
    for (const auto& [e, b] : queue) adopt(b);
  for (Block* const b : m.deferred) adopt(b);
  delete owner;
}

}  // namespace weft::cuda
