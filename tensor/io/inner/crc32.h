// CRC-32, the checksum of zip archives (polynomial 0xEDB88320, as in zlib).
#pragma once

#include <array>
#include <cstdint>

namespace weft::detail {

class Crc32 {
 public:
  void add(const void* data, uint64_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    uint32_t c = value_;
    for (uint64_t i = 0; i < bytes; ++i) c = table()[(c ^ p[i]) & 0xFF] ^ (c >> 8);
    value_ = c;
  }
  uint32_t value() const { return ~value_; }

 private:
  static const std::array<uint32_t, 256>& table() {
    static const std::array<uint32_t, 256> t = [] {
      std::array<uint32_t, 256> made{};
      for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        made[i] = c;
      }
      return made;
    }();
    return t;
  }
  uint32_t value_ = ~0u;
};

}  // namespace weft::detail
