// barrier and all_gather. The worker with the smallest id of the named ones is the leader. Every worker, the
// leader too, calls it with its message. When the last message has come, the leader answers all with all
// messages. Its workers and a number that each worker counts locally identify a round. So several threads may
// be in rounds of the same workers at once. The leader fails the round at the earliest deadline of its
// members and names the missing ones. The members wait a little longer (kGrace) for that answer.
#include <sstream>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/layers.h>

namespace weft::rpc {

struct GatherState {
  struct Round {
    std::vector<int32_t> members;
    std::map<int32_t, Message> arrived;
    std::vector<Responder> waiting;
    TimerId timer;
    TimePoint give_up = kNever;
  };
  Mutex mutex;
  std::map<std::string, uint64_t> next WEFT_GUARDED_BY(mutex);  ///< round numbers of this worker
  std::map<std::string, Round> rounds WEFT_GUARDED_BY(mutex);   ///< rounds that this worker leads
  bool stopped WEFT_GUARDED_BY(mutex) = false;
};

namespace {

constexpr Duration kGrace = std::chrono::seconds(1);

std::string key_of(const std::vector<int32_t>& ids) {
  std::string key;
  for (const int32_t id : ids) key += str(id, ",");
  return key;
}

void put_message(Encoder& out, const Message& m) {
  out.put(std::string(m.body()));
  out.place_on(kCpu);  // device maps apply to calls only
  out.put(m.tensors);
}

Message get_message(Decoder& in) {
  Message m;
  m.bytes.resize(kEnvelopeBytes);
  m.bytes += in.get<std::string>();
  m.body_end = m.bytes.size();
  m.tensors = in.get<std::vector<Tensor>>();
  return m;
}

void watch_members(Agent& agent, const std::vector<int32_t>& members, int delta) {
  for (const int32_t id : members)
    if (id != agent.self().id.value) agent.watch(WorkerId{id}, delta);
}

/// Removes a round and answers all its waiting members with an error.
void fail_round(Agent& agent, const std::string& round_key,
                const std::function<std::exception_ptr(const GatherState::Round&)>& why) {
  GatherState& g = *agent.impl().gathers;
  GatherState::Round round;
  {
    MutexLock lock(g.mutex);
    const auto found = g.rounds.find(round_key);
    if (found == g.rounds.end()) return;
    round = std::move(found->second);
    g.rounds.erase(found);
  }
  if (round.timer.value != 0) agent.runtime()->cancel(round.timer);
  watch_members(agent, round.members, -1);
  const std::exception_ptr error = why(round);
  for (Responder& r : round.waiting) r.fail(error);
}

std::string names_of(Agent& agent, const GatherState::Round& round, bool missing) {
  std::string out;
  for (const int32_t id : round.members)
    if ((round.arrived.count(id) == 0) == missing)
      out += str(out.empty() ? "'" : ", '", agent.impl().peer_name(agent.impl().peer(WorkerId{id})), "'");
  return out;
}

void time_out(Agent& agent, const std::string& round_key) {
  fail_round(agent, round_key, [&](const GatherState::Round& round) {
    return std::make_exception_ptr(
        Timeout(str("barrier or gather of ", round.members.size(), " workers: still waiting for ",
                    names_of(agent, round, true))));
  });
}

void on_gather(Agent& agent, Request request, Responder responder) {
  GatherState& g = *agent.impl().gathers;
  Decoder in(request.message, &agent, request.from);
  const auto members = in.get<std::vector<int32_t>>();
  const auto number = in.number<uint64_t>();
  const auto timeout = Duration(in.number<int64_t>());
  Message theirs = get_message(in);
  in.expect_end();
  const std::string round_key = str(key_of(members), "#", number);

  const TimePoint now = agent.runtime()->now();
  GatherState::Round complete;
  std::vector<int32_t> missing;
  bool fresh = false, whole = false;
  {
    MutexLock lock(g.mutex);
    if (g.stopped) throw RpcError(str("barrier or gather: worker '", agent.self().name, "' was shut down"));
    GatherState::Round& round = g.rounds[round_key];
    fresh = round.members.empty();
    round.members = members;
    round.arrived[request.from.value] = std::move(theirs);
    round.waiting.push_back(std::move(responder));
    if (timeout.count() > 0 && timeout < kNever - now) {
      const TimePoint give_up = now + timeout;
      if (give_up < round.give_up) {
        if (round.timer.value != 0) agent.runtime()->cancel(round.timer);
        round.give_up = give_up;
        round.timer = agent.runtime()->call_at(give_up, [weak = agent.weak_from_this(), round_key] {
          if (const auto self = weak.lock()) time_out(*self, round_key);
        });
      }
    }
    for (const int32_t id : members)
      if (round.arrived.count(id) == 0) missing.push_back(id);
    whole = missing.empty();
    if (whole) {
      complete = std::move(round);
      g.rounds.erase(round_key);
    }
  }
  if (fresh) watch_members(agent, members, +1);
  // Checked after the round became visible: a loss at this moment is noticed here or in gather_peer_lost.
  if (!whole) {
    for (const int32_t id : missing)
      if (agent.is_lost(WorkerId{id})) {
        const std::string name = agent.impl().peer_name(agent.impl().peer(WorkerId{id}));
        fail_round(agent, round_key, [&](const GatherState::Round&) {
          return std::make_exception_ptr(
              PeerLost(name, str("barrier or gather: worker '", name, "' is gone")));
        });
        return;
      }
    return;
  }
  watch_members(agent, members, -1);
  if (complete.timer.value != 0) agent.runtime()->cancel(complete.timer);
  for (Responder& r : complete.waiting) {
    Message all;
    {
      Encoder out(all, &agent, r.context().caller, true);
      out.size(complete.arrived.size());
      for (const auto& [id, message] : complete.arrived) {
        out.number(id);
        put_message(out, message);
      }
    }
    r.reply(std::move(all));
  }
}

}  // namespace

void install_gather(Agent& agent) {
  agent.impl().gathers = std::make_shared<GatherState>();
  agent.handle(Kind::kGather, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    on_gather(*self, std::move(request), std::move(responder));
  });
}

