// The interface of an Agent that futures, codecs and call contexts use. Agent is its only implementation.
// Thread safety: every member may be called from any thread.
#pragma once

#include <memory>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>
#include <weft/kernels/device.h>

namespace weft::rpc {

/// The agent as seen by the layers below it.
class WEFT_API Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual const std::shared_ptr<Runtime>& runtime() const = 0;
  /// The device of `to` for a tensor on `source`; see Agent::target_device.
  virtual Device target_device(WorkerId to, bool reply, Device source,
                               bool unmapped_to_cpu = false) const = 0;
};

}  // namespace weft::rpc
