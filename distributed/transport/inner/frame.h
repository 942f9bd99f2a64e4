// The wire format below the Agent: records in frames. A frame is one gRPC stream message, or one message
// of the simulated network, of at most kMaxFrameBytes. It is a sequence of records; a record is
//   type u8 | channel u8 | kind u8 | 0 u8 | length u32 | length bytes          (little endian)
// The connecting side begins with a hello, over gRPC in the metadata of its stream. The listening side
// answers with a welcome or a reject; then messages follow. A message is one `begin` record and any number of
// `more` records on its channel, in one frame or many:
//   begin: header_bytes u64 | payload_bytes u64 | payload_count u32 | body...        more: body...
//   body:  payload_count x (bytes u64 | device i32) | header | payloads one after another
// A payload in shared memory (shared_memory.h) has kSharedMark in the bytes of its row. In place of its bytes
// it has the number of its segment, u32. Two records describe such segments to the receiver.
// Two channels let small messages pass between the pieces of a large one. The sizes in `begin` are checked
// before any allocation. Headers grow as their bytes arrive, and payload memory is requested when its
// first byte arrives. The receiver gets reports of the bytes that incomplete messages hold. Without memory or
// room the message is read to its end and dropped. Internal to the transports. Thread safety: plain values; a
// Decoder belongs to the reader of one connection.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <weft/distributed/transport/transport.h>

namespace weft::rpc::inner {

enum class RecordType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kReject = 3,
  kBegin = 4,
  kMore = 5,
  kBye = 6,
  kSegment = 7,  ///< a segment, u32, whose file comes with the record
  kForget = 8,   ///< a segment, u32, that is not used any more
};
inline constexpr uint32_t kMagic = 0x74666577;  // "weft"
inline constexpr size_t kMaxAddresses = 16;
inline constexpr size_t kMaxHelloText = 512;  ///< an address or a host key
inline constexpr size_t kRecordBytes = 8;
inline constexpr size_t kBeginBytes = 20;
inline constexpr size_t kTableRow = 12;
inline constexpr uint64_t kSharedMark = uint64_t{1} << 63;
inline constexpr int64_t kStubBytes = 4;
inline constexpr int kChannels = 2;
/// Messages of up to this many bytes use channel 0 and are copied into the frame. Larger ones use channel 1;
/// their payloads are not copied.
inline constexpr int64_t kSmallMessage = 64 << 10;
inline constexpr int64_t kCopiedPayload = 8 << 10;

/// The identity of one end: the first words in each direction.
struct Hello {
  uint32_t version = kWireVersion;
  uint64_t features = 0;
  WorkerId id{};
  Incarnation incarnation{};
  WorkerId target{};
  Incarnation target_incarnation{};
  uint64_t key = 0;  ///< of the sender's life for the target alone; 0: the target is no member of its yet
  std::string host_key{};
  std::vector<std::string> addresses{};
  std::string cookie{};  ///< of the listener, where it asks for one
};

std::string encode_hello(RecordType type, const Hello& hello);
/// A reject or bye record with its reason.
std::string encode_text(RecordType type, const std::string& text);
std::string encode_segment(RecordType type, uint32_t number);

class File;
class Lease;
struct Placed {
  size_t payload;  ///< its index
  std::shared_ptr<const Lease> lease;
};

/// An outgoing message, shared by the frames that refer to its payloads.
struct OutMessage {
  uint8_t kind = 0;
  std::string head;  ///< begin fields, table and header
  std::vector<Payload> payloads;
  int64_t bytes = 0;   ///< head and payloads
  int64_t queued = 0;  ///< bytes that it counts in its queue
  int channel = 0;
  // Payloads with a copy in segments of one link, by index. Used by the thread that has the message, and
  // later under the peer's mutex.
  std::vector<Placed> placed{};
  uint64_t placed_for = 0;
  std::string stubs{};                  ///< of a form by reference: numbers of segments
  std::shared_ptr<OutMessage> whole{};  ///< of a form by reference: the message
};
/// Checks and packs a message. Throws: WireError over the limits, ValueError for a payload without memory.
std::shared_ptr<OutMessage> make_out_message(uint8_t kind, std::string header, std::vector<Payload> payloads,
                                             const WireLimits& limits);

/// An empty string for the header of a message; with the memory of one that this thread has written, if any.
std::string spare_header();
/// Ends a message that was written. If it is small and has no payloads, its memory serves the next message of
/// this thread.
void recycle(std::shared_ptr<OutMessage> message) noexcept;

/// Progress of a message through its frames.
struct OutCursor {
  std::shared_ptr<OutMessage> message;
  int64_t sent = 0;
  size_t payload = 0;  ///< the payload at `sent`
  int64_t payload_sent = 0;
};

