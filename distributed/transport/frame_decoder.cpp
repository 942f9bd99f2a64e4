// Decoding of frames; frame.h describes the format. Both transports use it. The decoder refuses malformed
// bytes with a WireError. A message that finds no memory after its header is read to its end and dropped.
#include <weft/distributed/transport/inner/frame.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace weft::rpc::inner {
namespace {

constexpr size_t kMaxControlBytes = 16 << 10;

template <class T> T get(const char* from) {
  std::make_unsigned_t<T> value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<std::make_unsigned_t<T>>(
        static_cast<std::make_unsigned_t<T>>(static_cast<unsigned char>(from[i])) << (8 * i));
  }
  return static_cast<T>(value);
}

[[noreturn]] void refuse_shared() { throw WireError("wire: shared memory on a connection that has none"); }

/// Reads the fields of a control record; checks every length against the remaining bytes.
struct HelloReader {
  const std::string& bytes;
  size_t at = 0;
  template <class T> T number() {
    if (bytes.size() - at < sizeof(T)) throw WireError("wire: a hello ends early");
    const T value = get<T>(bytes.data() + at);
    at += sizeof(T);
    return value;
  }
  std::string text() {
    const auto n = number<uint16_t>();
    if (bytes.size() - at < n) throw WireError("wire: a hello ends early");
    if (n > kMaxHelloText)
      throw WireError(
          str("wire: a hello with a text of ", n, " bytes, at most ", kMaxHelloText, " are allowed"));
    std::string value = bytes.substr(at, n);
    at += n;
    return value;
  }
};

Hello read_hello(const std::string& bytes) {
  HelloReader in{bytes};
  if (in.number<uint32_t>() != kMagic) throw WireError("wire: the first record is no hello of this protocol");
  Hello h;
  h.version = in.number<uint32_t>();
  h.features = in.number<uint64_t>();
  h.id.value = in.number<int32_t>();
  // all versions agree up to here; the rest may differ, and a reject follows
  if (h.version != kWireVersion) return h;
  h.incarnation.value = in.number<uint64_t>();
  h.target.value = in.number<int32_t>();
  h.target_incarnation.value = in.number<uint64_t>();
  h.key = in.number<uint64_t>();
  h.host_key = in.text();
  const auto n = in.number<uint16_t>();
  if (n > kMaxAddresses)
    throw WireError(str("wire: a hello with ", n, " addresses, at most ", kMaxAddresses, " are allowed"));
  for (int i = 0; i < n; ++i) h.addresses.push_back(in.text());
  h.cookie = in.text();
  return h;
}

}  // namespace

void Decoder::feed(const void* data, size_t n) {
  auto* at = static_cast<const uint8_t*>(data);
  while (n > 0) {
    if (!in_record_) {
      const size_t take = std::min(n, kRecordBytes - prefix_.size());
      prefix_.append(reinterpret_cast<const char*>(at), take);
      at += take;
      n -= take;
      if (prefix_.size() == kRecordBytes) start_record();
      continue;
    }
    const size_t take = std::min<size_t>(n, left_);
    body(at, take);
    at += take;
    n -= take;
    left_ -= static_cast<uint32_t>(take);
    if (left_ == 0) {
      in_record_ = false;
      if (type_ != RecordType::kBegin && type_ != RecordType::kMore) finish_control();
    }
  }
}

std::span<char> Decoder::room() {
  if (!in_record_ || (type_ != RecordType::kBegin && type_ != RecordType::kMore)) return {};
  Assembly& a = assemblies_[static_cast<size_t>(channel_)];
  if (!a.active || !a.has_table || a.header.size() < a.header_bytes || a.index >= a.count) return {};
  const Row row = a.sizes[a.index];
  if (row.device != kHostDevice || row.shared) return {};
  if (!a.unread && a.payloads.size() == a.index) take_block(a, row, {});
  const int64_t n = std::min<int64_t>(left_, row.bytes - a.filled);
  tell(a, a.arrived + n);
  if (a.unread) return {};
  return {static_cast<char*>(a.payloads.back().data) + a.filled, static_cast<size_t>(n)};
}

void Decoder::end_frame() {
  if (in_record_ || !prefix_.empty()) throw WireError("wire: a frame ends inside a record");
}

