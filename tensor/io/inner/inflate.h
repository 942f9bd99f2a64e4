// Reading a raw deflate stream in a file.
#pragma once

#include <cstdint>
#include <memory>

#include <weft/tensor/io/inner/file_io.h>

namespace weft::detail {

/// Unpacks the `packed` bytes at the file's position on demand. It holds a few KiB, independent of the sizes
/// that the file claims.
class Inflater {
 public:
  /// The largest ratio of unpacked to packed size that deflate allows.
  static constexpr uint64_t kMaxRatio = 1032;

  /// Throws: IoError without the file's name in a build without zlib.
  Inflater(FileReader& file, uint64_t packed);
  ~Inflater();
  /// Reads the next `bytes` bytes. Throws: IoError without the file's name if the stream is damaged or too
  /// short.
  void read(void* to, uint64_t bytes);
  /// Throws: IoError without the file's name unless the stream ends here, at its last packed byte.
  void finish();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace weft::detail
