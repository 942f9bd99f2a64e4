// Links over gRPC's core API. Users of this header need no gRPC header. Internal to the gRPC transport.
//
// A GrpcEngine has one completion queue for listening and for all streams, in both directions. The runtime
// polls it (Runtime::start_poller), one thread at a time. Any thread may start a write; gRPC then usually
// writes to the socket in the same call.
//
// Each hand-over of data to gRPC and back passes `handoff_`, for the thread sanitizer.
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
#include <weft/distributed/transport/inner/handoff.h>
#include <weft/distributed/transport/inner/link.h>

namespace weft::rpc::inner {

struct LinkCalls;  // gRPC's side of a link; grpc_link.cpp

/// A stream of gRPC.
class GrpcLink final : public Link {
 public:
  GrpcLink(LinkEngine& engine, bool is_accepted);
  ~GrpcLink() override;

  std::unique_ptr<LinkCalls> calls;
};

/// Thread safety: as LinkEngine.
class GrpcEngine final : public LinkEngine, private Poller {
 public:
  /// Throws: IoError, RpcError (credentials).
  GrpcEngine(Runtime& runtime, const GrpcOptions& options, LinkEvents& events);
  ~GrpcEngine() override;

  /// Listens on a unix socket; before start(). Throws: RpcError naming the address.
  void listen(const std::string& unix_address);
  /// TCP connections of another listener will come, with TLS if the options have it; before start(). Throws:
  /// RpcError.
  void expect_connections();
  void start();
  /// Takes a connected socket over, which must not block, between start() and shutdown(). Any thread.
  void take(int listener, int connection);

  /// The first write may begin at once.
  Link* connect(const LinkTarget& target, std::shared_ptr<void> owner, const std::string& hello) override;
  bool write(Link& link, Frame frame, bool now) override;
  void finish(Link& link) override;
  void refuse(Link& link, Frame frame) override;
  void cancel(Link& link, std::string_view reason) override;
  void shutdown() override;
  /// As TlsFiles::trouble; empty without TLS. Any thread.
  std::string certificate_trouble() const;

 private:
  struct Grpc;
  bool poll(TimePoint deadline) override;
  void kick() override;
  void drain();
  void request_call();
  void accept();
  void begin(GrpcLink& link, const std::string& hello);
  void read(GrpcLink& link);
  template <class F> void guard(GrpcLink& link, const F& event);
  void handle(GrpcLink& link, int kind, bool ok);
  bool deliver_turn(GrpcLink& link);
  bool deliver(GrpcLink& link);
  void take_turn();
  void done(GrpcLink& link);
  bool add(GrpcLink* link);

  Runtime& runtime_;
  LinkEvents& events_;
  std::unique_ptr<Grpc> grpc_;
  Handoff handoff_;
  Mutex mutex_;
  std::unordered_set<GrpcLink*> links_ WEFT_GUARDED_BY(mutex_);
  bool stopping_ WEFT_GUARDED_BY(mutex_) = false;
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> kicked_{false};
  std::unique_ptr<Service> polling_;
};

}  // namespace weft::rpc::inner
