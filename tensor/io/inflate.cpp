// Inflater over zlib, and the stub for builds without it. It reads 16 KiB of packed data at a time. No other
// file includes zlib's header.
#include <weft/tensor/io/inner/inflate.h>

#if defined(WEFT_WITH_ZLIB)
#include <zlib.h>
#endif

namespace weft::detail {

#if defined(WEFT_WITH_ZLIB)

struct Inflater::Stream {
  FileReader& file;
  uint64_t left;  ///< packed bytes not yet read
  z_stream z{};
  bool ended = false;
  unsigned char packed[16384];

  Stream(FileReader& f, uint64_t bytes) : file(f), left(bytes) {
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK) throw IoError("zlib cannot begin to unpack");
  }
  ~Stream() { inflateEnd(&z); }

  /// Up to `room` bytes; 0 at the end.
  uint64_t some(unsigned char* to, uint64_t room) {
    const uInt most = room < 1u << 30 ? static_cast<uInt>(room) : 1u << 30;
    z.next_out = to, z.avail_out = most;
    while (!ended && z.avail_out == most) {
      if (z.avail_in == 0) {
        const uint64_t n = left < sizeof packed ? left : sizeof packed;
        file.read(packed, n);
        z.next_in = packed, z.avail_in = static_cast<uInt>(n), left -= n;
      }
      const int status = inflate(&z, Z_NO_FLUSH);
      ended = status == Z_STREAM_END;
      if (status == Z_BUF_ERROR && left == 0) throw IoError("the compressed data ends too early");
      if (status != Z_OK && !ended && status != Z_BUF_ERROR)
        throw IoError(str("the compressed data is damaged: ", z.msg ? z.msg : "unknown code"));
    }
    return most - z.avail_out;
  }
};

Inflater::Inflater(FileReader& file, uint64_t packed) : stream_(std::make_unique<Stream>(file, packed)) {}

void Inflater::read(void* to, uint64_t bytes) {
  auto* p = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    const uint64_t n = stream_->some(p, bytes);
    if (n == 0) throw IoError(str("the compressed data ends ", bytes, " bytes too early"));
    p += n, bytes -= n;
  }
}

void Inflater::finish() {
  unsigned char more;
  if (stream_->some(&more, 1) != 0 || stream_->left + stream_->z.avail_in != 0)
    throw IoError("there is more compressed data than the member's size says");
}

#else

struct Inflater::Stream {};
Inflater::Inflater(FileReader&, uint64_t) {
  throw IoError("it is compressed, and this weft was built without zlib");
}
void Inflater::read(void*, uint64_t) {}
void Inflater::finish() {}

#endif

Inflater::~Inflater() = default;

}  // namespace weft::detail
