// The TCP listener: sockets, the accepting thread and the table of unproven connections. When the turn of a
// connection comes, gRPC gets a copy of its descriptor, and the table keeps the original. The original shows
// the end of the connection, since gRPC shuts a socket down before it closes it. It can also end the
// connection early.
#include <weft/distributed/transport/inner/tcp_listener.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>

#include <weft/distributed/runtime/error.h>

namespace weft::rpc::inner {
namespace {

constexpr uint64_t kWakeId = 0;          // of the eventfd; the listening sockets follow
constexpr uint64_t kFirstHeld = 1000;    // of connections
constexpr int kAcceptsPerTurn = 32;      // then the events of other connections have their turn
constexpr double kFadeSeconds = 2;       // over which connections that speak are counted
constexpr int kNoFilesPauseMs = 50;      // after which a listener without files tries again
constexpr size_t kFilesPerUnproven = 8;  // at most this part of the process's files is for them
constexpr char kTlsHandshake = 0x16;     // the first byte of a client that speaks TLS
/// To a client that does not. gRPC's client names an answer of HTTP/1 as such.
constexpr std::string_view kSpeakTls =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 41\r\n\r\n"
    "This port speaks TLS, with certificates.\n";

TcpOrigin origin_of_socket(const sockaddr_storage& from) {
  TcpOrigin out;
  if (from.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    std::memcpy(out.address.data(), &v6.sin6_addr, out.address.size());
    out.port = ntohs(v6.sin6_port);
  } else if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    out.address[10] = out.address[11] = 0xff;
    std::memcpy(out.address.data() + 12, &v4.sin_addr, 4);
    out.port = ntohs(v4.sin_port);
  }
  return out;
}

/// gRPC writes the brackets and the scope of an IPv6 address as %5B, %5D and %25.
std::string without_escapes(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string next = text.substr(i, 3);
    if (next == "%5B" || next == "%5D" || next == "%25") {
      out += next == "%5B" ? '[' : next == "%5D" ? ']' : '%';
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void watch(int poll, int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

/// True if the first byte that waits is not one of TLS.
bool speaks_plainly(int fd) {
  char first = 0;
  return recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && first != kTlsHandshake;
}

/// Reads the bytes that wait and drops them. False: the other side has ended.
bool drop_bytes(int fd) {
  char bytes[4096];
  for (int i = 0; i < 16; ++i) {
    const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
  }
  return true;
}

ListenerOptions fitted(ListenerOptions options) {
  options.max_unproven = most_unproven(options.max_unproven);
  return options;
}

}  // namespace

// They need two files each, and others need files too.
size_t most_unproven(size_t asked) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return asked;
  return std::clamp<size_t>(asked, 1, std::max<size_t>(1, files.rlim_cur / kFilesPerUnproven));
}

std::optional<TcpOrigin> origin_of(const std::string& peer) {
  const size_t colon = peer.find(':');
  const std::string scheme = peer.substr(0, colon);
  if (scheme != "ipv4" && scheme != "ipv6") return std::nullopt;
  HostPort at;
  try {
    at = parse_host_port(without_escapes(peer.substr(colon + 1)));
  } catch (const ValueError&) {
    return std::nullopt;
  }
  TcpOrigin out;
  out.port = at.port;
  const std::string host = at.host.substr(0, at.host.find('%'));
  if (scheme == "ipv6")
    return inet_pton(AF_INET6, host.c_str(), out.address.data()) == 1 ? std::optional(out) : std::nullopt;
  out.address[10] = out.address[11] = 0xff;
  return inet_pton(AF_INET, host.c_str(), out.address.data() + 12) == 1 ? std::optional(out) : std::nullopt;
}

TcpListener::TcpListener(const HostPort& at, const ListenerOptions& options)
    : options_(fitted(options)),
      port_(at.port),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_(kFirstHeld) {
  try {
    if (poll_ < 0 || wake_ < 0) throw RpcError(str("cannot listen: ", std::strerror(errno)));
    watch(poll_, wake_, EPOLLIN, kWakeId);
    listen(at);
  } catch (...) {
    close_sockets();
    throw;
  }
}

void TcpListener::close() {
  stop();
  {
    MutexLock lock(mutex_);
    for (auto at = held_.begin(); at != held_.end();) at = remove(at, true);
  }
  close_sockets();
}

void TcpListener::close_sockets() {
  for (const int fd : std::exchange(sockets_, {})) ::close(fd);
  for (int* const fd : {&wake_, &poll_})
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

/// Listens at all addresses of the host, at one port.
void TcpListener::listen(const HostPort& at) {
  int error = 0;
  if (is_wildcard_host(at.host)) {  // one socket for both families, where there are both
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    if (!listen_at(&v6, sizeof v6, AF_INET6)) {
      error = errno;
      if (error != EADDRINUSE && at.host != "::" && listen_at(&v4, sizeof v4, AF_INET)) error = 0;
    }
  } else {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* all = nullptr;
    if (const int unknown = getaddrinfo(at.host.c_str(), nullptr, &hints, &all); unknown != 0)
      throw RpcError(str("cannot listen on ", to_string(at), ": ", gai_strerror(unknown)));
    for (const addrinfo* one = all; one != nullptr; one = one->ai_next)
      if (!listen_at(one->ai_addr, one->ai_addrlen, one->ai_family)) error = errno;
    freeaddrinfo(all);
  }
  if (!sockets_.empty()) return;
  throw RpcError(str("cannot listen on ", to_string(at), ": ",
                     error == EADDRINUSE      ? "the port is in use"
                     : error == EADDRNOTAVAIL ? "the host is not one of this machine's"
                                              : std::strerror(error)));
}

/// False, with errno: no socket listens there.
bool TcpListener::listen_at(const void* address, size_t size, int family) {
  sockaddr_storage at{};
  std::memcpy(&at, address, std::min(size, sizeof at));
  uint16_t& port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port
                                      : reinterpret_cast<sockaddr_in&>(at).sin_port;
  port = htons(port_);
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const int on = 1, off = 0;
  const auto silence = static_cast<unsigned>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.user_timeout).count());
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // connections have it from their listener
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
  socklen_t length = sizeof at;
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), static_cast<socklen_t>(size)) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return false;
  }
  port_ = ntohs(port);
  sockets_.push_back(fd);
  return true;
}

