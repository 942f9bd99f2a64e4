// The inspection service: a gRPC server with its own port, through which any gRPC client inspects this worker
// and its group. It is a separate library, weft::distributed_inspection. Only the program itself starts such
// a server.
//
//   rpc::InspectionServer inspection;                       // a unix socket that this user can open
//   std::puts(inspection.address().c_str());                // "unix:/run/user/1000/weft/8f..."
//   rpc::InspectionServer far({.address = "0.0.0.0:7070", .tls = tls, .allow = {"operator"}});
//
// inspection.proto has the methods: members, counters, open calls, waits, latencies, trace. All of them read.
// The server also has gRPC's services for health and reflection. A unix socket is a file in a folder with
// mode
// 0700. A TCP port, the loopback interface included, needs TLS with certificates of the clients, or an
// explicit insecure = true. Calls run on threads of the server and never on those of the group.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/grpc_transport.h>

namespace weft::rpc {

/// Options of an InspectionServer.
struct InspectionOptions {
  /// "host:port"; port 0: chosen by the system. Empty: a unix socket in this user's folder.
  std::string address{};
  /// For an address with a port. check_names and server_name have no meaning here. Certificate files are read
  /// again after they have changed.
  std::optional<TlsOptions> tls{};
  /// allows a port without TLS, and TLS without client certificates
  bool insecure = false;
  /// The clients that may call: one of these names must be a subject alternative name of the certificate.
  /// Empty: every certificate of the authority may call.
  std::vector<std::string> allow{};
  int max_calls = 8;  ///< calls at a time; further calls are refused. Only one at a time reads a trace
  Duration max_call_time = std::chrono::seconds(30);  ///< limit of a call; the client's own may be shorter
  /// age at which a connection is ended, and the client connects again
  Duration max_connection_age = std::chrono::minutes(10);
};

/// Serves the inspection from its construction to its destruction. It shows the agent of the scope in which
/// it is made (AgentScope). Made outside any such scope, it shows the process's default agent at the time of
/// each call, so it may be made before init_rpc. Thread safety: any thread.
class WEFT_API InspectionServer {
 public:
  /// Listens and serves. Throws: ValueError for an address that cannot be parsed, limits out of range, or an
  /// access list without certificates. RpcError for an address in use, a port without credentials, and a
  /// folder of sockets that others can open. IoError for an unreadable certificate file.
  explicit InspectionServer(InspectionOptions options = {});
  /// Ends the open calls. It waits for calls that ask other workers, at most max_call_time.
  ~InspectionServer();
  InspectionServer(const InspectionServer&) = delete;

  /// The port; 0 for a unix socket.
  int port() const;
  /// "host:port" or "unix:/path", as clients write it.
  const std::string& address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::rpc
