// The real transport: messages as frames on bidirectional gRPC streams, one stream per pair of workers. Listens on TCP and, for
// workers of the same host, on an abstract unix socket, which is preferred where both ends can see it.
//
// How it is used:
//   auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .listen = "127.0.0.1:0"}, receiver);
//
// Security: loopback and unix sockets need nothing. Any other address needs `tls` (both sides show a certificate unless
// require_client_certificate is off) or an explicit insecure = true; otherwise listening and connecting throw RpcError. With `tls`
// set, every TCP connection is encrypted; unix sockets stay plain: who can open one is on this machine already.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/transport.h>

namespace weft::rpc {

/// Certificates in PEM form, as text or as files (text wins). Files are read when the transport is made.
struct TlsOptions {
  std::string ca{}, certificate{}, key{};
  std::string ca_file{}, certificate_file{}, key_file{};
  bool require_client_certificate = true;
  std::string server_name{};  ///< expected in the peers' certificates instead of the host they are reached at
};

struct GrpcOptions {
  WorkerId id{};
  Incarnation incarnation{};           ///< 0: drawn at random
  std::string listen = "127.0.0.1:0";  ///< host:port; port 0 is chosen by the system; empty: not on TCP
  bool unix_socket = true;  ///< listen on a unix socket too, and prefer those of peers on this host
  std::string
      advertise_host{};  ///< told to peers instead of the host in `listen`; default for 0.0.0.0: an interface's address
  std::optional<TlsOptions> tls{};
  bool insecure = false;                                  ///< allow plain TCP beyond loopback
  Duration connect_timeout = std::chrono::seconds(30);    ///< first connection to a peer, until kUnreachable
  Duration reconnect_timeout = std::chrono::seconds(5);   ///< the same after a break
  Duration handshake_timeout = std::chrono::seconds(10);  ///< for a connection to us to say its hello
  Duration keepalive_time = std::chrono::seconds(20);     ///< silence after which a connection is probed
  Duration keepalive_timeout = std::chrono::seconds(10);  ///< and how long an answer may take
  int64_t bulk_frame_bytes = 1 << 20;                     ///< large messages go out in frames of this size
  bool shared_poller = true;  ///< waiting threads may poll (Runtime::start_poller)
  WireLimits limits{};
  uint32_t wire_version = kWireVersion;      ///< what the hello says (tests)
  std::optional<std::string> first_frame{};  ///< sent in place of the hello (tests)
};

/// Listens and starts its thread. `receiver` must outlive close().
/// Throws: ValueError for an address that cannot be parsed; RpcError if it cannot be listened on (naming host and port) or needs
/// credentials; IoError for an unreadable certificate file.
WEFT_API std::shared_ptr<Transport> make_grpc_transport(std::shared_ptr<Runtime> runtime, GrpcOptions options,
                                                        Receiver& receiver);

}  // namespace weft::rpc
