// Streams of frames over gRPC's core API. Peers and the meaning of frames belong to grpc_transport.cpp.
// Users of this header need no gRPC header. Internal to the gRPC transport.
//
// A LinkEngine has one completion queue for listening and for all streams, in both directions. The runtime
// polls it (Runtime::start_poller), one thread at a time. Events are delivered on that thread, below called
// the poll thread. Any thread may start a write; gRPC then usually writes to the socket in the same call.
//
// Thread sanitizer cannot see into gRPC, so each hand-over to it and back locks and unlocks `handoff_`.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/inner/grpc_ends.h>

namespace weft::rpc::inner {

struct LinkCalls;  // gRPC's side of a link; grpc_link.cpp

/// One stream. The engine makes and destroys it; it is valid until its on_closed has returned.
class Link {
 public:
  explicit Link(bool is_accepted);
  ~Link();

  const bool accepted;          ///< true: an incoming stream; false: an outgoing one
  PeerProof proof{};            ///< of the other end; before the first on_bytes
  std::shared_ptr<void> owner;  ///< for the user of the engine

  std::unique_ptr<LinkCalls> calls;
};

/// Events of links; called on the poll thread, one at a time.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  /// A stream with its hello, which may be empty. False: as on_bytes.
  virtual bool on_accepted(Link& link, const std::string& hello) = 0;
  /// A piece of a frame; `last` with the final one. False: the link must end (finish or cancel
  /// has been called).
  virtual bool on_bytes(Link& link, const void* data, size_t n, bool last) = 0;
  virtual void on_written(Link& link) = 0;
  /// The other end has ended its direction.
  virtual void on_read_end(Link& link) = 0;
  /// The last event of a link: it is closed. `reason` is text for messages and logs.
  virtual void on_closed(Link& link, const std::string& reason) = 0;
};

/// The target of a connection.
struct LinkTarget {
  std::string address;  ///< gRPC target
  bool secure = false;
  std::string name{};  ///< expected in the certificate, instead of the host
  uint16_t port = 0;   ///< a plain loopback port, whose listener may ask for its cookie; else 0
};

/// Thread safety: write, finish and cancel from any thread, for a link not yet closed; connect
/// from any thread.
class LinkEngine final : private Poller {
 public:
  /// Throws: IoError, RpcError (credentials).
  LinkEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events);
  ~LinkEngine() override;

  /// Listens on a unix socket; before start(). Throws: RpcError naming the address.
  void listen(const std::string& unix_address);
  /// TCP connections of another listener will come, with TLS if the options have it; before start(). Throws:
  /// RpcError.
  void expect_connections();
  void start();
  /// Takes a connected socket over, which must not block, between start() and shutdown(). Any thread.
  void take(int listener, int connection);

  /// Opens a stream with a hello, also to an end that is not there yet. The first write may begin at once.
  Link* connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello);
  /// Writes a frame, one at a time per link; on_written reports its end.
  void write(Link& link, Frame frame);
  /// Ends the stream in order, after all writes. Not during a write.
  void finish(Link& link);
  /// Writes a last frame on an accepted link and ends it with an error.
  void refuse(Link& link, Frame frame);
  void cancel(Link& link, const std::string& reason);
  /// As TlsFiles::trouble; empty without TLS. Any thread.
  std::string certificate_trouble();

  /// Ends all links and joins the poll thread. No event comes after the return. Not on the poll thread.
  void shutdown();

 private:
  struct Grpc;
  bool poll(TimePoint deadline) override;
  void kick() override;
  void drain();
  void request_call();
  void accept();
  void read(Link& link);
  void handle(Link& link, int kind, bool ok);
  bool deliver(Link& link);
  void take_turn();
  void done(Link& link);
  void add(Link* link);
  void handoff() { MutexLock lock(handoff_); }

  Runtime& runtime_;
  LinkEvents& events_;
  std::unique_ptr<Grpc> grpc_;
  Mutex handoff_;
  Mutex mutex_;
  std::unordered_set<Link*> links_ WEFT_GUARDED_BY(mutex_);
  bool stopping_ WEFT_GUARDED_BY(mutex_) = false;
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> kicked_{false};
  std::unique_ptr<Service> polling_;
};

}  // namespace weft::rpc::inner
