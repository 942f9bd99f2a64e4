// The ends of gRPC's connections: certificates and credentials, settings, channels, the server, and the
// proofs that the other end of a call has shown. Internal to the gRPC transport; it needs no gRPC header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/link.h>
#include <weft/distributed/transport/inner/spinner.h>

struct grpc_call;
struct grpc_channel;
struct grpc_completion_queue;
struct grpc_event;
struct grpc_server;
namespace grpc_core {
class TcpServerFdHandler;
}

namespace weft::rpc::inner {

/// The certificates of a transport as text. Files are read again once they have changed.
/// Thread safety: every member may be called from any thread.
class WEFT_API TlsFiles {
 public:
  /// Throws: IoError for an unreadable file; RpcError for a missing part and for certificates out of date.
  explicit TlsFiles(TlsOptions options);
  /// The certificates now. Files that cannot be read leave those before.
  std::shared_ptr<const TlsOptions> current();
  /// The text that this side's certificate or the authority's is out of date; empty: both are valid.
  std::string trouble();

 private:
  /// Sizes and times of the files.
  std::string stamp() const;

  const TlsOptions given_;
  Mutex mutex_;
  std::string stamp_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<const TlsOptions> read_ WEFT_GUARDED_BY(mutex_);
};

/// A channel for one connection; the caller destroys it. `tls`: null for a plain channel. `name`: expected in
/// the certificate in place of the host, if not empty. Throws: RpcError.
grpc_channel* make_channel(const std::string& address, const std::string& name, const TlsOptions* tls,
                           const GrpcOptions& options);

/// gRPC may lose the wake-up of a thread for which another one polls, as when a call is cancelled. So no wait
/// for an event is longer.
inline constexpr Duration kLongestWait = std::chrono::seconds(1);
/// Stores the next event of a queue, or a timeout after that time or kLongestWait.
void next_event(grpc_completion_queue* queue, Duration left, grpc_event& event);
/// Stores the next event of a queue, or a timeout at the deadline or after kLongestWait.
void next_event(grpc_completion_queue* queue, Spinner& spinner, Runtime& runtime, TimePoint deadline,
                grpc_event& event);

/// The server of a transport. It listens on unix sockets itself. TCP connections come from a listener of
/// weft's, which gRPC lacks a limit for.
class GrpcServer {
 public:
  GrpcServer(const GrpcOptions& options, grpc_completion_queue* queue);
  /// After the shutdown of the server has been notified.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;

  grpc_server* get() const { return server_; }
  /// Listens; before the start of the server. Throws: RpcError that names the address.
  void listen(const std::string& unix_address);
  /// Makes the server ready for connections of another listener, before its start. `tls`: null for plain
  /// ones; it is asked for certificates at each handshake, and must outlive the server. Throws: RpcError.
  void expect_connections(TlsFiles* tls);
  /// Takes a connected socket, which must not block, between start and shutdown of the server. Any thread.
  void take(int listener, int connection);

 private:
  grpc_server* server_ = nullptr;
  grpc_core::TcpServerFdHandler* handler_ = nullptr;  // gRPC sets it through an argument of the server
};

/// The proofs of a call's other end: of an accepted call at once, of an outgoing one after its first message.
PeerProof proof_of(grpc_call* call);

}  // namespace weft::rpc::inner
