// Errors of the steps of distributed optimizers, which keep their type from worker to worker.
#pragma once

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

/// A step's gradients were computed from parameters that are older than the optimizer's bound.
class WEFT_API StaleStep : public RpcError {
 public:
  using RpcError::RpcError;
};

/// A parameter has another step that is prepared but undecided, or that is running.
class WEFT_API StepInDoubt : public RpcError {
 public:
  using RpcError::RpcError;
};

}  // namespace weft::rpc
