// Between a Message and what a Transport carries: the envelope at the head, extensions and tensor descriptors in the tail, large
// tensors as payloads. Of the agent's own; every number that arrives is checked before it is used.
//
//   [envelope 48][body][extensions][tensor descriptors, small tensors inline]      + one payload per large tensor
#pragma once

#include <weft/distributed/message.h>

namespace weft::rpc {

class Lending;

/// The first bytes of every message between agents, as they lie in memory (little-endian).
struct Envelope {
  uint64_t sequence = 0;     ///< of the request; replies repeat it; 0 where there is none
  uint64_t floor = 0;        ///< of the sender as a caller: its requests to us below this are finished
  int64_t remaining_ns = 0;  ///< requests: what is left until the deadline; 0: no limit
  uint64_t body_end = 0;
  uint64_t to_incarnation = 0;  ///< the life of the receiver that is meant; 0: any
  uint32_t tensors = 0;
  uint16_t error = 0;  ///< replies: the body is an error
  uint16_t reserved = 0;
};
static_assert(sizeof(Envelope) == kEnvelopeBytes);

/// Tensors up to this many bytes travel inside the header.
inline constexpr int64_t kInlineTensorBytes = 4096;

/// Writes the tail, compacts tensors that use little of their span, begins the copies of tensors of devices, or lends them to `to`. The message keeps the
/// tensors; call once per message.
void seal(Message& message, Lending* lending = nullptr, WorkerId to = {});
/// Overwrites the envelope's fields that change from send to send.
void stamp(Message& message, const Envelope& envelope);
/// Payloads of a sealed message. Each keeps its storage, and counts as a save of it: an optimizer step meanwhile writes elsewhere.
std::vector<Payload> payloads_of(const Message& message);

/// Memory for an arriving payload; `device`: where it goes on to.
Block allocate_payload(int64_t bytes, int32_t device = kHostDevice);
/// Reads the envelope alone. Throws: WireError.
Envelope open_envelope(const std::string& header);
/// Makes the message of what has arrived, and begins the copies to devices. Throws: WireError; DeviceError for a device that is not here;
/// OutOfMemoryError.
Message unseal(std::string header, std::vector<Block> payloads, const Envelope& envelope);

}  // namespace weft::rpc
