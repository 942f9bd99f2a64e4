// The owner of a file descriptor. Internal to the gRPC transport.
#pragma once

#include <unistd.h>

#include <utility>

namespace weft::rpc::inner {

/// The owner of a file descriptor; -1: none. Thread safety: as a plain value.
class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace weft::rpc::inner
