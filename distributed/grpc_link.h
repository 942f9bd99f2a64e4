// Streams of frames over gRPC's core API, nothing more: who is at the other end and what frames mean is grpc_transport.cpp's.
// No gRPC header is needed to use it. Inner part of the gRPC transport.
//
// One completion queue serves a LinkEngine: listening, all streams, both directions. The runtime polls it (Runtime::start_poller), one
// thread at a time; events are told on whichever thread that is (below: the poll thread). Writes may be started on any thread; gRPC
// then usually writes to the socket in that same call.
//
// Thread sanitizer cannot see into gRPC, so each hand-over to it and back passes `handoff_` (lock, unlock).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <weft/distributed/frame.h>
#include <weft/distributed/grpc_transport.h>
#include <weft/distributed/sync.h>

namespace weft::rpc::inner {

struct LinkCalls;  // gRPC's side of a link; grpc_link.cpp

/// One stream. Made and destroyed by the engine; valid until on_closed for it has returned.
class Link {
 public:
  explicit Link(bool is_accepted);
  ~Link();

  const bool accepted;          ///< by us; false: we connected
  std::shared_ptr<void> owner;  ///< for the user of the engine

  std::unique_ptr<LinkCalls> calls;
};

/// What happens on links; called on the poll thread, one at a time.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_accepted(Link& link) = 0;
  /// A piece of a frame; `last` with the final one. False: the link must end (finish or cancel has been called).
  virtual bool on_bytes(Link& link, const void* data, size_t n, bool last) = 0;
  virtual void on_written(Link& link) = 0;
  /// The other end has no more to say.
  virtual void on_read_end(Link& link) = 0;
  /// It is over; the last event of a link. `reason` is text for people.
  virtual void on_closed(Link& link, const std::string& reason) = 0;
};

/// Where to connect.
struct LinkTarget {
  std::string address;  ///< gRPC target
  bool secure = false;
};

/// Thread safety: write, finish and cancel from any thread, for a link not yet closed; connect from any thread.
class LinkEngine final : private Poller {
 public:
  /// Throws: IoError, RpcError (credentials).
  LinkEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events);
  ~LinkEngine() override;

  /// Listens; to be called before start(). Returns the port (0 for unix). Throws: RpcError naming the address.
  int listen(const std::string& address, bool secure);
  void start();

  /// Begins a stream; it waits until the other end is there. `first` is written at once.
  Link* connect(const LinkTarget& target, std::shared_ptr<void> owner, Frame first);
  /// Writes a frame; one at a time per link, on_written ends it.
  void write(Link& link, Frame frame);
  /// No more writes: ends the stream in order. Not while a write is under way.
  void finish(Link& link);
  /// Writes a last frame on an accepted link and ends it with an error.
  void refuse(Link& link, Frame frame);
  void cancel(Link& link, const std::string& reason);

  /// Ends everything and joins the poll thread. No event comes after it returned. Not on the poll thread.
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
  void deliver(Link& link);
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
