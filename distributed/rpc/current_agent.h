// The agent of the current scope, and the default agent of the process. Thread safety: all functions may be
// called from any thread; a scope affects the calling thread or fiber only.
#pragma once

#include <memory>

#include <weft/distributed/wire/call_context.h>

namespace weft::rpc {

class Agent;

/// Makes an agent current for a scope: `AgentScope as(agent); rpc_sync<f>("ps");`.
class WEFT_API AgentScope {
 public:
  explicit AgentScope(std::shared_ptr<Agent> agent);

 private:
  CallScope scope_;
};

/// The agent of the current scope, else the default agent. Throws: RpcError "RPC has not been initialized".
WEFT_API std::shared_ptr<Agent> current_agent();
/// The same, but null when there is none.
WEFT_API std::shared_ptr<Agent> current_agent_or_null();
/// The agent of a context; null when it has none.
WEFT_API std::shared_ptr<Agent> agent_of(const CallContext& context);

/// The default agent, made by init_rpc; null: none. Tests set their own.
WEFT_API std::shared_ptr<Agent> default_agent();
WEFT_API void set_default_agent(std::shared_ptr<Agent> agent);

}  // namespace weft::rpc
