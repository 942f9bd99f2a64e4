// The error of a call whose function has run, and whose result the callee no longer has.
#pragma once

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

/// The function ran, and its reply was lost on the way. The callee has dropped its copy for want of room
/// (BudgetLimits). The function does not run again.
class WEFT_API ResultDropped : public RpcError {
 public:
  using RpcError::RpcError;
};

}  // namespace weft::rpc