void Decoder::start_record() {
  const auto type = static_cast<uint8_t>(prefix_[0]);
  channel_ = static_cast<uint8_t>(prefix_[1]);
  kind_ = static_cast<uint8_t>(prefix_[2]);
  left_ = get<uint32_t>(prefix_.data() + 4);
  prefix_.clear();
  if (type < 1 || type > 8) throw WireError(str("wire: a record of unknown type ", int{type}));
  type_ = static_cast<RecordType>(type);
  if (left_ > kMaxFrameBytes)
    throw WireError(str("wire: a record of ", left_, " bytes, a frame has at most ", kMaxFrameBytes));
  const bool message = type_ == RecordType::kBegin || type_ == RecordType::kMore;
  const bool segment = type_ == RecordType::kSegment || type_ == RecordType::kForget;
  if (segment && left_ != sizeof(uint32_t)) throw WireError("wire: a record of a segment without its number");
  if (!greeted_ && (message || segment)) throw WireError("wire: a message before the hello");
  if (greeted_ && (type_ == RecordType::kHello || type_ == RecordType::kWelcome))
    throw WireError("wire: a second hello");
  in_record_ = true;
  if (!message) {
    if (left_ > kMaxControlBytes) throw WireError(str("wire: a control record of ", left_, " bytes"));
    control_.clear();
    if (left_ == 0) {
      in_record_ = false;
      finish_control();
    }
    return;
  }
  if (channel_ >= kChannels) throw WireError(str("wire: a message on channel ", channel_));
  Assembly& a = assemblies_[static_cast<size_t>(channel_)];
  if (type_ == RecordType::kBegin) {
    if (a.active) throw WireError("wire: a message begins before the one on its channel ended");
    if (left_ < kBeginBytes) throw WireError(str("wire: a message that begins with ", left_, " bytes"));
    a = Assembly();
    a.active = true;
    a.kind = kind_;
  } else if (!a.active || left_ == 0) {
    throw WireError("wire: a piece of a message that never began");
  }
}

void Decoder::finish_control() {
  if (type_ == RecordType::kHello || type_ == RecordType::kWelcome) {
    Hello hello = read_hello(control_);
    greeted_ = true;
    sink_.on_hello(type_, std::move(hello));
  } else if (type_ == RecordType::kSegment || type_ == RecordType::kForget) {
    sink_.on_segment(type_, get<uint32_t>(control_.data()));
  } else {
    sink_.on_text(type_, std::move(control_));
  }
  control_.clear();
}

void Decoder::body(const uint8_t* data, size_t n) {
  auto* at = reinterpret_cast<const char*>(data);
  if (type_ != RecordType::kBegin && type_ != RecordType::kMore) {
    control_.append(at, n);
    return;
  }
  Assembly& a = assemblies_[static_cast<size_t>(channel_)];
  progress_[static_cast<size_t>(channel_)] += n;
  while (n > 0) {
    if (!a.active) throw WireError("wire: a message with more bytes than it declared");
    if (!a.has_begin) {
      const size_t take = std::min(n, kBeginBytes - a.begun);
      std::memcpy(a.begin.data() + a.begun, at, take);
      a.begun += take;
      at += take;
      n -= take;
      if (a.begun == kBeginBytes) read_begin(a);
    } else if (!a.has_table) {
      const size_t take = std::min(n, kTableRow * a.count - a.table.size());
      a.table.append(at, take);
      at += take;
      n -= take;
      if (a.table.size() == kTableRow * a.count) read_table(a);
    } else if (a.header.size() < a.header_bytes) {
      const size_t take = std::min<size_t>(n, a.header_bytes - a.header.size());
      a.header.append(at, take);
      at += take;
      n -= take;
      if (a.header.size() == a.header_bytes) skip_full_payloads(a);
    } else if (a.sizes[a.index].shared) {
      const size_t take = std::min(n, size_t{kStubBytes} - a.stub.size());
      a.stub.append(at, take);
      at += take;
      n -= take;
      if (a.stub.size() == kStubBytes) read_stub(a, Row(a.sizes[a.index]));
    } else {
      const Row row = a.sizes[a.index];
      const auto take = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(n), row.bytes - a.filled));
      if (!a.unread && a.payloads.size() == a.index) {
        take_block(a, row, {});
        if (row.device != kHostDevice) count(a, row.bytes);  // memory for devices is taken whole
      }
      if (row.device == kHostDevice) count(a, static_cast<int64_t>(take));
      if (!a.unread) {
        char* const place = static_cast<char*>(a.payloads.back().data) + a.filled;
        if (place != at) std::memcpy(place, at, take);  // else they were stored in its room
      }
      a.filled += static_cast<int64_t>(take);
      at += take;
      n -= take;
      if (a.filled == row.bytes) {
        ++a.index;
        a.filled = 0;
        skip_full_payloads(a);
      }
    }
    finish_if_whole(a);
  }
}

void Decoder::read_begin(Assembly& a) {
  a.header_bytes = get<uint64_t>(a.begin.data());
  a.payload_bytes = get<uint64_t>(a.begin.data() + 8);
  a.count = get<uint32_t>(a.begin.data() + 16);
  const auto most = static_cast<uint64_t>(limits_.max_message_bytes);
  if (a.header_bytes > static_cast<uint64_t>(limits_.max_header_bytes)) {
    throw WireError(str("wire: a message declares a header of ", a.header_bytes,
                        " bytes, max_header_bytes is ", limits_.max_header_bytes));
  }
  if (a.header_bytes > most || a.payload_bytes > most - a.header_bytes) {
    throw WireError(
        str("wire: a message declares ", a.payload_bytes, " bytes of payloads, max_message_bytes is ", most));
  }
  if (a.count > static_cast<uint64_t>(limits_.max_payloads)) {
    throw WireError(
        str("wire: a message declares ", a.count, " payloads, max_payloads is ", limits_.max_payloads));
  }
  a.has_begin = true;
  if (a.count == 0) read_table(a);
}

