// A request that this worker cannot serve yet. A handler or an interceptor throws PutOff, and the request
// counts as not received: the caller's next status finds it missing, and the caller sends it again until its
// deadline (agent.cpp, step 5). So a worker may be asked about a successor before it is told of that.
#pragma once

#include <weft/distributed/rpc/rpc_error.h>

namespace weft::rpc {

class PutOff : public RpcError {
 public:
  using RpcError::RpcError;
};

}  // namespace weft::rpc
