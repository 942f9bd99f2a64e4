// The segments that the other end of a link has passed: the receiving side of shared memory. shared_memory.h
// has the steps. Nothing of a segment but its payload is read, so a lie of the other end is found before the
// memory is used. Internal to the gRPC transport.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>

#include <weft/distributed/transport/inner/mapping.h>
#include <weft/distributed/transport/transport.h>
#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// Thread safety: the poll thread of its link. Blocks that it gave may be released on any thread, at any
/// time.
class WEFT_API KnownSegments {
 public:
  /// A segment and its file. No file: none has come. -1: it has come, and this process had no number free for
  /// it. A segment may come again, and then the first file counts that this process has taken. Throws:
  /// WireError for a missing file, one that is no sealed memfd, and over the limits of number and bytes.
  void add(uint32_t number, std::optional<File> file);
  /// The other end uses the segment no more. Throws: WireError for an unknown number.
  void forget(uint32_t number);
  /// The payload in a segment. Throws: WireError for an unknown number, one whose payload is still held here,
  /// and more bytes than it has. OutOfMemoryError, which names the limit, for one that cannot be mapped now.
  Block borrow(uint32_t number, int64_t bytes);

 private:
  struct Held;
  std::unordered_map<uint32_t, std::shared_ptr<Held>> known_;
  int64_t bytes_ = 0;
};

}  // namespace weft::rpc::inner
