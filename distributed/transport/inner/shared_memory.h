// Payloads through shared memory, between processes of one host and user: the sending side, and the steps.
//  1. Each end of a link of the lane states in its hello that it takes segments (kTakesSegments). To an end
//     that does not, all payloads go through the socket.
//  2. A send copies each payload of at least kSharedFrom bytes to a segment of the link: a free one, or a new
//     memfd, sealed against a change of its size. Without room, memory or files the payload stays there.
//  3. When the message begins to leave on that link, its form by reference goes: the number of the segment in
//     place of the bytes. A record with the file goes before the first use of a segment, twice: the receiver
//     may have to make room for it. If the link has ended, the message is still whole, and goes on the next
//     one as any other. [G: the bytes of a message are those of its send]
//  4. The receiver (known_segments.h) checks the file, maps it once, and holds the payload in place. A
//     malformed record, file or length ends the link. A limit of this process does not: the message has an
//     error, as any without memory. When the payload is released, on any thread, it clears the control word
//     of the segment. That needs no link and no living sender.
//  5. A sender that needs a segment looks at the words of those that it has lent. One that the receiver never
//     clears is never used again. [G: a held payload does not change]
//  6. Segments of all links stay within a limit of bytes. A link takes no more than it leaves to the others.
//     To make room, free segments are dropped: their memory at once, their numbers with the next message by
//     reference.
//  7. A link's segments end with it. A payload that the receiver holds lives until its release. No segment is
//     ever used for two links. [G: a peer reads and writes its own payloads alone]
// Internal to the gRPC transport.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/inner/mapping.h>
#include <weft/distributed/transport/inner/same_host.h>

namespace weft::rpc::inner {

struct Segment;

/// Payloads after which a sender tries again to pass a file. A failure breaks the link, so it must be rare.
inline constexpr int64_t kPassingPause = 1000;

/// The segments that a transport has made. Thread safety: as SharedMemory.
class MadeSegments final : public SharedMemory, public std::enable_shared_from_this<MadeSegments> {
 public:
  /// `limit` of the bytes in segments.
  explicit MadeSegments(int64_t limit) : limit_(limit) {}

  uint64_t open() override;
  void close(uint64_t link) override;
  void place(uint64_t link, OutMessage& message) override;
  int64_t refer(uint64_t link, OutCursor& cursor, Frame& frame) override;
  void count_not_taken(const OutMessage& message) override;
  /// The kernel let this process pass no file. The next kPassingPause payloads without a free segment go
  /// through the socket; then it tries again.
  void pause_passing();
  SharedMemoryCounters counters() const override;

 private:
  friend class Lease;
  struct Pool {
    std::vector<std::shared_ptr<Segment>> segments{};
    std::vector<uint32_t> forgotten{};  ///< numbers that the receiver may forget
    size_t count = 0;                   ///< of the segments, those being made included
    int64_t bytes = 0;                  ///< in them
    uint32_t next = 0;                  ///< number
  };
  std::shared_ptr<Segment> take(uint64_t link, int64_t bytes);
  int64_t lend(uint64_t link, const OutMessage& message, Frame& frame);
  static size_t count_files(const Pool& pool);
  static std::shared_ptr<Segment> find_free(Pool& pool, size_t bytes);
  /// Trims free segments until another one of `bytes` fits. False, without a change: it cannot fit.
  bool make_room(Pool& pool, int64_t bytes, std::vector<std::shared_ptr<Segment>>& trimmed)
      WEFT_REQUIRES(mutex_);
  void trim(Pool& pool, std::vector<std::shared_ptr<Segment>>& trimmed) WEFT_REQUIRES(mutex_);
  bool fits(const Pool& pool, int64_t bytes, int64_t of_pool, int64_t of_all) const WEFT_REQUIRES(mutex_);

  const int64_t limit_;
  mutable Mutex mutex_;
  std::map<uint64_t, Pool> pools_ WEFT_GUARDED_BY(mutex_);
  uint64_t last_ WEFT_GUARDED_BY(mutex_) = 0;
  int64_t used_ WEFT_GUARDED_BY(mutex_) = 0;
  int64_t paused_ WEFT_GUARDED_BY(mutex_) = 0;  // payloads until new segments are made again
  SharedMemoryCounters counters_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::inner
