// The sending side of shared memory: its segments, their copies and the limit. A segment is filled before it
// is known to the receiver, and never touched while the receiver may hold it. So the state of each segment is
// kept here. The receiver may set the control word at will, so only the words of lent segments are read.
#include <weft/distributed/transport/inner/shared_memory.h>

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weft::rpc::inner {

/// A segment of one link. Its state and file are guarded by the mutex of its MadeSegments.
struct Segment {
  enum class State { kFree, kTaken, kLent };  // taken: by a message that has not begun to leave
  const std::shared_ptr<Mapping> mapping;
  const uint32_t number;
  State state = State::kTaken;
  std::shared_ptr<const File> file;  // until the other end has been notified
  bool is_free() {
    if (state == State::kLent && mapping->is_given_back()) state = State::kFree;
    return state == State::kFree;
  }
};

/// A segment that a message has taken; it is free again when the message ends before it has left.
class Lease {
 public:
  Lease(std::shared_ptr<MadeSegments> memory, std::shared_ptr<Segment> its_segment)
      : segment(std::move(its_segment)), memory_(std::move(memory)) {}
  ~Lease() {
    MutexLock lock(memory_->mutex_);
    if (segment->state == Segment::State::kTaken) segment->state = Segment::State::kFree;
  }
  Lease(const Lease&) = delete;
  const std::shared_ptr<Segment> segment;

 private:
  const std::shared_ptr<MadeSegments> memory_;
};

namespace {

/// Bytes of a payload from which its copy goes past the caches: stores of this kind do not read the lines
/// that they replace (bench/NOTES_CALLS.md).
constexpr size_t kStreamedFrom = 16 << 20;

/// Copies a payload to a segment's memory, which is aligned to 16 bytes.
void copy_payload(void* to, const void* from, size_t bytes) {
  size_t done = 0;
#if defined(__SSE2__)
  if (bytes >= kStreamedFrom) {
    auto* const lines = static_cast<__m128i*>(to);
    const auto* const read = static_cast<const __m128i*>(from);
    const size_t count = bytes / 64 * 4;
    for (size_t i = 0; i < count; i += 4) {  // a line at a time
      const __m128i a = _mm_loadu_si128(read + i), b = _mm_loadu_si128(read + i + 1),
                    c = _mm_loadu_si128(read + i + 2), d = _mm_loadu_si128(read + i + 3);
      _mm_stream_si128(lines + i, a), _mm_stream_si128(lines + i + 1, b);
      _mm_stream_si128(lines + i + 2, c), _mm_stream_si128(lines + i + 3, d);
    }
    _mm_sfence();
    done = count * sizeof(__m128i);
  }
#endif
  std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

constexpr size_t kSmallestStep = 64 << 10;
/// Files of one link that wait for their messages to leave.
constexpr size_t kMostWaitingFiles = 64;
/// A receiver without a free number drops the first file, and makes room for the second (lane.h).
constexpr int kTimesPassed = 2;

/// The size of a segment for so many bytes: few sizes, so that payloads of about one size find free ones.
size_t segment_size(int64_t payload) {
  const size_t need = static_cast<size_t>(payload) + kSegmentHead;
  const size_t step = std::max(kSmallestStep, std::bit_floor(need) / 8);
  return (need + step - 1) / step * step;
}

/// A sealed file with its memory. No mapping: the system gives none. The memory is taken here, since a later
/// access could not fail in order.
std::pair<std::shared_ptr<Mapping>, std::shared_ptr<const File>> make_segment(size_t bytes) {
  rlimit largest{};  // beyond it the kernel would send a signal
  if (getrlimit(RLIMIT_FSIZE, &largest) != 0 || bytes > largest.rlim_cur) return {};
  File file(memfd_create("weft-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<off_t>(bytes);
  if (file.get() < 0 || ftruncate(file.get(), size) != 0 || fallocate(file.get(), 0, 0, size) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return {};
  auto mapping = Mapping::of(file, bytes, true);
  return {std::move(mapping), std::make_shared<const File>(std::move(file))};
}

/// A message with the numbers of segments in place of the bytes that they hold. It takes the head of `whole`,
/// and keeps its payloads.
std::shared_ptr<OutMessage> by_reference(const std::shared_ptr<OutMessage>& whole) {
  auto m = std::make_shared<OutMessage>();
  m->kind = whole->kind;
  m->channel = whole->channel;
  m->queued = whole->queued;
  m->head = std::move(whole->head);
  m->stubs.reserve(static_cast<size_t>(kStubBytes) * whole->placed.size());
  m->bytes = static_cast<int64_t>(m->head.size());
  size_t next = 0;
  for (size_t i = 0; i < whole->payloads.size(); ++i) {
    const Payload& p = whole->payloads[i];
    if (next < whole->placed.size() && whole->placed[next].payload == i) {
      const uint32_t number = whole->placed[next++].lease->segment->number;
      m->head[kBeginBytes + kTableRow * i + 7] |= static_cast<char>(kSharedMark >> 56);
      const size_t at = m->stubs.size();
      for (int shift = 0; shift < 32; shift += 8) m->stubs += static_cast<char>(number >> shift);
      m->payloads.push_back({m->stubs.data() + at, kStubBytes, p.device});
    } else {
      m->payloads.push_back({p.data, p.bytes, p.device});
    }
    m->bytes += m->payloads.back().bytes;
  }
  m->whole = whole;
  return m;
}

}  // namespace

uint64_t MadeSegments::open() {
  MutexLock lock(mutex_);
  pools_.try_emplace(++last_);
  return last_;
}

void MadeSegments::close(uint64_t link) {
  Pool ended;  // its memory goes after the lock
  MutexLock lock(mutex_);
  const auto found = pools_.find(link);
  if (found == pools_.end()) return;
  ended = std::move(found->second);
  used_ -= ended.bytes;
  pools_.erase(found);
  lock.unlock();
}

void MadeSegments::place(uint64_t link, OutMessage& message) {
  for (size_t i = 0; i < message.payloads.size(); ++i) {
    const Payload& p = message.payloads[i];
    if (p.bytes < kSharedFrom) continue;
    auto segment = take(link, p.bytes);
    if (segment == nullptr) continue;
    auto lease = std::make_shared<const Lease>(shared_from_this(), std::move(segment));
    copy_payload(lease->segment->mapping->payload(), p.data, static_cast<size_t>(p.bytes));
    message.placed.push_back({i, std::move(lease)});
  }
  message.placed_for = link;
}

std::shared_ptr<Segment> MadeSegments::take(uint64_t link, int64_t bytes) {
  const size_t size = segment_size(bytes);
  const auto charge = static_cast<int64_t>(size);
  std::vector<std::shared_ptr<Segment>> trimmed;
  uint32_t number = 0;
  {
    MutexLock lock(mutex_);
    const auto found = pools_.find(link);
    if (found == pools_.end()) {
      ++counters_.not_taken;
      return nullptr;
    }
    Pool& pool = found->second;
    if (auto segment = find_free(pool, size)) {
      segment->state = Segment::State::kTaken;
      return segment;
    }
    if (paused_ > 0) {
      --paused_;
      ++counters_.no_memory;
      return nullptr;
    }
    if (count_files(pool) >= kMostWaitingFiles || !make_room(pool, charge, trimmed)) {
      ++counters_.no_room;
      return nullptr;
    }
    ++pool.count;
    pool.bytes += charge;
    used_ += charge;
    number = pool.next++;
  }
  for (auto& segment : trimmed) segment->mapping->discard();
  trimmed.clear();
  auto [mapping, file] = make_segment(size);
  std::shared_ptr<Segment> made;
  if (mapping != nullptr)
    made.reset(new Segment{std::move(mapping), number, Segment::State::kTaken, std::move(file)});
  MutexLock lock(mutex_);
  if (made == nullptr) ++counters_.no_memory;
  const auto found = pools_.find(link);
  if (found == pools_.end()) return nullptr;  // it has ended meanwhile, with all that was counted for it
  Pool& pool = found->second;
  if (made != nullptr) {
    pool.segments.push_back(made);
  } else {
    --pool.count;
    pool.bytes -= charge;
    used_ -= charge;
  }
  return made;
}

/// Files that have not left yet. They are open in this process, which has a limit of them.
size_t MadeSegments::count_files(const Pool& pool) {
  return static_cast<size_t>(std::count_if(pool.segments.begin(), pool.segments.end(),
                                           [](const auto& s) { return s->file != nullptr; }));
}

/// The smallest free segment that is not much larger than that.
std::shared_ptr<Segment> MadeSegments::find_free(Pool& pool, size_t bytes) {
  std::shared_ptr<Segment> best;
  for (const auto& s : pool.segments) {
    const size_t has = s->mapping->bytes();
    if (has < bytes || has / 2 > bytes || (best != nullptr && best->mapping->bytes() <= has)) continue;
    if (s->is_free()) best = s;
  }
  return best;
}

/// Whether a segment fits beside so many bytes of its pool and of all pools.
bool MadeSegments::fits(const Pool& pool, int64_t bytes, int64_t of_pool, int64_t of_all) const {
  const int64_t own = of_pool + bytes;
  return pool.count < kMostSegments && own <= kMostSegmentBytes && own <= limit_ - (of_all + bytes);
}

bool MadeSegments::make_room(Pool& pool, int64_t bytes, std::vector<std::shared_ptr<Segment>>& trimmed) {
  if (fits(pool, bytes, pool.bytes, used_)) return true;
  int64_t own = 0, all = 0;
  for (auto& [link, other] : pools_) {
    for (const auto& s : other.segments) {
      if (!s->is_free()) continue;
      const auto free = static_cast<int64_t>(s->mapping->bytes());
      all += free;
      if (&other == &pool) own += free;
    }
  }
  if (pool.count == kMostSegments) {
    if (own > 0) trim(pool, trimmed);
  } else if (!fits(pool, bytes, pool.bytes - own, used_ - all)) {
    return false;
  } else {
    trim(pool, trimmed);
    for (auto& [link, other] : pools_)
      if (!fits(pool, bytes, pool.bytes, used_)) trim(other, trimmed);
  }
  return fits(pool, bytes, pool.bytes, used_);
}

/// Takes all free segments out of a pool.
void MadeSegments::trim(Pool& pool, std::vector<std::shared_ptr<Segment>>& trimmed) {
  const int64_t before = pool.bytes;
  std::erase_if(pool.segments, [&](const std::shared_ptr<Segment>& s) {
    if (!s->is_free()) return false;
    pool.bytes -= static_cast<int64_t>(s->mapping->bytes());
    --pool.count;
    if (s->file == nullptr) pool.forgotten.push_back(s->number);
    trimmed.push_back(s);
    return true;
  });
  used_ -= before - pool.bytes;
}

int64_t MadeSegments::refer(uint64_t link, OutCursor& cursor, Frame& frame) {
  const std::shared_ptr<OutMessage> whole = cursor.message;
  if (whole->placed.empty()) return 0;
  const int64_t bytes = whole->placed_for == link ? lend(link, *whole, frame) : 0;
  if (bytes > 0) cursor.message = by_reference(whole);
  whole->placed.clear();  // lent, or of a link that has ended
  return bytes;
}

/// Gives the segments of a message to the receiver. Returns the bytes in them; 0: the link has ended.
int64_t MadeSegments::lend(uint64_t link, const OutMessage& message, Frame& frame) {
  MutexLock lock(mutex_);
  const auto found = pools_.find(link);
  if (found == pools_.end()) return 0;
  for (const uint32_t number : std::exchange(found->second.forgotten, {})) {
    const std::string record = encode_segment(RecordType::kForget, number);
    frame.append_own(record.data(), record.size());
  }
  int64_t bytes = 0;
  for (const Placed& p : message.placed) {
    Segment& s = *p.lease->segment;
    s.mapping->set_word(1);
    s.state = Segment::State::kLent;
    for (int i = 0; s.file != nullptr && i < kTimesPassed; ++i)
      frame.append_file(encode_segment(RecordType::kSegment, s.number), s.file);
    s.file = nullptr;
    bytes += message.payloads[p.payload].bytes;
  }
  counters_.payloads += message.placed.size();
  return bytes;
}

void MadeSegments::pause_passing() {
  MutexLock lock(mutex_);
  paused_ = kPassingPause;
}

void MadeSegments::count_not_taken(const OutMessage& message) {
  MutexLock lock(mutex_);
  for (const Payload& p : message.payloads) counters_.not_taken += p.bytes >= kSharedFrom;
}

SharedMemoryCounters MadeSegments::counters() const {
  MutexLock lock(mutex_);
  SharedMemoryCounters now = counters_;
  now.bytes = used_;
  return now;
}

}  // namespace weft::rpc::inner
