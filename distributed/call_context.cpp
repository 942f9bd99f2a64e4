// The current scope of a thread or fiber, and the default agent.
#include <weft/distributed/call_context.h>

#include <utility>

#include <weft/autograd/grad_mode.h>
#include <weft/distributed/agent.h>
#include <weft/distributed/sync.h>

namespace weft::rpc {

namespace {

const FiberLocal& scope_slot() {
  static const FiberLocal slot;
  return slot;
}

struct Default {
  Mutex mutex;
  std::shared_ptr<Agent> agent WEFT_GUARDED_BY(mutex);
};
// Never destroyed: a program that ends without shutdown() must not tear down threads and connections from a static destructor.
Default& the_default() {
  static Default* d = new Default;
  return *d;
}

}  // namespace

const CallContext* current_context() { return static_cast<const CallContext*>(scope_slot().get()); }

CallContext capture_context() {
  const CallContext* c = current_context();
  return c ? *c : CallContext();
}

CallScope::CallScope(CallContext context) : context_(std::move(context)), before_(scope_slot().get()) {
  scope_slot().set(&context_);
}
CallScope::~CallScope() { scope_slot().set(before_); }

namespace {
CallContext with_agent(std::shared_ptr<Agent> agent) {
  CallContext c = capture_context();
  c.agent = std::move(agent);
  return c;
}
}  // namespace

AgentScope::AgentScope(std::shared_ptr<Agent> agent) : scope_(with_agent(std::move(agent))) {}

std::shared_ptr<Agent> default_agent() {
  MutexLock lock(the_default().mutex);
  return the_default().agent;
}

void set_default_agent(std::shared_ptr<Agent> agent) {
  MutexLock lock(the_default().mutex);
  std::swap(the_default().agent, agent);
  lock.unlock();  // the old one may end here, and take its time
}

std::shared_ptr<Agent> current_agent_or_null() {
  const CallContext* c = current_context();
  return c && c->agent ? c->agent : default_agent();
}

std::shared_ptr<Agent> current_agent() {
  std::shared_ptr<Agent> agent = current_agent_or_null();
  if (!agent) throw RpcError("RPC has not been initialized: call rpc::init_rpc first");
  return agent;
}

std::shared_ptr<Runtime> current_runtime() {
  if (const std::shared_ptr<Agent> agent = current_agent_or_null()) return agent->runtime();
  static const auto* own =
      new std::shared_ptr<Runtime>(make_threaded_runtime());  // futures made by hand, before init_rpc
  return *own;
}

}  // namespace weft::rpc
