// Reading of a raw deflate stream in a file (library internal).
#pragma once

#include <cstdint>
#include <memory>

#include <weft/tensor/file_io.h>

namespace weft::detail {

/// Unpacks the `packed` bytes at the file's position, as they are asked for: what is held is a few KiB, whatever the stream claims to be.
class Inflater {
 public:
  /// No stream unpacks to more than this many times its size.
  static constexpr uint64_t kMaxRatio = 1032;

  /// Throws: IoError without the file's name in a build without zlib.
  Inflater(FileReader& file, uint64_t packed);
  ~Inflater();
  /// The next `bytes` bytes. Throws: IoError without the file's name when the stream is damaged or ends before.
  void read(void* to, uint64_t bytes);
  /// Throws: IoError without the file's name unless the stream ends here, with the last of its packed bytes.
  void finish();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace weft::detail
