// A request that this worker cannot serve yet. A handler or an interceptor throws PutOff, and the request
// counts as not received. The caller's next status finds it missing and sends it again until its deadline
// (agent.cpp, step 5). So a worker may get requests about a successor before it learns of that successor.
#pragma once

#include <weft/distributed/rpc/rpc_error.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc {

class Agent;

class PutOff : public RpcError {
 public:
  using RpcError::RpcError;
};

/// Throws: PutOff while this worker has not learned of that life; PeerLost after a lease without it.
void check_told(Agent& agent, Life life);

}  // namespace weft::rpc
