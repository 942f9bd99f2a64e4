// Decisions of steps in two phases at the store of an elastic group. The first one that reaches the store
// counts. The caller commits once all owners have prepared; an owner in doubt aborts. L is the lease of the
// optimizer's steps, and clocks run at the same rate. The caller writes at most 2 L after the begin of the
// step. An owner is in doubt from L after its preparation, or from the loss of the caller. It asks at most
// until 2 L after its preparation. A decision is held for 4 L, so an owner that asks in time finds the one
// that counts. The caller removes a decision that all owners have; any other decision ends with its lease.
#pragma once

#include <memory>
#include <string>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/rpc/agent.h>

namespace weft::dist_optim::detail {

/// The store of the agent's group; null in a static group.
std::shared_ptr<rpc::Store> decision_store(rpc::Agent& agent);
/// Throws: Fenced if the lease of the agent's life has run out. Such a life neither steps nor commits.
void check_fence(rpc::Agent& agent);
/// The key of a step: the life of its caller, the number of the optimizer there and that of the step.
std::string decision_key(rpc::Life caller, int64_t optimizer, int64_t number);
/// Writes a decision unless the opposite decision is there, in one request. Returns the decision that counts:
/// true for a commit. Throws: ValueError for a lease that is not positive. The errors of the store, and
/// Timeout; the decision may then still be written.
bool decide_at_store(rpc::Store& store, const std::string& key, bool commit, rpc::Duration lease,
                     rpc::TimePoint deadline);

}  // namespace weft::dist_optim::detail
