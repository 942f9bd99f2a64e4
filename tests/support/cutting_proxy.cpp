// The proxy's thread (cutting_proxy.h): it looks at its sockets every millisecond at the latest.
#include "support/cutting_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <string>
#include <system_error>

namespace weft::test {

using Clock = std::chrono::steady_clock;

namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

/// One direction of a connection.
struct CuttingProxy::Pipe {
  struct Piece {
    Clock::time_point due;
    std::string bytes;
  };
  int from = -1, to = -1;
  bool ended = false;  // nothing more comes from `from`
  std::deque<Piece> pieces{};
  size_t waiting = 0;  // bytes in `pieces`

  bool full() const { return waiting > (size_t{4} << 20); }
  /// Reads all bytes that have come; false: the connection has failed.
  bool read_some(int delay) {
    std::string bytes(1 << 16, '\0');
    const ssize_t n = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return ended = true;
    bytes.resize(static_cast<size_t>(n));
    waiting += bytes.size();
    pieces.push_back({Clock::now() + std::chrono::milliseconds(delay), std::move(bytes)});
    return true;
  }
  /// Writes the pieces that are due; false: the connection has failed.
  bool write_some(std::atomic<int64_t>& count) {
    while (!pieces.empty() && pieces.front().due <= Clock::now()) {
      std::string& bytes = pieces.front().bytes;
      const ssize_t n = send(to, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      count += n;
      waiting -= static_cast<size_t>(n);
      if (static_cast<size_t>(n) < bytes.size()) return bytes.erase(0, static_cast<size_t>(n)), true;
      pieces.pop_front();
    }
    if (pieces.empty() && ended) shutdown(to, SHUT_WR);
    return true;
  }
};

CuttingProxy::CuttingProxy(uint16_t target)
    : target_(target), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0 || listen(listener_, 64) != 0)
    throw std::system_error(errno, std::generic_category(), "a proxy cannot listen");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

CuttingProxy::~CuttingProxy() {
  end_ = true;
  thread_.join();
  close(listener_);
}

void CuttingProxy::serve() {
  const auto drop = [this](size_t first) {  // both directions of the connection of pipes_[first]
    close(pipes_[first]->from), close(pipes_[first]->to);
    pipes_.erase(pipes_.begin() + static_cast<std::ptrdiff_t>(first),
                 pipes_.begin() + static_cast<std::ptrdiff_t>(first) + 2);
  };
  while (!end_) {
    std::vector<pollfd> wanted{{listener_, POLLIN, 0}};
    for (const auto& pipe : pipes_)
      if (!pipe->ended && !pipe->full()) wanted.push_back({pipe->from, POLLIN, 0});
    poll(wanted.data(), wanted.size(), 1);
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0) {
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = loopback(target_);
      const int on = 1;
      if (cut_ || connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        close(client), close(server);
      } else {
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pipes_.push_back(std::make_unique<Pipe>(Pipe{client, server}));
        pipes_.push_back(std::make_unique<Pipe>(Pipe{server, client}));
        ++connections_;
      }
    }
    for (size_t i = 0; i + 1 < pipes_.size();) {
      bool works = !cut_;
      for (size_t side = i; works && side < i + 2; ++side) {
        Pipe& pipe = *pipes_[side];
        if (!pipe.ended && !pipe.full()) works = pipe.read_some(delay_ms_);
        if (works && !held_ && bytes_ < hold_at_) works = pipe.write_some(bytes_);
      }
      const bool done = pipes_[i]->ended && pipes_[i + 1]->ended && pipes_[i]->pieces.empty() &&
                        pipes_[i + 1]->pieces.empty();
      if (!works || done) drop(i);
      else i += 2;
    }
  }
  while (!pipes_.empty()) drop(0);
}

}  // namespace weft::test