void TcpListener::start(Runtime& runtime, Take take) {
  runtime_ = &runtime;
  take_ = std::move(take);
  for (size_t i = 0; i < sockets_.size(); ++i) watch(poll_, sockets_[i], EPOLLIN, kWakeId + 1 + i);
  {
    MutexLock lock(mutex_);
    last_ = runtime.now();
    next_take_ = last_ - (options_.takes_at_once - 1) * options_.take_pause;
  }
  service_ = runtime.start_service("listener", [this] { serve(); });
}

void TcpListener::wake() const {
  const uint64_t one = 1;
  std::ignore = write(wake_, &one, sizeof one);
}

void TcpListener::stop() {
  if (service_ == nullptr) return;
  stopping_.store(true);
  wake();
  service_->join();
  service_.reset();
}

void TcpListener::serve() {
  std::array<epoll_event, 64> events;
  while (!stopping_.load()) {
    const int n = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), patience());
    for (int i = 0; i < n && !stopping_.load(); ++i) {
      const auto& event = events[static_cast<size_t>(i)];
      const uint64_t id = event.data.u64;
      if (uint64_t wakes; id == kWakeId) std::ignore = read(wake_, &wakes, sizeof wakes);
      else if (id < kFirstHeld) accept_from(sockets_[id - kWakeId - 1]);
      else on_event(id, event.events);
    }
    try {
      while (!stopping_.load() && take_next()) {
      }
    } catch (const std::bad_alloc&) {  // of the function that takes connections; this one ends by its time
    }
    close_surplus();
    close_late();
  }
}

void TcpListener::accept_from(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      {
        MutexLock lock(mutex_);
        if (close_one()) continue;
      }
      pollfd wake{wake_, POLLIN, 0};  // the connection waits until a file is free
      poll(&wake, 1, kNoFilesPauseMs);
      return;
    }
    MutexLock lock(mutex_);
    const uint64_t id = next_++;
    try {
      while (held_.size() >= options_.max_unproven) close_one();
      const TcpOrigin origin = origin_of_socket(from);
      size_t& of_address = each_[origin.address];
      held_.emplace(id, Held{fd, State::kSilent, listener, origin, runtime_->now()});
      ++of_address;
    } catch (const std::bad_alloc&) {  // no memory for this connection
      ::close(fd);
      continue;
    }
    watch(poll_, fd, EPOLLIN | EPOLLRDHUP, id);
  }
}

void TcpListener::note_arrival(TimePoint now) {
  const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  arrivals_ = arrivals_ * std::exp(-seconds / kFadeSeconds) + 1;
  const std::chrono::duration<double> pause(options_.arrivals_per_take * kFadeSeconds / arrivals_);
  pause_ = std::min(options_.take_pause, std::chrono::duration_cast<Duration>(pause));
}

