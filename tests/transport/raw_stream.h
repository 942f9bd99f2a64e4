// A stranger that speaks HTTP/2 by itself over one TCP connection. It opens one stream of the gRPC transport
// with any hello, tries to open more, and sends bytes as far as the other end lets it. It blocks, and has no
// thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include <weft/distributed/transport/address.h>

namespace weft::rpc {

class RawStream {
 public:
  /// Connects, and opens a stream whose metadata has the hello. The connection may be refused: see is_open.
  RawStream(const HostPort& at, const std::string& hello)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(at.port);
    inet_pton(AF_INET, at.host.c_str(), &to.sin_addr);
    open_ = fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
    for (const auto& [name, value] : {std::pair<const char*, std::string>{":method", "POST"},
                                      {":scheme", "http"},
                                      {":path", "/weft.Transport/Stream"},
                                      {":authority", "x"},
                                      {"te", "trailers"},
                                      {"content-type", "application/grpc"},
                                      {"weft-hello-bin", base64(hello)}})
      fields_ += std::string(1, '\0') + text(name) + text(value);
    put("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "") + frame(1, 4, 1, fields_));
  }
  ~RawStream() {
    if (fd_ >= 0) close(fd_);
  }
  RawStream(const RawStream&) = delete;

  bool is_open() const { return open_; }
  bool stream_ended() const { return ended_; }
  int64_t sent() const { return sent_; }

  /// Opens another stream with the same hello, once the other end's settings have come and hold for this one.
  void open_another(int silence_ms) {
    while (open_ && !settled_)
      if (!read_some(silence_ms)) return;
    put(frame(1, 4, next_stream_, fields_));
    next_stream_ += 2;
  }
  /// Sends `bytes` of a message until they are gone, the stream has ended, or nothing comes for `silence`.
  void send_data(std::string bytes, int silence_ms) {
    while (open_ && !ended_ && !bytes.empty()) {
      const auto n = static_cast<size_t>(
          std::min({static_cast<int64_t>(bytes.size()), stream_window_, connection_window_, int64_t{16384}}));
      if (n == 0) {
        if (!read_some(silence_ms)) return;
        continue;
      }
      put(frame(0, 0, 1, bytes.substr(0, n)));
      bytes.erase(0, n);
      stream_window_ -= static_cast<int64_t>(n), connection_window_ -= static_cast<int64_t>(n);
      sent_ += static_cast<int64_t>(n);
      read_some(0);
    }
  }
  /// Reads until the stream or the connection has ended. False: nothing came for `silence`.
  bool read_to_end(int silence_ms) {
    while (open_ && !ended_)
      if (!read_some(silence_ms)) return false;
    return true;
  }
  /// Reads the bytes that have come. False: the connection has ended.
  bool still_open() {
    while (open_ && read_some(0)) {
    }
    return open_;
  }

 private:
  static std::string text(const std::string& s) {
    std::string out;
    if (s.size() < 127) return std::string(1, static_cast<char>(s.size())) + s;
    out += '\x7f';
    size_t rest = s.size() - 127;
    for (; rest >= 128; rest /= 128) out += static_cast<char>(rest % 128 + 128);
    return out + static_cast<char>(rest) + s;
  }
  static std::string base64(const std::string& s) {
    static const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < s.size(); i += 3) {
      uint32_t group = 0;
      for (size_t k = 0; k < 3; ++k)
        group = group << 8 | (i + k < s.size() ? static_cast<uint8_t>(s[i + k]) : 0);
      for (size_t k = 0; k < 4 && i + k < s.size() + 1; ++k) out += digits[group >> (18 - 6 * k) & 63];
    }
    return out;
  }
  static std::string frame(int type, int flags, uint32_t stream, const std::string& body) {
    std::string out;
    for (int shift : {16, 8, 0}) out += static_cast<char>(body.size() >> shift);
    out += static_cast<char>(type);
    out += static_cast<char>(flags);
    for (int shift : {24, 16, 8, 0}) out += static_cast<char>(stream >> shift);
    return out + body;
  }
  void put(const std::string& bytes) {
    for (size_t at = 0; open_ && at < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) open_ = false;
      else at += static_cast<size_t>(n);
    }
  }
  /// False: nothing came in time.
  bool read_some(int wait_ms) {
    pollfd one{fd_, POLLIN, 0};
    if (poll(&one, 1, wait_ms) <= 0) return false;
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return open_ = false, true;
    in_.append(bytes, static_cast<size_t>(n));
    const auto number = [this](size_t at, size_t size) {
      uint32_t value = 0;
      for (size_t i = at; i < at + size; ++i) value = value << 8 | static_cast<uint8_t>(in_[i]);
      return value;
    };
    while (in_.size() >= 9 && in_.size() >= 9 + number(0, 3)) {
      const size_t size = number(0, 3);
      const int type = in_[3], flags = in_[4];
      const uint32_t stream = number(5, 4);
      if (type == 8) (stream == 0 ? connection_window_ : stream_window_) += number(9, 4);
      if (type == 4 && flags == 0) {
        for (size_t at = 9; at + 6 <= 9 + size; at += 6)
          if (number(at, 2) == 4)
            stream_window_ += int64_t{number(at + 2, 4)} - std::exchange(first_window_, number(at + 2, 4));
        put(frame(4, 1, 0, ""));
        settled_ = true;
      }
      if (type == 6 && flags == 0) put(frame(6, 1, 0, in_.substr(9, size)));
      if (type == 3 || type == 7 || (type == 1 && (flags & 1) != 0)) ended_ = true;
      in_.erase(0, 9 + size);
    }
    return true;
  }

  const int fd_;
  bool open_ = false, ended_ = false, settled_ = false;
  uint32_t next_stream_ = 3;
  std::string fields_, in_;
  int64_t stream_window_ = 65535, connection_window_ = 65535, first_window_ = 65535, sent_ = 0;
};

}  // namespace weft::rpc
