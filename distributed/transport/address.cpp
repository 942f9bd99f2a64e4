// Addresses as text, and the queries of address.h to this machine: host key, interfaces, free ports.
// A free port stays bound while its ReservedPort lives, so the system gives it to no other process.
#include <weft/distributed/transport/address.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <utility>

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

HostPort parse_host_port(const std::string& text) {
  const auto fail = [&](const char* why) -> HostPort {
    throw ValueError(str("address '", text, "': ", why, " (want host:port)"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return fail("no port");
  HostPort result;
  result.host = text.substr(0, colon);
  if (!result.host.empty() && result.host.front() == '[') {
    if (result.host.back() != ']') return fail("an IPv6 address without its closing bracket");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return fail("an IPv6 address needs brackets");
  }
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, result.port);
  if (error != std::errc() || at != end) return fail("the port is no number from 0 to 65535");
  return result;
}

std::string to_string(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

bool is_unix_address(const std::string& address) { return address.rfind("unix:", 0) == 0; }
bool is_lane_address(const std::string& address) {
  return is_unix_address(address) && address.ends_with(kLaneEnd);
}

bool is_loopback_host(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr v4{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

bool is_wildcard_host(const std::string& host) { return host.empty() || host == "0.0.0.0" || host == "::"; }

std::string why_unresolved(const std::string& host) {
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (error == 0) freeaddrinfo(found);
  return error == 0 ? "" : gai_strerror(error);
}

const std::string& host_key() {
  static const std::string key = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat info {};
    if (boot.empty() || stat("/proc/self/ns/net", &info) != 0) return std::string();
    return str(boot, ":", static_cast<uint64_t>(info.st_ino));
  }();
  return key;
}

std::string first_interface_address() {
  std::string found = "127.0.0.1";
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_in address{};
    std::memcpy(&address, i->ifa_addr, sizeof address);
    char text[INET_ADDRSTRLEN] = {};
    if (inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) != nullptr) {
      found = text;
      break;
    }
  }
  freeifaddrs(list);
  return found;
}

void probe_port(const HostPort& address) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(address.port);
  const std::string host = address.host == "localhost" ? "127.0.0.1"
                           : address.host.empty()      ? "0.0.0.0"
                                                       : address.host;
  const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if (address.port == 0 || (!is_v4 && inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1)) return;
  const int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool good = is_v4 ? bind(fd, reinterpret_cast<sockaddr*>(&v4), sizeof v4) == 0
                          : bind(fd, reinterpret_cast<sockaddr*>(&v6), sizeof v6) == 0;
  const int error = errno;
  close(fd);
  if (good) return;
  throw RpcError(str("cannot listen on ", to_string(address), ": ",
                     error == EADDRINUSE ? "the port is in use" : std::strerror(error)));
}

ReservedPort::ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool good = fd_ >= 0 && setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!good) {
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    throw RpcError(str("no free port: ", std::strerror(error)));
  }
  port_ = ntohs(address.sin_port);
}
ReservedPort::~ReservedPort() {
  if (fd_ >= 0) close(fd_);
}
ReservedPort::ReservedPort(ReservedPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

uint16_t free_port() { return ReservedPort().port(); }

}  // namespace weft::rpc
