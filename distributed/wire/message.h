// A message between two agents before serialisation: a body, a table of tensors sent with it, and small
// tagged extensions. Layers above the Agent add and read extensions; distributed autograd stores its context
// and message id in one. The body lies behind room for the Agent's envelope, so that sending never copies it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/transport/transport.h>
#include <weft/tensor/tensor.h>

namespace weft::rpc {

/// The request kind, which is the transport's kind byte. Bit 0x80 marks the reply. The Agent uses 1 to 15. A
/// layer above takes a number from its range and registers a handler (Agent::handle). Programs may use 64 to
/// 127.
enum class Kind : uint8_t {
  kStatus = 1,  ///< liveness, acknowledgement and retry in one (agent.cpp, step 5)
  kStatusReply = 2,
  kGoodbye = 3,  ///< the sender leaves the group
  kFenced = 4,   ///< the sender counts the receiver as lost
  kCall = 8,     ///< run a registered function
  kGather = 9,   ///< barrier and all_gather
  kReturn = 10,  ///< lent device memory has been copied (lending.h)
  /// the sender is passive and asks for the next shutdown round (rpc/rounds.cpp)
  kRound = 11,
  kRemote = 16,  ///< remote references: create a value (16 to 31)
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
  kUser = 64,
};
inline constexpr uint8_t kReplyBit = 0x80;
WEFT_API std::string to_string(Kind kind);

/// Tags of extensions; a message has at most one extension of each tag. Programs may use 64 and above.
enum class Tag : uint8_t { kAutograd = 1, kResultsToCpu = 4, kUser = 64 };

/// Tagged bytes that a layer adds to a message.
struct Extension {
  Tag tag;
  std::string bytes;
};

class Staging;
struct Loan;

/// Devices of a tensor of a message at its sender and at its receiver.
struct Place {
  Device source{}, target{};
  std::shared_ptr<void> host{};        ///< sender, after sealing: host copy of the tensor's device memory
  std::shared_ptr<const Loan> loan{};  ///< or the loan sent in place of the bytes (lending.h)
};

/// Room at the head of `bytes` that the Agent fills when it sends.
inline constexpr size_t kEnvelopeBytes = 56;

/// Body, tensors and extensions of one request or reply. Thread safety: as a plain value.
struct WEFT_API Message {
  Message() = default;
  Message(Message&&) noexcept = default;
  Message& operator=(Message&&) noexcept = default;
  /// A copy shares the tensors and does not carry `settled`.
  Message(const Message& o)
      : bytes(o.bytes),
        body_end(o.body_end),
        tensors(o.tensors),
        linked_argument(o.linked_argument),
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
  /// The bytes of the extension of this tag; null when there is none.
  const std::string* find(Tag tag) const {
    for (const Extension& e : extensions)
      if (e.tag == tag) return &e.bytes;
    return nullptr;
  }
  /// The bytes of the extension of this tag, for writing; created empty when there is none.
  std::string& extension(Tag tag) {
    for (Extension& e : extensions)
      if (e.tag == tag) return e.bytes;
    return extensions.emplace_back(Extension{tag, {}}).bytes;
  }

  std::string bytes;                 ///< envelope room, body, then (once sent or received) the tail
  size_t body_end = kEnvelopeBytes;  ///< offset of the body's end in `bytes`
  std::vector<Tensor> tensors;       ///< in the order in which the body refers to them
  /// sender: the argument, from 1, with the first tensor that requires a gradient and is no leaf; 0: none
  int32_t linked_argument = 0;
  std::vector<Place> places;  ///< of the tensors; empty: all on the CPU at both ends
  /// device copies that must end before the message is sent, or before its values are used
  std::shared_ptr<Staging> staging;
  std::vector<Extension> extensions;
  /// Callbacks, called once each; they must not block. `received` is true when the message was read. A
  /// request was read if it got a reply that is not an error. A reply was read if it was acknowledged or its
  /// caller gave up. `received` is false after an error, deadline, loss of the peer or shutdown.
  std::vector<std::function<void(bool received)>> settled;
};

}  // namespace weft::rpc