/// Bytes of a frame: its own, or payload memory kept alive by `keep`.
struct Piece {
  std::string own;
  const void* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<OutMessage> keep;
  std::shared_ptr<const File> file{};  ///< passed with the first byte
};
struct Frame {
  std::vector<Piece> pieces;
  int64_t bytes = 0;
  int64_t room() const { return kMaxFrameBytes - bytes; }
  void append_own(const void* data, size_t n);
  void append_file(std::string record, std::shared_ptr<const File> file);
  std::string flat() const;  ///< all bytes in one string (the simulated network)
  /// Empties a frame that was written. Its memory serves the next frame of this thread.
  void recycle() noexcept;
};

/// Appends to the frame the part of a message that fits, at most `most` bytes. True at the message's end.
bool append_message(Frame& frame, OutCursor& cursor, int64_t most = kMaxFrameBytes);

/// Receives the contents that a Decoder finds.
class DecoderSink {
 public:
  virtual ~DecoderSink() = default;
  virtual void on_hello(RecordType type, Hello hello) = 0;
  virtual void on_text(RecordType type, std::string text) = 0;
  virtual Block allocate(uint8_t kind, const std::string& header, int64_t bytes, int32_t device) = 0;
  // Shared memory; without these functions a record or payload of it is malformed.
  virtual void on_segment(RecordType type, uint32_t number);
  /// The payload in a segment, as PassedSegments::borrow.
  virtual Block borrow(uint32_t number, int64_t bytes);
  virtual Block take(uint8_t, const std::string&, Block lent, int32_t) { return lent; }  ///< as Receiver's
  virtual void on_part(uint8_t, int64_t, int64_t) {}  ///< as those of Receiver
  virtual void on_part_end(uint8_t, int64_t) {}
  virtual void on_message(uint8_t kind, std::string header, std::vector<Block> payloads) = 0;
  /// A message for whose payloads `allocate` or `on_part` threw `error`, which is no WireError.
  virtual void on_unread(uint8_t kind, std::string header, std::exception_ptr error) = 0;
};

/// Decodes frames from pieces of any length. After a WireError it must not be fed again.
class Decoder {
 public:
  Decoder(const WireLimits& limits, DecoderSink& sink) : limits_(limits), sink_(sink) {}
  ~Decoder() { abandon(); }
  Decoder(const Decoder&) = delete;

  /// Decodes the next bytes of a frame. Throws: WireError for a malformed record, sizes over the limits or
  /// records in a wrong order.
  void feed(const void* data, size_t n);
  /// Memory for the next bytes of a payload, which the record has. Bytes that were stored there are fed with
  /// their place, and not copied. Empty: the next bytes are something else. Throws: as feed.
  std::span<char> room();
  /// Ends the frame. Throws: WireError if a record is incomplete.
  void end_frame();
  /// Frees the incomplete messages. Not to be fed again.
  void abandon() noexcept;

  /// An incomplete message is on the channel.
  bool is_partial(size_t channel) const { return assemblies_[channel].active; }
  /// Bytes of messages that have come on the channel.
  uint64_t progress(size_t channel) const { return progress_[channel]; }

 private:
  struct Row {
    int64_t bytes;
    int32_t device;
    bool shared;
  };
  /// An incomplete incoming message.
  struct Assembly {
    bool active = false;
    uint8_t kind = 0;
    uint64_t header_bytes = 0, payload_bytes = 0;
    uint32_t count = 0;
    std::array<char, kBeginBytes> begin;
    size_t begun = 0;  // bytes of `begin` so far
    std::string table;
    std::string header;
    std::vector<Block> payloads;
    std::vector<Row> sizes;
    std::string stub;
    size_t index = 0;
    int64_t filled = 0;
    int64_t arrived = 0, held = 0;  // bytes of payloads, and the bytes that on_part has reported
    bool has_begin = false, has_table = false;
    std::exception_ptr unread;  // of `allocate` or `on_part`: the payloads are dropped as they come
  };

  void start_record();
  void body(const uint8_t* data, size_t n);
  void read_begin(Assembly& a);
  void read_table(Assembly& a);
  void skip_full_payloads(Assembly& a);
  void take_block(Assembly& a, const Row& row, Block lent);
  void keep_block(Assembly& a, Block block);
  void read_stub(Assembly& a, const Row& row);
  void count(Assembly& a, int64_t bytes);
  void tell(Assembly& a, int64_t bytes);
  void drop_payloads(Assembly& a) noexcept;
  void finish_if_whole(Assembly& a);
  void finish_control();

  const WireLimits limits_;
  DecoderSink& sink_;
  std::string prefix_;  // bytes of the record header so far
  bool in_record_ = false;
  RecordType type_{};
  int channel_ = 0;
  uint8_t kind_ = 0;
  uint32_t left_ = 0;
  std::string control_;  // contents of a hello, welcome, reject or bye
  bool greeted_ = false;
  std::array<Assembly, kChannels> assemblies_;
  std::array<uint64_t, kChannels> progress_{};
};

}  // namespace weft::rpc::inner
