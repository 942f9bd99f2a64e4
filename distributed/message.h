// A message between two agents before it is bytes: a body, a table of tensors that travel beside it, and small tagged extensions that
// the layers above the Agent add and read (distributed autograd its {context, message id}, references their fork ids). The body lies
// behind room for the Agent's envelope, so that sending never copies it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/transport.h>
#include <weft/tensor/tensor.h>

namespace weft::rpc {

/// What a message asks for: the transport's kind byte. Bit 0x80 marks the reply. The Agent keeps 1 to 15; a layer above takes a number
/// from its range and registers a handler (Agent::handle); users have 64 to 127.
enum class Kind : uint8_t {
  kStatus = 1,  ///< liveness, acknowledgement and retry in one (agent.cpp, step 5)
  kStatusReply = 2,
  kGoodbye = 3,  ///< the sender leaves the group
  kFenced = 4,   ///< the sender counts us as lost
  kCall = 8,     ///< run a registered function
  kGather = 9,   ///< barrier and all_gather
  kReturn = 10,  ///< lent device memory has been copied (lending.h)
  kRemote = 16,  ///< references: create (16 to 31)
  kFetch = 17,
  kMethod = 18,
  kFork = 19,
  kAccept = 20,
  kDelete = 21,
  kGradients = 32,  ///< distributed autograd (32 to 47)
  kRelease = 33,
  kMark = 34,
  kPassDone = 35,
  kPassAbort = 36,
  kOptimizer = 48,  ///< distributed optimizers and modules (48 to 63)
  kUser = 64,
};
inline constexpr uint8_t kReplyBit = 0x80;
WEFT_API std::string to_string(Kind kind);

/// Tags of extensions; one extension of each tag per message.
enum class Tag : uint8_t { kAutograd = 1, kForks = 2, kTrace = 3, kResultsToCpu = 4, kUser = 64 };

struct Extension {
  Tag tag;
  std::string bytes;
};

class Staging;
struct Loan;

/// Where a tensor of a message lies at its sender and at its receiver.
struct Place {
  Device source{}, target{};
  std::shared_ptr<void> host{};        ///< at the sender, once sealed: where a device's bytes were copied to
  std::shared_ptr<const Loan> loan{};  ///< or the loan that stands for them (lending.h)
};

/// Room at the head of `bytes` that the Agent fills when it sends.
inline constexpr size_t kEnvelopeBytes = 48;

/// Thread safety: as a plain value.
struct WEFT_API Message {
  Message() = default;
  Message(Message&&) noexcept = default;
  Message& operator=(Message&&) noexcept = default;
  /// A copy shares the tensors and does not carry `settled`.
  Message(const Message& o)
      : bytes(o.bytes),
        body_end(o.body_end),
        tensors(o.tensors),
        places(o.places),
        staging(o.staging),
        extensions(o.extensions) {}
  Message& operator=(const Message& o) { return *this = Message(o); }

  /// The encoded values.
  std::string_view body() const {
    return bytes.size() < kEnvelopeBytes
               ? std::string_view()
               : std::string_view(bytes).substr(kEnvelopeBytes, body_end - kEnvelopeBytes);
  }
  /// The bytes of an extension; null when the message has none of that tag.
  const std::string* find(Tag tag) const {
    for (const Extension& e : extensions)
      if (e.tag == tag) return &e.bytes;
    return nullptr;
  }
  /// The bytes of an extension to write to; made empty when missing.
  std::string& extension(Tag tag) {
    for (Extension& e : extensions)
      if (e.tag == tag) return e.bytes;
    return extensions.emplace_back(Extension{tag, {}}).bytes;
  }

  std::string bytes;                 ///< envelope room, body, then (once sent or received) the tail
  size_t body_end = kEnvelopeBytes;  ///< where the body ends in `bytes`
  std::vector<Tensor> tensors;       ///< in the order in which the body mentions them
  std::vector<Place> places;         ///< of the tensors; empty: all on the CPU at both ends
  std::shared_ptr<Staging>
      staging;  ///< copies to or from devices that must be done before it is sent, or before its values are used
  std::vector<Extension> extensions;
  /// Called once, must not block: true when the message is known to have been read (a request: an answer came that is not an error; a
  /// reply: the caller acknowledged it or gave up), false when that will never be known (error, deadline, peer lost, shutdown).
  std::vector<std::function<void(bool received)>> settled;
};

}  // namespace weft::rpc
