// The error of a call whose function has run, but whose result the callee does not have.
#pragma once

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

/// The function ran, and the callee had no room for its result (BudgetLimits). Either it never had room, or
/// the reply was lost on the way and the callee had dropped its copy. The function does not run again.
class WEFT_API ResultDropped : public RpcError {
 public:
  using RpcError::RpcError;
};

}  // namespace weft::rpc
