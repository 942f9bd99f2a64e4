// A process that speaks on sockets of the same-host lane by itself: it connects or listens, and writes any
// bytes. It blocks, and has no thread.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/frame.h>
#include <weft/distributed/transport/transport.h>

namespace weft::rpc {

/// The path of a worker's socket of the lane; empty: it has none.
inline std::string lane_path_of(const Transport& transport) {
  for (const std::string& a : transport.addresses().addresses)
    if (is_lane_address(a)) return a.substr(5);
  return "";
}

/// A frame with its length before it.
inline std::string lane_frame(const std::string& bytes) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bytes.size() >> (8 * i));
  return out + bytes;
}
inline std::string lane_hello(const inner::Hello& hello) {
  return lane_frame(inner::encode_hello(inner::RecordType::kHello, hello));
}

class RawLane {
 public:
  /// Connects to a socket; is_open tells whether that was allowed.
  explicit RawLane(const std::string& path, const std::string& bytes = {}) : fd_(make()) {
    const sockaddr_un to = address(path);
    open_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    write(bytes);
  }
  /// Takes the next connection of a listening socket.
  static RawLane accept_from(int listener) {
    return RawLane(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  }
  ~RawLane() {
    if (fd_ >= 0) close(fd_);
  }
  RawLane(RawLane&& other) noexcept : fd_(std::exchange(other.fd_, -1)), open_(other.open_) {}
  RawLane& operator=(RawLane&&) = delete;

  static int listen_at(const std::string& path) {
    const int fd = make();
    const sockaddr_un at = address(path);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && listen(fd, 10) == 0) return fd;
    close(fd);
    return -1;
  }

  int fd() const { return fd_; }
  bool is_open() const { return open_; }
  /// False: the other end has closed.
  bool write(const std::string& bytes) {
    for (size_t at = 0; open_ && at < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) open_ = false;
      else at += static_cast<size_t>(n);
    }
    return open_;
  }
  /// Writes bytes, and passes files with the first of them.
  bool write_with_files(const std::string& bytes, const std::vector<int>& files) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(files.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    *head = {CMSG_LEN(files.size() * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(head), files.data(), files.size() * sizeof(int));
    return open_ = sendmsg(fd_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  /// The bytes until `count` have come or the other end has closed. Gives up after a minute of silence.
  std::string read(size_t count) {
    std::string all;
    while (all.size() < count) {
      char bytes[65536];
      pollfd one{fd_, POLLIN, 0};
      if (poll(&one, 1, 60'000) <= 0) return all;
      const ssize_t n = recv(fd_, bytes, std::min(sizeof bytes, count - all.size()), 0);
      if (n <= 0) {
        open_ = false;
        return all;
      }
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }
  /// The next frame; empty at the end.
  std::string read_frame() {
    const std::string begin = read(4);
    if (begin.size() < 4) return "";
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i)
      length |= static_cast<size_t>(static_cast<unsigned char>(begin[i])) << (8 * i);
    return read(length);
  }
  /// Reads until the other end has closed. False: nothing came for a minute.
  bool read_to_end() {
    while (open_ && !read(65536).empty()) {
    }
    return !open_;
  }

 private:
  explicit RawLane(int fd) : fd_(fd), open_(fd >= 0) {}
  static int make() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_un address(const std::string& path) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, path.data(), std::min(path.size(), sizeof at.sun_path - 1));
    return at;
  }

  int fd_;
  bool open_ = false;
};

}  // namespace weft::rpc
