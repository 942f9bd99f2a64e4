// The messages of etcd's v3 interface that its store uses, in protobuf's wire format. The field numbers are
// the interface: rpc.proto and kv.proto of etcd's server. A message is written field by field. Fields of a
// reply that nobody asks for are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <weft/distributed/transport/transport.h>

namespace weft::rpc::inner {

/// Writes one message.
class EtcdMessage {
 public:
  EtcdMessage& number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  /// Bytes, a text or a message.
  EtcdMessage& text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes.append(value);
    return *this;
  }
  EtcdMessage& message(int field, const EtcdMessage& value) { return text(field, value.bytes); }
  std::string bytes;

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
};

/// Reads the fields of one message in their order. Throws: WireError for one that ends early.
class EtcdFields {
 public:
  explicit EtcdFields(std::string_view bytes) : rest_(bytes) {}
  /// False: no further field.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field = static_cast<int>(tag >> 3);
    number = 0, text = {};
    switch (tag & 7) {
      case 0: number = varint(); break;
      case 1: take(8); break;
      case 2: text = take(varint()); break;
      case 5: take(4); break;
      default: throw WireError("etcd: a field of an unknown type");
    }
    return true;
  }
  int field = 0;
  uint64_t number = 0;
  std::string_view text;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw WireError("etcd: a number without end");
  }
  std::string_view take(uint64_t n) {
    if (rest_.size() < n) throw WireError("etcd: a message ends early");
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }
  std::string_view rest_;
};

}  // namespace weft::rpc::inner
