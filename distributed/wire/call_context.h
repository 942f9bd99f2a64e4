// The context of a call: the serving agent, the autograd context and the deadline. It follows the call
// through threads and fibers. Handlers and continuations run inside a CallScope. Future::then captures the
// scope of its caller and restores it for the continuation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>
#include <weft/distributed/wire/endpoint.h>

namespace weft::rpc {

/// The context of the running code: inside a handler, the context of the served call.
struct CallContext {
  /// the Agent whose calls the free functions make; null: the default agent
  std::shared_ptr<Endpoint> endpoint;
  int64_t autograd_context = -1;  ///< id of the distributed autograd context; negative: none
  Incarnation autograd_life;      ///< incarnation of the worker that made that context
  /// deadline of the served call; nested calls that set no timeout also end by it
  TimePoint deadline = kNever;
  WorkerId caller;          ///< caller of the served call; negative outside a handler
  Incarnation caller_life;  ///< its incarnation
  /// epoch of the caller's member list when it sent the call (launch/membership.h); 0: a static group
  uint64_t caller_epoch = 0;
  uint64_t serving = 0;  ///< number of the served call, for Agent::dump
  /// results of the served call on devices without an entry in the map go to the caller's CPU
  bool results_to_cpu = false;
  /// true once the caller of the served call has given up, or its agent has stopped; null outside a handler
  std::shared_ptr<const std::atomic<bool>> given_up;

  /// True once the answer of the served call is not needed any more. That is so after its deadline, after a
  /// cancel or the loss of its caller, and after a stop of the serving agent. A long function checks it now
  /// and then, and ends early. False outside a handler. Takes no lock.
  WEFT_API bool cancelled() const;
};

/// The innermost context of this thread or fiber; null outside any scope. Valid during its scope.
WEFT_API const CallContext* current_context();
/// The same; outside any scope an empty context.
WEFT_API const CallContext& call_context();
/// A copy of the innermost context; an empty context outside any scope.
WEFT_API CallContext capture_context();

/// Makes a context current for a scope. Thread safety: affects the calling thread or fiber only.
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

/// The endpoint of the current scope, else the default one; null when there is none. Thread safety (this and
/// all below): any thread.
WEFT_API std::shared_ptr<Endpoint> current_endpoint();
/// The runtime of the current endpoint, else a threaded runtime of the process.
WEFT_API std::shared_ptr<Runtime> current_runtime();

/// The default endpoint of the process; null: none. Set it through set_default_agent.
WEFT_API std::shared_ptr<Endpoint> default_endpoint();
WEFT_API void set_default_endpoint(std::shared_ptr<Endpoint> endpoint);

}  // namespace weft::rpc
