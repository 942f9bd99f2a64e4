// The rule by which a group has nothing left: the counters of `rpc::debug_info()` that count held things.
#pragma once

#include <set>
#include <string>

namespace examples {

/// False for totals, for the pool of threads and for the mark of the lane. All others count held things, or
/// events that an honest group does not have, and are zero when nothing is held. With `lost` workers the
/// counts of their losses are none of these. `agent.watches` is among them: in an elastic group each worker
/// keeps another one under lease as long as the group lives.
inline bool counts_held(const std::string& counter, bool lost) {
  static const std::set<std::string> kTotals = {"agent.thread_pool_size",
                                                "agent.num_threads",
                                                "agent.num_idle_threads",
                                                "agent.num_blocked_threads",
                                                "agent.queued_tasks",
                                                "agent.client_calls",
                                                "agent.served_calls",
                                                "agent.served_errors",
                                                "agent.timeouts",
                                                "agent.resent_requests",
                                                "agent.resent_replies",
                                                "agent.duplicates",
                                                "agent.late_replies",
                                                "agent.statuses",
                                                "agent.peers",
                                                "agent.visited_peers",
                                                "agent.same_host_lane",
                                                "agent.credit_waits",
                                                "agent.put_off",
                                                "batch.calls",
                                                "batch.runs"};
  static const std::set<std::string> kOfLosses = {"agent.lost_peers", "num_gone_rrefs"};
  return kTotals.count(counter) == 0 && !(lost && kOfLosses.count(counter) > 0);
}

}  // namespace examples
