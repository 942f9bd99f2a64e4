// What follows a call through threads and fibers: the agent that serves, the autograd context, the deadline. A handler and a
// continuation run inside a CallScope; Future::then captures the scope it was called in and restores it for the continuation.
#pragma once

#include <cstdint>
#include <memory>

#include <weft/distributed/ids.h>
#include <weft/distributed/runtime.h>

namespace weft::rpc {

class Agent;

struct CallContext {
  std::shared_ptr<Agent> agent;   ///< whose calls the free functions make; null: the default agent
  int64_t autograd_context = -1;  ///< id of the distributed autograd context; negative: none
  TimePoint deadline =
      kNever;            ///< of the call being served: nested calls without a time of their own end by it
  WorkerId caller;       ///< who called; negative outside a handler
  uint64_t serving = 0;  ///< number of the call being served, for dumps of who waits for whom
  bool results_to_cpu =
      false;  ///< of the call being served: results on devices without an entry in the map go to the caller's CPU
};

/// The innermost scope of this thread or fiber; null outside any. Valid as long as the scope.
WEFT_API const CallContext* current_context();
/// A copy of it; the empty one outside any scope.
WEFT_API CallContext capture_context();

/// Makes a context current for a scope. Thread safety: concerns the calling thread or fiber only.
class WEFT_API CallScope {
 public:
  explicit CallScope(CallContext context);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  const CallContext& context() const { return context_; }

 private:
  CallContext context_;
  void* before_;
};

/// Makes an agent current for a scope: `AgentScope as(agent); rpc_sync<f>("ps");`.
class WEFT_API AgentScope {
 public:
  explicit AgentScope(std::shared_ptr<Agent> agent);

 private:
  CallScope scope_;
};

/// The agent of the current scope, else the default agent. Throws: RpcError "RPC has not been initialized".
WEFT_API std::shared_ptr<Agent> current_agent();
/// The same without an error: null when there is none.
WEFT_API std::shared_ptr<Agent> current_agent_or_null();
/// The runtime of the current agent, else one of the process's own.
WEFT_API std::shared_ptr<Runtime> current_runtime();

/// The agent that init_rpc made; set by it and by tests. Null: none.
WEFT_API std::shared_ptr<Agent> default_agent();
WEFT_API void set_default_agent(std::shared_ptr<Agent> agent);

}  // namespace weft::rpc
