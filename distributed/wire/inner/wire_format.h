// Serialisation of a Message for a Transport: the envelope at the head, extensions and tensor
// descriptors in the tail, large tensors as payloads. Internal to the agent. Every received number is
// checked before its use.
//
//   [envelope 56][body][extensions][tensor descriptors, small tensors inline] + one payload per large tensor
#pragma once

#include <weft/distributed/wire/message.h>

namespace weft::rpc {

class Lending;

/// The first bytes of every message between agents, in the machine's little-endian byte order.
struct Envelope {
  uint64_t sequence = 0;     ///< of the request, repeated in its reply; 0: none
  uint64_t floor = 0;        ///< the sender has finished its requests to the receiver below this number
  int64_t remaining_ns = 0;  ///< requests: nanoseconds until the deadline; 0: no limit
  uint64_t body_end = 0;
  uint64_t to_incarnation = 0;  ///< incarnation of the intended receiver; 0: any
  uint64_t epoch = 0;           ///< of the sender's member list; 0: a static group
  uint32_t tensors = 0;
  uint16_t error = 0;  ///< replies: kThrown or kRefused if the body is an error
  /// replies and statuses: bytes of requests that the sender has room for, packed; 0: not stated
  uint16_t window = 0;
  static constexpr uint16_t kThrown = 1;
  static constexpr uint16_t kRefused = 2;  ///< the callee had no room and did not begin to serve

  /// 5 bits of exponent and 11 of mantissa, rounded down.
  static uint16_t pack_window(int64_t bytes);
  int64_t window_bytes() const { return int64_t{window & 0x7ff} << (window >> 11); }
};
static_assert(sizeof(Envelope) == kEnvelopeBytes);

/// Tensors of up to this many bytes are stored inside the header.
inline constexpr int64_t kInlineTensorBytes = 4096;

/// Writes the tail and compacts tensors that use little of their span. Starts the copies of device tensors,
/// or lends these to `to`. The message keeps the tensors. Call it once per message.
void seal(Message& message, Lending* lending = nullptr, WorkerId to = {});
/// Overwrites the envelope's fields that change from send to send.
void stamp(Message& message, const Envelope& envelope);
/// The bytes of a sealed message that travel, without lent tensors.
int64_t wire_bytes(const Message& message);
/// The bytes of a message that has arrived.
int64_t bytes_of(const Inbound& message);
/// The bytes of a sealed message as the header of a send, with room for the transport's fields.
std::string header_of(const Message& message);
/// Payloads of a sealed message. Each keeps its storage and counts as a save of it, so an optimizer step
/// meanwhile writes to another storage.
std::vector<Payload> payloads_of(const Message& message);

/// Host memory for an arriving payload with the target `device`.
Block allocate_payload(int64_t bytes, int32_t device = kHostDevice);
/// Reads the envelope. Throws: WireError.
Envelope open_envelope(const std::string& header);
/// Makes a message from header and payloads, and starts the copies to devices. Throws: WireError, also for a
/// device that this worker does not have; CudaError; OutOfMemoryError.
Message unseal(std::string header, std::vector<Block> payloads, const Envelope& envelope);

}  // namespace weft::rpc
