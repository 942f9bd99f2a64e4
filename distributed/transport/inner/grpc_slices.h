// Conversion of a frame to gRPC's byte buffer, and of received buffers and slices to bytes and text. Memory
// of received buffers. Internal to the gRPC transport.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <weft/distributed/transport/inner/frame.h>

struct grpc_byte_buffer;
struct grpc_slice;

namespace weft::rpc::inner {

/// gRPC reads frames into blocks of its own, which glibc would give back to the system after each. Each frame
/// would pay for new pages. Where a mapped block of some size is freed, glibc keeps freed blocks up to that
/// size from then on, and up to twice as many bytes per arena. Limits that the user has set stay.
void keep_freed_blocks();

/// Copies small pieces, moves the frame's own large ones, and refers to payload memory. gRPC drops each slice
/// once the socket has it. The last drop of a message releases its payloads, on any thread.
grpc_byte_buffer* to_buffer(Frame frame);
std::string to_text(const grpc_slice& slice);

/// The bytes of received buffers, one after another. Thread safety: as a plain value.
class BufferReader {
 public:
  BufferReader();
  ~BufferReader();
  BufferReader(const BufferReader&) = delete;
  /// The place where gRPC stores the next buffer.
  grpc_byte_buffer** place() { return &buffer_; }
  bool empty() const { return buffer_ == nullptr; }
  bool begun() const { return begun_; }
  /// False: gRPC cannot read the buffer.
  bool begin();
  /// The bytes that have not been skipped, at least one; empty: the buffer has no more.
  std::span<const uint8_t> rest();
  void skip(size_t n) { skipped_ += n; }
  /// Destroys the buffer.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
  grpc_byte_buffer* buffer_ = nullptr;
  size_t skipped_ = 0;  // of the current slice
  bool begun_ = false;
};

}  // namespace weft::rpc::inner
