// Encoding of frames; frame.h describes the format. Both transports use it. Payloads of some size stay where
// they are, and the frame refers to them.
#include <weft/distributed/transport/inner/frame.h>

#include <algorithm>

namespace weft::rpc::inner {
namespace {

/// Writes the bytes of a number, the lowest first, and returns the place after them.
template <class T> char* store(char* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    to[i] = static_cast<char>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * i));
  return to + sizeof(T);
}

template <class T> void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  store(bytes, value);
  out.append(bytes, sizeof(T));
}

void put_record(std::string& out, RecordType type, int channel, uint8_t kind, size_t length) {
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(channel));
  out.push_back(static_cast<char>(kind));
  out.push_back(0);
  put<uint32_t>(out, static_cast<uint32_t>(length));
}

void put_text(std::string& out, const std::string& text) {
  const size_t n = std::min(text.size(), kMaxHelloText);
  put<uint16_t>(out, static_cast<uint16_t>(n));
  out.append(text, 0, n);
}

/// bytes of a header whose memory a thread keeps for its next message
constexpr size_t kSmallHead = 4 << 10;

/// The memory of a frame and of a message that this thread has written; all are empty.
struct FrameMemory {
  ~FrameMemory();
  std::vector<Piece> pieces{};
  std::string own{};
  std::shared_ptr<OutMessage> message{};
  std::string header{};
};
constinit thread_local bool frame_memory_ended = false;
FrameMemory::~FrameMemory() { frame_memory_ended = true; }
/// Null at the end of the thread: a static object's destructor may still send.
FrameMemory* frame_memory() {
  static thread_local FrameMemory memory;
  return frame_memory_ended ? nullptr : &memory;
}

}  // namespace

std::string encode_hello(RecordType type, const Hello& h) {
  std::string body;
  put<uint32_t>(body, kMagic);
  put<uint32_t>(body, h.version);
  put<uint64_t>(body, h.features);
  put<int32_t>(body, h.id.value);
  put<uint64_t>(body, h.incarnation.value);
  put<int32_t>(body, h.target.value);
  put<uint64_t>(body, h.target_incarnation.value);
  put<uint64_t>(body, h.key);
  put_text(body, h.host_key);
  const size_t n = std::min(h.addresses.size(), kMaxAddresses);
  put<uint16_t>(body, static_cast<uint16_t>(n));
  for (size_t i = 0; i < n; ++i) put_text(body, h.addresses[i]);
  put_text(body, h.cookie);
  std::string out;
  put_record(out, type, 0, 0, body.size());
  return out + body;
}

std::string encode_segment(RecordType type, uint32_t number) {
  std::string out;
  put_record(out, type, 0, 0, sizeof number);
  return put<uint32_t>(out, number), out;
}

std::string encode_text(RecordType type, const std::string& text) {
  std::string out;
  const size_t n = std::min<size_t>(text.size(), 4096);
  put_record(out, type, 0, 0, n);
  return out.append(text, 0, n);
}

static_assert(kBeginBytes <= kHeaderRoom);
std::shared_ptr<OutMessage> make_out_message(uint8_t kind, std::string header, std::vector<Payload> payloads,
                                             const WireLimits& limits) {
  int64_t payload_bytes = 0;
  if (static_cast<int64_t>(payloads.size()) > limits.max_payloads) {
    throw WireError(str("send: ", payloads.size(), " payloads, max_payloads is ", limits.max_payloads));
  }
  for (const auto& p : payloads) {
    if (p.bytes < 0 || (p.bytes > 0 && p.data == nullptr))
      throw ValueError(str("send: a payload of ", p.bytes, " bytes without memory"));
    if (p.bytes > limits.max_message_bytes - payload_bytes) {
      throw WireError(str("send: the payloads exceed max_message_bytes, ", limits.max_message_bytes));
    }
    payload_bytes += p.bytes;
  }
  const auto header_bytes = static_cast<int64_t>(header.size());
  if (header_bytes > limits.max_header_bytes) {
    throw WireError(
        str("send: a header of ", header_bytes, " bytes, max_header_bytes is ", limits.max_header_bytes));
  }
  if (header_bytes > limits.max_message_bytes - payload_bytes) {
    throw WireError(str("send: a message of ", header_bytes + payload_bytes, " bytes, max_message_bytes is ",
                        limits.max_message_bytes));
  }
  FrameMemory* const memory = frame_memory();
  std::shared_ptr<OutMessage> m = memory ? std::exchange(memory->message, nullptr) : nullptr;
  if (!m) m = std::make_shared<OutMessage>();
  m->kind = kind;
  m->head = std::move(header);
  m->head.insert(0, kBeginBytes + kTableRow * payloads.size(), '\0');  // often there is room: kHeaderRoom
  char* at = m->head.data();
  at = store<uint64_t>(at, static_cast<uint64_t>(header_bytes));
  at = store<uint64_t>(at, static_cast<uint64_t>(payload_bytes));
  at = store<uint32_t>(at, static_cast<uint32_t>(payloads.size()));
  for (const auto& p : payloads) {
    at = store<uint64_t>(at, static_cast<uint64_t>(p.bytes));
    at = store<int32_t>(at, p.device);
  }
  m->payloads = std::move(payloads);
  m->bytes = static_cast<int64_t>(m->head.size()) + payload_bytes;
  m->queued = m->bytes;
  m->channel = m->bytes <= kSmallMessage ? 0 : 1;
  return m;
}

