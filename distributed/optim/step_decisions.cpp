// Decisions of steps in two phases at the store. The key is `step/<worker>.<life>.<optimizer>.<number>`, the
// value "commit" or "abort".
#include <weft/distributed/optim/inner/step_decisions.h>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::dist_optim::detail {

std::shared_ptr<rpc::Store> decision_store(rpc::Agent& agent) {
  const auto membership = rpc::Membership::of(agent);
  return membership ? membership->store() : nullptr;
}

void check_fence(rpc::Agent& agent) {
  const rpc::AgentCore& core = agent.impl().core;
  if (core.fence.closed()) std::rethrow_exception(core.fence.error(core.self.name));
}

std::string decision_key(rpc::Life caller, int64_t optimizer, int64_t number) {
  return str(rpc::inner::kStepBegin, caller.id, ".", caller.incarnation, ".", optimizer, ".", number);
}

bool decide_at_store(rpc::Store& store, const std::string& key, bool commit, rpc::Duration lease,
                     rpc::TimePoint deadline) {
  if (lease.count() <= 0) throw ValueError("step: a decision at the store needs a positive lease");
  try {
    store.hold(key, commit ? rpc::inner::kStepCommit : rpc::inner::kStepAbort, 4 * lease, deadline);
    return commit;
  } catch (const ValueError&) {  // the other one is held
    return !commit;
  }
}

}  // namespace weft::dist_optim::detail