void gather_peer_lost(Agent::Impl& impl, const WorkerInfo& peer, bool left, const std::string& why) {
  const auto agent = impl.owner.lock();
  if (!agent || !impl.gathers) return;
  std::vector<std::string> broken;
  {
    MutexLock lock(impl.gathers->mutex);
    for (const auto& [key, round] : impl.gathers->rounds)
      if (round.arrived.count(peer.id.value) == 0 &&
          std::count(round.members.begin(), round.members.end(), peer.id.value) > 0)
        broken.push_back(key);
  }
  for (const std::string& key : broken)
    fail_round(*agent, key, [&](const GatherState::Round&) {
      return std::make_exception_ptr(PeerLost(peer.name, str("barrier or gather: worker '", peer.name, "' ",
                                                             left ? "has left: " : "is lost: ", why)));
    });
}

void stop_gathers(Agent::Impl& impl) {
  GatherState& g = *impl.gathers;
  std::map<std::string, GatherState::Round> rounds;
  {
    MutexLock lock(g.mutex);
    g.stopped = true;
    rounds.swap(g.rounds);
  }
  for (auto& [key, round] : rounds) {
    if (round.timer.value != 0) impl.runtime->cancel(round.timer);
    for (Responder& r : round.waiting)
      r.fail(std::make_exception_ptr(
          RpcError(str("barrier or gather: worker '", impl.self.name, "' was shut down"))));
  }
}

std::map<std::string, Message> Agent::gather(Message mine, std::vector<std::string> names, Duration timeout) {
  std::vector<int32_t> ids;
  if (names.empty())
    for (const WorkerInfo& w : worker_infos()) ids.push_back(w.id.value);
  for (const std::string& name : names) ids.push_back(worker_info_id(name).value);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (!std::binary_search(ids.begin(), ids.end(), self().id.value))
    throw ValueError(str("barrier or gather: worker '", self().name, "' is not among those named"));

  if (timeout.count() == 0) timeout = rpc_timeout();
  GatherState& g = *impl_->gathers;
  const std::string key = key_of(ids);
  Message request;
  {
    Encoder out(request, this, WorkerId{ids.front()});
    out.put(ids);
    {
      MutexLock lock(g.mutex);
      out.number(g.next[key]++);
    }
    out.number(static_cast<int64_t>(timeout.count()));
    put_message(out, mine);
  }
  const CallOptions options{
      .timeout = timeout.count() > 0 ? std::min(timeout, Duration::max() - kGrace) + kGrace : timeout,
      .what = "barrier or gather"};
  const Message all = call(WorkerId{ids.front()}, Kind::kGather, std::move(request), options).take();
  std::map<std::string, Message> out;
  Decoder in(all, this, WorkerId{ids.front()}, true);
  for (size_t n = in.size(); n > 0; --n) {
    const auto id = in.number<int32_t>();
    out.emplace(impl_->peer_name(impl_->peer(WorkerId{id})), get_message(in));
  }
  return out;
}

void Agent::barrier(std::vector<std::string> names, Duration timeout) {
  gather({}, std::move(names), timeout);
}

}  // namespace weft::rpc