void TcpListener::on_event(uint64_t id, uint32_t events) {
  MutexLock lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end()) return;  // it was proven or closed meanwhile
  Held& held = found->second;
  if (held.state == State::kTold) {
    if (!drop_bytes(held.fd)) remove(found, true);
    return;
  }
  if (held.state == State::kSilent && options_.tls && speaks_plainly(held.fd)) {
    const bool told = drop_bytes(held.fd) &&  // the end of unread bytes would be a reset
                      send(held.fd, kSpeakTls.data(), kSpeakTls.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0 &&
                      shutdown(held.fd, SHUT_WR) == 0;
    held.state = State::kTold;
    if (!told) remove(found, true);
    return;
  }
  if (held.state != State::kSilent || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    remove(found, true);
    return;
  }
  epoll_ctl(poll_, EPOLL_CTL_DEL, held.fd, nullptr);
  watch(poll_, held.fd, EPOLLRDHUP, id);
  held.state = State::kReady;
  ++ready_;
  note_arrival(runtime_->now());
}

bool TcpListener::take_next() {
  int copy = -1, listener = -1;
  {
    MutexLock lock(mutex_);
    if (ready_ == 0) return false;
    const TimePoint now = runtime_->now();
    next_take_ = std::max(next_take_, now - (options_.takes_at_once - 1) * pause_);
    if (next_take_ > now && ready_ > 1) return false;
    const bool fewest = (++turn_ & 1) != 0;
    auto first = held_.end();
    size_t of_first = 0;
    for (auto at = held_.begin(); at != held_.end(); ++at) {
      if (at->second.state != State::kReady) continue;
      const size_t of_this = fewest ? each_.find(at->second.from.address)->second : 0;
      if (first == held_.end() || of_this < of_first) first = at, of_first = of_this;
    }
    // gRPC gets the copy and closes it, which the thread sanitizer does not see
    copy = fcntl(first->second.fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return close_one();
    --ready_;
    first->second.state = State::kTaken;
    next_take_ = std::min(next_take_, now) + pause_;
    listener = first->second.listener;
  }
  take_(listener, copy);
  return true;
}

int TcpListener::patience() const {
  MutexLock lock(mutex_);
  if (held_.empty()) return -1;
  TimePoint next = held_.begin()->second.since + options_.prove_within;
  if (ready_ > 0) next = std::min(next, next_take_);
  const Duration left = next - runtime_->now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1000 * 3600));
}

void TcpListener::close_surplus() {
  MutexLock lock(mutex_);
  for (auto at = held_.begin(); ready_ > options_.max_waiting;) {
    if (at->second.state != State::kReady) {
      ++at;
      continue;
    }
    at = remove(at, true);
    ++closed_;
  }
}

void TcpListener::close_late() {
  MutexLock lock(mutex_);
  while (!held_.empty() && held_.begin()->second.since + options_.prove_within <= runtime_->now()) {
    remove(held_.begin(), true);
    ++closed_;
  }
}

bool TcpListener::close_one() {
  if (held_.empty()) return false;
  const auto most = std::max_element(each_.begin(), each_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  size_t nth = runtime_->random() % ((most->second + 1) / 2);  // by age
  auto at = held_.begin();
  while (at->second.from.address != most->first || nth-- > 0) ++at;
  remove(at, true);
  ++closed_;
  return true;
}

TcpListener::HeldById::iterator TcpListener::remove(HeldById::iterator at, bool ends) {
  const Held& held = at->second;
  if (held.state == State::kReady) --ready_;
  if (const auto own = each_.find(held.from.address); --own->second == 0) each_.erase(own);
  epoll_ctl(poll_, EPOLL_CTL_DEL, held.fd, nullptr);
  if (ends) shutdown(held.fd, SHUT_RDWR);
  ::close(held.fd);
  return held_.erase(at);
}

void TcpListener::prove(const std::string& peer) {
  const auto from = origin_of(peer);
  if (!from) return;
  MutexLock lock(mutex_);
  for (auto at = held_.begin(); at != held_.end(); ++at) {
    if (at->second.state != State::kTaken || at->second.from != *from) continue;
    remove(at, false);
    next_take_ -= pause_;
    if (ready_ > 0) wake();
    return;
  }
}

UnprovenCounters TcpListener::counters() const {
  MutexLock lock(mutex_);
  return {static_cast<int64_t>(held_.size()), closed_};
}

}  // namespace weft::rpc::inner
