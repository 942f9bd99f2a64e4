// The error of a worker of an elastic group whose lease has run out (launch/membership.h).
#pragma once

#include <weft/distributed/runtime/error.h>

namespace weft::rpc {

/// The lease of a worker at the store has run out. It serves nothing and makes no calls. Requests to it and
/// its own calls fail with this error until it has renewed the lease. Once it has a successor, they fail for
/// good.
class WEFT_API Fenced : public RpcError {
 public:
  using RpcError::RpcError;
};

}  // namespace weft::rpc
