// Addresses of workers as text: "host:port", "[::1]:port", "unix:/path", "unix-abstract:name". Pure functions but for the last four,
// which ask the system. Thread safety: all may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include <weft/kernels/error.h>

namespace weft::rpc {

struct HostPort {
  std::string host;  ///< without brackets
  uint16_t port = 0;
};

/// Splits "host:port". Throws: ValueError naming the text.
WEFT_API HostPort parse_host_port(const std::string& text);
/// Joins them again; an IPv6 address gets its brackets.
WEFT_API std::string to_string(const HostPort& address);

WEFT_API bool is_unix_address(const std::string& address);
/// True for 127.0.0.0/8, ::1 and localhost.
WEFT_API bool is_loopback_host(const std::string& host);
/// True for 0.0.0.0, :: and the empty host.
WEFT_API bool is_wildcard_host(const std::string& host);

/// Names this machine and network namespace: workers with equal keys reach each other by abstract unix sockets.
WEFT_API const std::string& host_key();
/// The address of this machine's first interface that is up and not loopback; "127.0.0.1" if there is none.
WEFT_API std::string first_interface_address();
/// Throws RpcError naming host and port if that cannot be listened on now; without effect for names that are no numbers.
WEFT_API void probe_port(const HostPort& address);
/// A TCP port of the loopback interface that the system gives to nobody else as long as this lives, while a listener that names it
/// (with SO_REUSEADDR, as gRPC's do) can still open it: for handing a port to a child process without a race.
class WEFT_API ReservedPort {
 public:
  /// Throws: RpcError.
  ReservedPort();
  ~ReservedPort();
  ReservedPort(ReservedPort&& other) noexcept;
  ReservedPort& operator=(ReservedPort&&) = delete;
  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

/// A free TCP port of the loopback interface: bound and released, so another process may take it before it is used; prefer port 0
/// in an address where that is possible. Throws: RpcError.
WEFT_API uint16_t free_port();

}  // namespace weft::rpc