void Decoder::read_table(Assembly& a) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < a.count; ++i) {
    const auto marked = get<uint64_t>(a.table.data() + kTableRow * i), bytes = marked & ~kSharedMark;
    const auto device = get<int32_t>(a.table.data() + kTableRow * i + 8);
    if (bytes > a.payload_bytes - sum)
      throw WireError("wire: a message's payloads are larger than it declared");
    sum += bytes;
    a.sizes.push_back({static_cast<int64_t>(bytes), device, bytes > 0 && marked != bytes});
  }
  if (sum != a.payload_bytes) throw WireError("wire: a message's payloads are smaller than it declared");
  a.table = std::string();
  a.has_table = true;
  if (a.header_bytes == 0) skip_full_payloads(a);
}

/// Memory for the next payload, which may have come whole. Without memory the rest of the message is dropped
/// as it comes.
void Decoder::take_block(Assembly& a, const Row& row, Block lent) {
  Block block;
  try {
    block = row.shared ? sink_.take(a.kind, a.header, std::move(lent), row.device)
                       : sink_.allocate(a.kind, a.header, row.bytes, row.device);
  } catch (const WireError&) {
    throw;
  } catch (...) {
    a.unread = std::current_exception();
    drop_payloads(a);
    return;
  }
  if (block.data == nullptr || block.bytes < row.bytes)
    throw WireError("wire: the receiver gave no memory for a payload");
  block.bytes = row.bytes;
  keep_block(a, std::move(block));
}

/// The list of payloads may find no memory either.
void Decoder::keep_block(Assembly& a, Block block) {
  try {
    a.payloads.push_back(std::move(block));
  } catch (const std::bad_alloc&) {
    a.unread = std::current_exception();
    drop_payloads(a);
  }
}

/// A payload in shared memory has come. That of a dropped message goes back to the sender at once.
void Decoder::read_stub(Assembly& a, const Row& row) {
  const auto number = get<uint32_t>(a.stub.data());
  a.stub.clear();
  Block lent;
  try {
    lent = sink_.borrow(number, row.bytes);
    lent.device = row.device;
  } catch (const WireError&) {
    throw;
  } catch (...) {
    if (!a.unread) a.unread = std::current_exception();
    drop_payloads(a);
  }
  count(a, row.bytes);
  if (!a.unread) take_block(a, row, std::move(lent));
  ++a.index;
  skip_full_payloads(a);
}

void Decoder::count(Assembly& a, int64_t bytes) {
  a.arrived += bytes;
  tell(a, a.arrived);
}

/// Tells the receiver of bytes before they are stored; `bytes` in all.
void Decoder::tell(Assembly& a, int64_t bytes) {
  const int64_t more = bytes - a.held;
  if (a.unread || more < kUncountedBytes) return;
  try {
    sink_.on_part(a.kind, a.held, more);
    a.held += more;
  } catch (const WireError&) {
    throw;
  } catch (...) {
    a.unread = std::current_exception();
    drop_payloads(a);
  }
}

void DecoderSink::on_segment(RecordType, uint32_t) { refuse_shared(); }
Block DecoderSink::borrow(uint32_t, int64_t) { refuse_shared(); }

void Decoder::drop_payloads(Assembly& a) noexcept {
  a.payloads.clear();
  if (const int64_t held = std::exchange(a.held, 0); held > 0) sink_.on_part_end(a.kind, held);
}

void Decoder::abandon() noexcept {
  for (Assembly& a : assemblies_) {
    drop_payloads(a);
    a = Assembly();
  }
}

/// Payloads without bytes need no memory and get none.
void Decoder::skip_full_payloads(Assembly& a) {
  while (a.index < a.count && a.sizes[a.index].bytes == 0) {
    if (!a.unread) keep_block(a, {nullptr, 0, a.sizes[a.index].device, {}});
    ++a.index;
  }
}

void Decoder::finish_if_whole(Assembly& a) {
  if (!a.has_table || a.header.size() < a.header_bytes || a.index < a.count) return;
  Assembly whole = std::move(a);
  a = Assembly();
  if (whole.held > 0) sink_.on_part_end(whole.kind, whole.held);
  if (whole.unread) return sink_.on_unread(whole.kind, std::move(whole.header), std::move(whole.unread));
  sink_.on_message(whole.kind, std::move(whole.header), std::move(whole.payloads));
}

}  // namespace weft::rpc::inner
