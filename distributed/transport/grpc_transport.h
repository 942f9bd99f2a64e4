// The gRPC transport: messages travel as frames on bidirectional gRPC streams, one stream per pair of
// workers. It listens on TCP. For workers of the same host and user it also listens on a unix socket. The
// socket lies in a folder of the user with mode 0700 (inner/user_folder.h). It is preferred if both ends can
// see it. With the same-host lane such workers send frames over another socket there, without gRPC.
//
// How it is used:
//   auto t = make_grpc_transport(rt, {.id = WorkerId{0}, .listen = "127.0.0.1:0"}, receiver);
//
// Members: the transport welcomes a hello only from a peer and life that add_peer has named. It refuses any
// other hello and does not reveal the right life. It keeps nothing of a refused hello, and the member's
// connections stay as they are. The refused side tries again until its connect_timeout, since it may be added
// meanwhile.
//
// Security: an address beyond loopback needs `tls` or an explicit insecure = true; otherwise listening and
// connecting throw RpcError. With `tls`, every TCP connection is encrypted, both sides show a certificate,
// and it names the worker. Unix sockets stay plain: only processes of the same user can open one. The lane
// also asks the kernel for the user of the other end. A plain loopback listener writes a cookie file into the
// user's folder. It accepts only processes that can read the cookie. A transport connects to no loopback port
// without a cookie, unless `insecure` is set.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// Certificates and key in PEM form, as text or as files; text wins. Files are read when the transport is
/// made, and again at the first connection after they have changed.
struct TlsOptions {
  std::string ca{}, certificate{}, key{};
  std::string ca_file{}, certificate_file{}, key_file{};
  bool require_client_certificate = true;  ///< false needs insecure = true as well
  /// A worker whose name is known must have it as a subject alternative name of its certificate, in both
  /// directions. False: any certificate of the authority is accepted.
  bool check_names = true;
  /// Name expected in other certificates where no worker's name is expected. Empty: the host of the
  /// connection.
  std::string server_name{};
};

/// Options of make_grpc_transport.
struct GrpcOptions {
  WorkerId id{};
  Incarnation incarnation{};           ///< 0: drawn at random
  std::string listen = "127.0.0.1:0";  ///< host:port; port 0: chosen by the system; empty: no TCP
  /// listen on a unix socket too, and prefer the unix sockets of this user's peers on this host
  bool unix_socket = true;
  /// connect to this user's peers on this host by frames over unix sockets, without gRPC, if they also allow
  /// it; needs unix_socket, and has no effect where has_same_host_lane() is false
  bool same_host_lane = true;
  /// Bytes of memory shared with this user's processes of this host, for payloads of 256 KiB and more. The
  /// lane then moves such a payload with one copy. Beyond the limit payloads go through the lane's socket.
  /// One peer gets at most as much as remains for the other peers, so at most half. 0: none, in both
  /// directions; at most 16 GiB.
  int64_t shared_memory_bytes = int64_t{256} << 20;
  /// Longest time for which a thread spins for the next message before it sleeps. A thread spins only after a
  /// short wait, one thread of the process at a time, and yields the processor between two looks. Negative:
  /// 50 us, or none where the process may use only one processor.
  Duration spin = std::chrono::microseconds(-1);
  /// host that peers get instead of the host in `listen`; default for 0.0.0.0: an interface's address
  std::string advertise_host{};
  std::optional<TlsOptions> tls{};
  bool insecure = false;                                 ///< allow plain TCP beyond loopback
  Duration connect_timeout = std::chrono::seconds(30);   ///< for the first connection; then kUnreachable
  Duration reconnect_timeout = std::chrono::seconds(5);  ///< the same after a broken connection
  /// time after which an incoming connection without a welcomed hello is closed
  Duration handshake_timeout = std::chrono::seconds(10);
  /// Most TCP connections without a welcomed hello. A further connection closes an older connection of the
  /// address that has the most. At most an eighth of the files that this process may open.
  int max_unproven = 256;
  /// time after which a connection ends if no byte of an incomplete message has come
  Duration progress_timeout = std::chrono::seconds(10);
  bool admit_strangers = false;  ///< welcomes workers that were not added, as long as they are connected
  Duration keepalive_time = std::chrono::seconds(20);     ///< silence after which a connection is probed
  Duration keepalive_timeout = std::chrono::seconds(10);  ///< time that the answer to a probe may take
  int64_t bulk_frame_bytes = 1 << 20;                     ///< frame size of large messages
  /// waiting threads may poll for messages (Runtime::start_poller); with a same-host lane, for the lane's
  /// messages
  bool shared_poller = true;
  WireLimits limits{};
  uint32_t wire_version = kWireVersion;      ///< version in the hello (tests)
  std::optional<uint64_t> hello_key{};       ///< key in the hello (tests)
  std::optional<std::string> first_frame{};  ///< sent in place of the hello (tests)
};

/// False: weft was built without the same-host lane (the CMake option WEFT_LANE), and gRPC carries all
/// messages. A program needs no change for that. Thread safety: any thread.
WEFT_API bool has_same_host_lane();

/// Makes a transport, listens according to the options, and starts its poller. `receiver` must outlive
/// close().
/// Throws: ValueError for an address that cannot be parsed, and for options out of range. RpcError for an
/// address in use (with host and port), and for an address that needs credentials. RpcError for a folder of
/// sockets that others can open, and for certificates out of date. IoError for an unreadable certificate
/// file. Thread safety: any thread.
WEFT_API std::shared_ptr<Transport> make_grpc_transport(std::shared_ptr<Runtime> runtime, GrpcOptions options,
                                                        Receiver& receiver);

}  // namespace weft::rpc
