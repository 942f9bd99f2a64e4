// Debug information of an agent: counters, open calls and the graph of waits. The list of counters follows
// the includes. References and devices add their counters by add_debug_info.
#include <weft/distributed/rpc/inner/agent_impl.h>

#include <algorithm>

#include <weft/distributed/transport/address.h>

// The counters:
//   agent.thread_pool_size, .num_threads, .num_idle_threads, .num_blocked_threads, .queued_tasks   the pool
//   agent.client_active_calls, .server_active_calls, .server_active_async_calls       open calls
//   agent.client_calls, .served_calls, .served_errors, .timeouts                      totals
//   agent.resent_requests, .resent_replies, .duplicates, .late_replies, .statuses     retransmission
//   agent.malformed, .lost_peers, .kept_replies, .peers
//   agent.visited_peers                      total of looks at a peer, by its deadlines and by walks over all
//   agent.dropped_requests                   of peers with too many requests that are not finished
//   agent.watches                            things that keep lives of others under lease beside open calls
//   agent.open_bytes, .waiting_calls, .waiting_bytes, .credit_waits      requests at their caller (budget.h)
//   agent.served_bytes, .arriving_bytes, .kept_bytes, .dropped_results   requests and replies at their callee
//   agent.standing_bytes                     results at their callee, kept or still leaving
//   agent.reserved_bytes, .put_off           arriving replies, gradients and control; those without room
//   agent.unproven_connections, .closed_connections      of strangers: open, and closed by a limit
//   agent.same_host_lane                     1: workers of this host and user may use the lane; 0: they may
//                                            not, by the options or as the build has none (WEFT_LANE)
//   agent.shared_bytes, .shared_payloads     shared memory that this worker keeps, and payloads sent by it
//   agent.shared_no_room, .shared_no_memory, .shared_not_taken     large ones sent otherwise, by the reason
//   agent.passive_workers                    workers that told this one, as the leader, that they are passive

namespace weft::rpc {

std::map<std::string, int64_t> counters_of(Agent::Impl& s) {
  const PoolStats pool = s.core.runtime->pool_stats();
  std::map<std::string, int64_t> info;
  info["agent.thread_pool_size"] = pool.size;
  info["agent.num_threads"] = pool.threads;
  info["agent.num_idle_threads"] = pool.idle;
  info["agent.num_blocked_threads"] = pool.blocked;
  info["agent.queued_tasks"] = pool.queued;
  info["agent.client_active_calls"] = s.core.counters.active_client;
  info["agent.server_active_calls"] = s.core.counters.active_server;
  info["agent.client_calls"] = s.core.counters.calls;
  info["agent.served_calls"] = s.core.counters.served;
  info["agent.served_errors"] = s.core.counters.served_errors;
  info["agent.timeouts"] = s.core.counters.timeouts;
  info["agent.resent_requests"] = s.core.counters.resent_requests;
  info["agent.resent_replies"] = s.core.counters.resent_replies;
  info["agent.duplicates"] = s.core.counters.duplicates;
  info["agent.late_replies"] = s.core.counters.late_replies;
  info["agent.statuses"] = s.core.counters.asks;
  info["agent.dropped_requests"] = s.core.counters.dropped_requests;
  info["agent.malformed"] = s.core.counters.malformed;
  info["agent.lost_peers"] = s.core.counters.lost_peers;
  info["agent.visited_peers"] = s.peers.visits;
  int64_t kept = 0, asynchronous = 0, known = 0, watches = 0;
  for (Peer* p : s.peers.shown()) {
    MutexLock lock(p->mutex);
    known += p->known;
    watches += p->lost ? 0 : p->watchers;
    for (const auto& [sequence, served] : p->served) {
      kept += served->replied;
      asynchronous += !served->answered && !served->in_handler && served->what != nullptr;
    }
  }
  info["agent.kept_replies"] = kept;
  info["agent.server_active_async_calls"] = asynchronous;
  info["agent.peers"] = known;
  info["agent.watches"] = watches;
  s.core.budget.add_counters(info);
  const UnprovenCounters strangers = s.core.transport->unproven();
  info["agent.unproven_connections"] = strangers.open;
  info["agent.closed_connections"] = static_cast<int64_t>(strangers.closed);
  const std::vector<std::string> addresses = s.core.transport->addresses().addresses;
  info["agent.same_host_lane"] = std::any_of(addresses.begin(), addresses.end(), is_lane_address);
  const SharedMemoryCounters shared = s.core.transport->shared_memory();
  info["agent.shared_bytes"] = shared.bytes;
  info["agent.shared_payloads"] = static_cast<int64_t>(shared.payloads);
  info["agent.shared_no_room"] = static_cast<int64_t>(shared.no_room);
  info["agent.shared_no_memory"] = static_cast<int64_t>(shared.no_memory);
  info["agent.shared_not_taken"] = static_cast<int64_t>(shared.not_taken);
  info["agent.passive_workers"] = static_cast<int64_t>(s.rounds.count_passive());
  for (const auto& f : s.debug_callbacks.copies()) f(info);
  return info;
}

std::vector<CallRecord> open_calls(Agent::Impl& s) {
  const TimePoint now = s.core.runtime->now();
  std::vector<CallRecord> out;
  for (Peer* p : s.peers.shown()) {
    MutexLock lock(p->mutex);
    for (const auto& [sequence, call] : p->pending)
      out.push_back({sequence,
                     {p->name, p->id},
                     true,
                     str(call.what ? call.what : to_string(call.kind), call.waits ? " (no credit yet)" : ""),
                     now - call.started,
                     call.context.serving,
                     0});
    for (const auto& [sequence, served] : p->served) {
      if (served->answered) continue;
      const char* what = served->what;
      out.push_back({sequence,
                     {p->name, p->id},
                     false,
                     what ? what : to_string(served->kind),
                     now - served->started,
                     0,
                     served->context.serving});
    }
  }
  return out;
}

std::string text_of(const std::vector<CallRecord>& all, const std::string& name) {
  std::string out;
  for (const CallRecord& c : all) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(c.age).count();
    if (!c.outgoing) {
      out +=
          str("worker '", name, "' serves '", c.what, "' for worker '", c.peer.name, "' since ", ms, " ms\n");
      continue;
    }
    out += str("worker '", name, "' waits ", ms, " ms for '", c.what, "' on worker '", c.peer.name, "'");
    for (const CallRecord& around : all)
      if (c.within != 0 && around.number == c.within)
        out += str(" (inside '", around.what, "' called by worker '", around.peer.name, "')");
    out += "\n";
  }
  return out;
}

}  // namespace weft::rpc
