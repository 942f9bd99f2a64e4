// The interface of an Agent that futures, codecs and call contexts use. Agent is its only implementation.
// Thread safety: every member may be called from any thread.
#pragma once

#include <memory>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>
#include <weft/kernels/device.h>

namespace weft::rpc {

/// An open call at its caller. Only the agent reads it.
struct CallId {
  void* peer = nullptr;
  uint64_t sequence = 0;  ///< 0: no call
};

/// Ends calls before their answer is there.
class WEFT_API Canceller {
 public:
  virtual ~Canceller() = default;
  /// Ends the call with Cancelled and notifies its callee. False: the call has ended. Does not block.
  virtual bool cancel_call(const CallId& call) = 0;
};

/// The agent as seen by the layers below it.
class WEFT_API Endpoint : public Canceller {
 public:
  virtual const std::shared_ptr<Runtime>& runtime() const = 0;
  /// The device of `to` for a tensor on `source`; see Agent::target_device.
  virtual Device target_device(WorkerId to, bool reply, Device source,
                               bool unmapped_to_cpu = false) const = 0;
};

}  // namespace weft::rpc
