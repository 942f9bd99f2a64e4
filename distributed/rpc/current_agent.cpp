// The current and the default agent. wire/call_context.cpp keeps both as Endpoints; every Endpoint is an
// Agent, so the casts here are static.
#include <weft/distributed/rpc/current_agent.h>

#include <utility>

#include <weft/distributed/rpc/agent.h>

namespace weft::rpc {

namespace {

std::shared_ptr<Agent> as_agent(std::shared_ptr<Endpoint> endpoint) {
  return std::static_pointer_cast<Agent>(std::move(endpoint));
}

CallContext with_agent(std::shared_ptr<Agent> agent) {
  CallContext c = capture_context();
  c.endpoint = std::move(agent);
  return c;
}

}  // namespace

AgentScope::AgentScope(std::shared_ptr<Agent> agent) : scope_(with_agent(std::move(agent))) {}

std::shared_ptr<Agent> agent_of(const CallContext& context) { return as_agent(context.endpoint); }
std::shared_ptr<Agent> default_agent() { return as_agent(default_endpoint()); }
void set_default_agent(std::shared_ptr<Agent> agent) { set_default_endpoint(std::move(agent)); }
std::shared_ptr<Agent> current_agent_or_null() { return as_agent(current_endpoint()); }

std::shared_ptr<Agent> current_agent() {
  std::shared_ptr<Agent> agent = current_agent_or_null();
  if (!agent) throw RpcError("RPC has not been initialized: call rpc::init_rpc first");
  return agent;
}

}  // namespace weft::rpc
