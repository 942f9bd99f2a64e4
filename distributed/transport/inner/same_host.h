// The same-host lane as the transport sees it: an engine, and memory that both ends of its links share.
// lane.h, shared_memory.h and known_segments.h have the classes. A build without the lane (WEFT_LANE=OFF) has
// lane/no_lane.cpp in place of their sources: there is no lane then, and gRPC carries everything. Internal to
// the gRPC transport; it needs no gRPC header.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/file.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/link.h>

namespace weft::rpc::inner {

/// A bit of Hello::features.
inline constexpr uint64_t kTakesSegments = 1;
/// Payloads of fewer bytes go through the socket: their copies stay in the processor's cache, and wake-ups
/// cost more than they do. Larger ones would drive other data out of it twice per direction.
inline constexpr int64_t kSharedFrom = 256 << 10;
/// Segments of one link in one direction, and bytes in them. The sender keeps to them, and the receiver
/// refuses more.
inline constexpr size_t kMostSegments = 256;
inline constexpr int64_t kMostSegmentBytes = int64_t{16} << 30;

/// The sending side of shared memory, for all links of a transport. Thread safety: any thread. It takes no
/// other lock.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;

  /// A link whose other end takes segments. Returns its number, which is not 0.
  virtual uint64_t open() = 0;
  /// The link has ended.
  virtual void close(uint64_t link) = 0;

  /// Whether a payload of the message is large enough.
  static bool suits(const OutMessage& message) {
    return std::any_of(message.payloads.begin(), message.payloads.end(),
                       [](const Payload& p) { return p.bytes >= kSharedFrom; });
  }
  /// Copies large payloads to segments of the link, as far as there is room. Not to be called under a lock.
  virtual void place(uint64_t link, OutMessage& message) = 0;
  /// To be called before the first bytes of a message on a link. Replaces the message by its form by
  /// reference, and writes the records that it needs into the frame. A link without the message's segments
  /// changes nothing. Returns the bytes that do not go through the frames.
  virtual int64_t refer(uint64_t link, OutCursor& cursor, Frame& frame) = 0;

  /// Counts the large payloads of a message for a peer that takes no segments.
  virtual void count_not_taken(const OutMessage& message) = 0;
  virtual SharedMemoryCounters counters() const = 0;
};

/// The receiving side: the segments that the other end of a link has passed. Thread safety: the poll thread
/// of its link. Blocks that it gave may be released on any thread, at any time.
class PassedSegments {
 public:
  virtual ~PassedSegments() = default;
  /// A segment and its file. No file: none has come. -1: it has come, and this process had no number free for
  /// it. A segment may come again, and then the first file counts that this process has taken. Throws:
  /// WireError for a missing file, one that is no sealed memfd, and over the limits of number and bytes.
  virtual void add(uint32_t number, std::optional<File> file) = 0;
  /// The other end uses the segment no more. Throws: WireError for an unknown number.
  virtual void forget(uint32_t number) = 0;
  /// The payload in a segment. Throws: WireError for an unknown number, one whose payload is still held here,
  /// and more bytes than it has. OutOfMemoryError, which names the limit, for one that cannot be mapped now.
  virtual Block borrow(uint32_t number, int64_t bytes) = 0;
};

/// Thread safety: as LinkEngine; counters from any thread.
class Lane : public LinkEngine {
 public:
  virtual void start() = 0;
  virtual UnprovenCounters counters() const = 0;
  /// Null: links take and pass no files (GrpcOptions::shared_memory_bytes).
  virtual std::shared_ptr<SharedMemory> memory() const = 0;
  /// For a new link.
  virtual std::unique_ptr<PassedSegments> make_passed() const = 0;
};

/// Listens on a unix socket at `path`, where nothing is yet. Connections wait until start(). Null: this build
/// has no lane (has_same_host_lane). Throws: RpcError that names the path.
std::unique_ptr<Lane> make_lane(Runtime& runtime, const GrpcOptions& options, LinkEvents& events,
                                const std::string& path);

}  // namespace weft::rpc::inner