std::string spare_header() {
  FrameMemory* const memory = frame_memory();
  return memory ? std::exchange(memory->header, {}) : std::string();
}

void recycle(std::shared_ptr<OutMessage> message) noexcept {
  FrameMemory* const memory = frame_memory();
  const bool is_small =
      message->payloads.empty() && !message->whole && message->head.capacity() <= kSmallHead;
  if (!memory || !is_small || message.use_count() != 1) return;
  std::string header = std::move(message->head);
  header.clear();
  *message = OutMessage();
  memory->header.swap(header);
  memory->message = std::move(message);
}

void Frame::append_own(const void* data, size_t n) {
  if (pieces.empty()) {
    FrameMemory* const memory = frame_memory();
    if (memory) pieces.swap(memory->pieces);
    pieces.emplace_back();
    if (memory) pieces.back().own.swap(memory->own);
  } else if (pieces.back().keep != nullptr) {
    pieces.emplace_back();
  }
  pieces.back().own.append(static_cast<const char*>(data), n);
  bytes += static_cast<int64_t>(n);
}

void Frame::append_file(std::string record, std::shared_ptr<const File> file) {
  bytes += static_cast<int64_t>(record.size());
  pieces.push_back({.own = std::move(record), .keep = {}, .file = std::move(file)});
}

void Frame::recycle() noexcept {
  constexpr size_t kMostPieces = 16, kMostBytes = 4096;
  FrameMemory* const memory = frame_memory();
  if (memory && !pieces.empty() && pieces.front().own.capacity() <= kMostBytes) {
    memory->own = std::move(pieces.front().own);
    memory->own.clear();
  }
  pieces.clear();
  if (memory && pieces.capacity() <= kMostPieces) memory->pieces = std::move(pieces);
  *this = Frame();
}

std::string Frame::flat() const {
  std::string out;
  out.reserve(static_cast<size_t>(bytes));
  for (const auto& p : pieces) {
    if (p.keep != nullptr) {
      out.append(static_cast<const char*>(p.data), p.bytes);
    } else {
      out += p.own;
    }
  }
  return out;
}

bool append_message(Frame& frame, OutCursor& cursor, int64_t most) {
  const OutMessage& m = *cursor.message;
  const int64_t need = m.bytes - cursor.sent;
  int64_t take = std::min(need, std::min(frame.room(), most) - static_cast<int64_t>(kRecordBytes));
  const bool first = cursor.sent == 0;
  if (take <= 0 || (first && take < static_cast<int64_t>(kBeginBytes))) return false;
  std::string prefix;
  put_record(prefix, first ? RecordType::kBegin : RecordType::kMore, m.channel, m.kind,
             static_cast<size_t>(take));
  frame.append_own(prefix.data(), prefix.size());
  const auto head_bytes = static_cast<int64_t>(m.head.size());
  if (cursor.sent < head_bytes) {
    const int64_t n = std::min(take, head_bytes - cursor.sent);
    frame.append_own(m.head.data() + cursor.sent, static_cast<size_t>(n));
    cursor.sent += n;
    take -= n;
  }
  while (take > 0) {
    const Payload& p = m.payloads[cursor.payload];
    const int64_t n = std::min(take, p.bytes - cursor.payload_sent);
    const char* from = static_cast<const char*>(p.data) + cursor.payload_sent;
    if (n <= kCopiedPayload) {
      frame.append_own(from, static_cast<size_t>(n));
    } else {
      frame.pieces.push_back({{}, from, static_cast<size_t>(n), cursor.message});
      frame.bytes += n;
    }
    cursor.sent += n;
    cursor.payload_sent += n;
    take -= n;
    if (cursor.payload_sent == p.bytes) {
      ++cursor.payload;
      cursor.payload_sent = 0;
    }
  }
  return cursor.sent == m.bytes;
}

}  // namespace weft::rpc::inner
