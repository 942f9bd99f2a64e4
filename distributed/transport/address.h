// Addresses of workers as text: "host:port", "[::1]:port", "unix:/path". The functions from why_unresolved on
// ask the system; the functions above are pure. Thread safety: all may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include <weft/kernels/error.h>

namespace weft::rpc {

/// A host name or IP address with a port.
struct HostPort {
  std::string host;  ///< without brackets
  uint16_t port = 0;
};

/// Splits "host:port". Throws: ValueError that quotes the text.
WEFT_API HostPort parse_host_port(const std::string& text);
/// "host:port", with brackets around an IPv6 address.
WEFT_API std::string to_string(const HostPort& address);

/// The suffix of the socket path of a same-host lane. The address is a unix address, "unix:/path.lane".
inline constexpr char kLaneEnd[] = ".lane";
/// True for "unix:...".
WEFT_API bool is_unix_address(const std::string& address);
/// True for "unix:....lane".
WEFT_API bool is_lane_address(const std::string& address);
/// True for 127.0.0.0/8, ::1 and localhost.
WEFT_API bool is_loopback_host(const std::string& host);
/// True for 0.0.0.0, :: and the empty host.
WEFT_API bool is_wildcard_host(const std::string& host);

/// The system's error when it cannot resolve `host` ("Name or service not known"); empty when it can. May
/// block on a DNS query.
WEFT_API std::string why_unresolved(const std::string& host);

/// A key of this machine and network namespace. Unix sockets connect only workers with equal keys.
WEFT_API const std::string& host_key();
/// The address of this machine's first interface that is up and not loopback, else "127.0.0.1".
WEFT_API std::string first_interface_address();
/// Checks that a numeric address can be listened on now; host names are not checked.
/// Throws: RpcError that names host and port.
WEFT_API void probe_port(const HostPort& address);
/// Reserves a TCP port of the loopback interface while it lives, to hand the port to a child process without
/// a race. The system gives the port to no other socket. A listener that names it with SO_REUSEADDR, as
/// gRPC's do, can still open it. Thread safety: as a plain value.
class WEFT_API ReservedPort {
 public:
  /// Throws: RpcError when the system has no port left.
  ReservedPort();
  ~ReservedPort();
  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&&) = delete;
  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

/// A free TCP port of the loopback interface. It is bound and released, so another process may take it before
/// its use. Prefer port 0 in an address where possible. Throws: RpcError when the system has no port left.
WEFT_API uint16_t free_port();

}  // namespace weft::rpc
