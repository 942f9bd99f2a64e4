// Links: streams of frames between two workers, and the engines that carry them. A transport has one engine
// for gRPC (grpc_link.h) and may have one for unix sockets of the same host (lane.h). Peers and the meaning
// of frames belong to grpc_transport.cpp. Internal to the gRPC transport; it needs no gRPC header.
//
// Each engine is a separate Poller. Its events come on the thread that polls it, below called the poll
// thread. So the events of one link come one at a time, and those of two engines may come at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/inner/file.h>
#include <weft/distributed/transport/inner/frame.h>

namespace weft::rpc::inner {

class LinkEngine;

/// The reason of the end of a link for whose event there was no memory. So short a text needs none.
inline constexpr char kNoMemory[] = "out of memory";

/// Without memory for the reason, the text states that.
inline void set_reason(std::string& text, std::string_view reason) noexcept {
  try {
    text = reason;
  } catch (const std::bad_alloc&) {
    text = kNoMemory;
  }
}

/// A turn of received frames: then other events have theirs. A member may send frames of thousands of
/// messages, and must not delay other members' frames.
inline constexpr Duration kTurn = std::chrono::microseconds(20);
/// From this turn on, the thread also lets others run that wait for its processor.
inline constexpr int kYieldAfter = 10;
/// A turn that has delivered so many bytes is one of payloads, which soon ends, and may take longer.
inline constexpr size_t kBulkBytes = 16 << 10;
inline constexpr Duration kBulkTurn = std::chrono::microseconds(200);
/// Bytes between two looks at the clock: few where they are small messages, many where they are payloads.
inline constexpr size_t kSmallPiece = 512, kLargePiece = 32 << 10;
inline constexpr Duration kPieceTime = std::chrono::microseconds(10);

/// Proofs of the other end.
struct PeerProof {
  std::string peer{};   ///< the other end's address in gRPC's form
  bool local = false;   ///< it came through a unix socket
  bool secure = false;  ///< it has shown a certificate
  /// the certificate's subject alternative names
  std::vector<std::string> names{};
};

/// One stream. Its engine makes and destroys it; it is valid until its on_closed has returned.
class Link {
 public:
  Link(LinkEngine& its_engine, bool is_accepted) : engine(its_engine), accepted(is_accepted) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  /// The next file that the other end has passed; -1 in it: this process had no number free for it. On the
  /// poll thread.
  virtual std::optional<File> take_file() { return std::nullopt; }

  LinkEngine& engine;
  const bool accepted;          ///< true: an incoming stream; false: an outgoing one
  PeerProof proof{};            ///< of the other end; before the first on_bytes
  std::shared_ptr<void> owner;  ///< for the user of the engine
};

/// Events of links; called on the poll thread of their engine.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  /// A stream with its hello, which may be empty. False: as on_bytes.
  virtual bool on_accepted(Link& link, const std::string& hello) = 0;
  /// Memory for the next bytes of the frame. Those that are stored there go to on_bytes with their place, as
  /// all others do. Empty: there is none.
  virtual std::span<char> room(Link& link) { return static_cast<void>(link), std::span<char>(); }
  /// A piece of a frame; `last` with the final one. False: the link must end (finish or cancel
  /// has been called).
  virtual bool on_bytes(Link& link, const void* data, size_t n, bool last) = 0;
  /// The rest of a frame has not come yet.
  virtual void on_waiting(Link& link) { static_cast<void>(link); }
  virtual void on_written(Link& link) = 0;
  /// The other end has ended its direction.
  virtual void on_read_end(Link& link) = 0;
  /// The last event of a link: it is closed. `reason` is text for messages and logs. It does not throw. After
  /// an exception of another event the engine ends the link. None may come for an accepted link without
  /// on_accepted, or to which that gave no owner.
  virtual void on_closed(Link& link, const std::string& reason) = 0;
};

/// The target of a connection.
struct LinkTarget {
  std::string address;  ///< gRPC target, or the path of a unix socket
  bool secure = false;
  std::string name{};  ///< expected in the certificate, instead of the host
  uint16_t port = 0;   ///< a plain loopback port, whose listener may ask for its cookie; else 0
  bool lane = false;   ///< `address` is the path of a socket of the same-host lane
};

/// Thread safety: write, finish and cancel from any thread, for a link not yet closed; connect from any
/// thread. No event of a link comes inside a call.
class LinkEngine {
 public:
  virtual ~LinkEngine() = default;

  /// Opens a stream with a hello, also to an end that is not there yet. on_written reports the end of the
  /// hello's write.
  virtual Link* connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) = 0;
  /// Writes a frame, one at a time per link. True: it is written. False: on_written reports its end. `now`:
  /// on this thread, as far as the other end takes it at once. Else an engine may leave it to the poll
  /// thread.
  virtual bool write(Link& link, Frame frame, bool now) = 0;
  /// write() needs no lock of the caller's, and takes about as long as its system call. The caller then gives
  /// up its locks, so that other threads can queue the messages of the next frame meanwhile.
  virtual bool writes_alone() const { return false; }
  /// Ends the stream in order, after all writes. Not during a write.
  virtual void finish(Link& link) = 0;
  /// Writes a last frame on an accepted link and ends it with an error. On the poll thread.
  virtual void refuse(Link& link, Frame frame) = 0;
  virtual void cancel(Link& link, std::string_view reason) = 0;

  /// Ends all links and joins the poll thread. No event comes after the return. Not on the poll thread.
  virtual void shutdown() = 0;
};

}  // namespace weft::rpc::inner
