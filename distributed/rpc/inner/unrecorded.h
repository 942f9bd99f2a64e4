// The check of messages that no autograd context records (outside_context.h). Distributed autograd asks for
// it where it would record, and gathers ask for it themselves.
#pragma once

#include <string>

#include <weft/distributed/wire/message.h>

namespace weft::rpc {

class Agent;

/// The part of a call that a message carries.
enum class Carries : uint8_t { kArguments, kResult, kNeverRecorded };

/// A tensor of the message requires a gradient and is no leaf.
WEFT_API bool has_graph(const Message& message);
/// Applies the agent's OutsideContext to the tensors of an outgoing message. `function` has no quotes.
/// Throws: AutogradError under kThrow for a tensor that requires a gradient and is no leaf.
WEFT_API void check_unrecorded(Agent& agent, const Message& message, const std::string& function, WorkerId to,
                               Carries carries);
/// Detaches the tensors of an incoming message.
WEFT_API void detach_unrecorded(Message& message);

}  // namespace weft::rpc
