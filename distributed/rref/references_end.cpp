// References: loss of workers (references.cpp, step 11), graceful shutdown (step 12), the end of the agent
// and the counters. Each function reads all tables at one moment, under the mutex, and acts afterwards.
#include <weft/distributed/rref/inner/references.h>

#include <algorithm>
#include <set>

namespace weft::rpc::detail {

void References::peer_lost(const LostPeer& peer) {
  std::vector<DeferredItem> after;
  UserTable::States users;
  std::vector<std::shared_ptr<OwnedState>> unborn;
  std::vector<ForkId> shares;
  {
    TablesLock lock(context_);
    unborn = owners_.lose(peer.life(), after);
    users = users_.of_owner(peer.life());
    shares = shares_.sent_to(peer.life());
    users_.forget_refused(peer.life());
  }
  context_.trace("lost ", peer.info.id.value);
  const std::string reason = str(peer.info, peer.left ? " has left the group" : " is lost", ": ", peer.why);
  for (const auto& state : unborn)
    state->fail(std::make_exception_ptr(
        PeerLost(peer.info.name, str(state->id, " was never made: its creator ", reason))));
  users_.lose_owner(users, peer.info, reason, after);
  for (const ForkId fork : shares) shares_.resolve(fork, true);
  work_.add(std::move(after));
  context_.changed();
}

// ---- step 12

void References::shutdown_shares(TimePoint deadline) {
  const auto agent = context_.agent();
  if (!agent) return;
  work_.drain();
  shares_.probe_all();
  const bool settled = context_.wait_quiet(deadline, [&]() WEFT_REQUIRES(kTables) {
    return users_.all_confirmed() && shares_.empty() && work_.idle();
  });
  if (!settled) {
    std::vector<WorkerId> owners, receivers;
    {
      TablesLock lock(context_);
      owners = users_.awaited();
      receivers = shares_.receivers();
    }
    std::set<std::string> names;
    for (const auto* workers : {&owners, &receivers})
      for (const WorkerId id : *workers) names.insert(to_string(agent->worker_info(id)));
    std::string text = str("shutdown of worker '", self().name, "': ", owners.size(),
                           " references not confirmed and ", receivers.size(), " on their way; waited for ");
    for (const std::string& name : names) text += name + (name == *names.rbegin() ? "" : ", ");
    throw Timeout(text);
  }
  TablesLock lock(context_);
  users_.record();
}

void References::shutdown_users(TimePoint deadline) {
  users_.delete_recorded();
  work_.drain();
  context_.wait_quiet(deadline,
                      [&]() WEFT_REQUIRES(kTables) { return work_.idle() && work_.deletes_answered(); });
}

void References::shutdown_owners(TimePoint deadline) {
  const auto limit = std::min(deadline, runtime()->now() + std::chrono::seconds(10));
  context_.wait_quiet(limit, [&]() WEFT_REQUIRES(kTables) { return work_.idle() && owners_.no_forks(); });
  owners_.report_leaks();
}

/// Releases everything after the end of the agent, without messages.
void References::stop() {
  OwnerTable::Rest owners;
  UserTable::Rest users;
  ShareTable::Rest shares;
  std::vector<DeferredItem> items;
  {
    TablesLock lock(context_);
    if (std::exchange(context_.stopped, true)) return;
    owners = owners_.take_all();
    users = users_.take_all();
    shares = shares_.take_all();
    items = work_.take_all();
  }
  for (const auto& state : users.living)
    users_.lose(
        state, UserState::Standing::kDeleted,
        std::make_exception_ptr(RpcError(str("RPC has not been initialized: ", describe(state.get()),
                                             " was used after worker '", self().name, "' was shut down"))));
  for (const auto& state : owners.living)
    if (!state->created.done())
      state->fail(std::make_exception_ptr(
          RpcError(str("worker '", self().name, "' was shut down before ", state->id, " was made"))));
}

void References::debug_info(std::map<std::string, int64_t>& into) {
  TablesLock lock(context_);
  owners_.count(into);
  users_.count(into);
  shares_.count(into);
}

}  // namespace weft::rpc::detail
