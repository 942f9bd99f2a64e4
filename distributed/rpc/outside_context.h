// The fate of a tensor that has a graph and crosses outside a distributed autograd context.
//
// No gradient can come back to such a tensor: its graph ends there. PyTorch cuts it silently. In weft the
// call fails with an AutogradError, unless the sender's AgentOptions::outside_context chooses otherwise.
// Leaves and tensors without requires_grad may cross. So may everything in a call made under NoGrad, and in
// the calls that its function makes. All arrive detached. The caller's option decides about arguments, the
// callee's option about the result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <weft/kernels/macros.h>

namespace weft::rpc {

class Agent;

/// The treatment of a tensor with a graph that crosses outside a context.
enum class OutsideContext : uint8_t {
  kThrow,   ///< the call fails with an AutogradError
  kReport,  ///< the tensor is detached; callbacks are called once per function
  kDetach,  ///< the tensor is detached
};

/// A graph that was cut.
struct CutGraph {
  std::string function;  ///< name of the called function; "to_here" for a fetched value
  std::string text;      ///< the error's text: function, argument or result, and the cure
};

/// Calls `f` with the first cut of each function under OutsideContext::kReport; before the first such call,
/// one line per function goes to stderr. `f` runs on the sending thread, before the message is sent. It must
/// be short and must not block; its exceptions are dropped. Several callbacks run in the order of their
/// registration. Thread safety: any thread.
WEFT_API void on_cut_graph(Agent& agent, std::function<void(const CutGraph&)> f);

}  // namespace weft::rpc
