// barrier and gather: the leader's rounds, and the call of every worker. inner/gathers.h describes the
// protocol.
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/services.h>

namespace weft::rpc {

namespace {

constexpr Duration kGrace = std::chrono::seconds(1);  // the members wait so much longer than the leader

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

}  // namespace

/// Removes a round and answers all its waiting members with an error.
void Gathers::fail(Agent& agent, const std::string& round_key,
                   const std::function<std::exception_ptr(const Round&)>& why) {
  Round round;
  {
    MutexLock lock(mutex_);
    const auto found = rounds_.find(round_key);
    if (found == rounds_.end()) return;
    round = std::move(found->second);
    rounds_.erase(found);
  }
  if (round.timer.value != 0) agent.runtime()->cancel(round.timer);
  watch_members(agent, round.members, -1);
  const std::exception_ptr error = why(round);
  for (Responder& r : round.waiting) r.fail(error);
}

void Gathers::time_out(Agent& agent, const std::string& round_key) {
  fail(agent, round_key, [&](const Round& round) {
    std::string missing;
    for (const int32_t id : round.members)
      if (round.arrived.count(id) == 0)
        missing += str(missing.empty() ? "'" : ", '", peers_.name(WorkerId{id}), "'");
    return std::make_exception_ptr(
        Timeout(str("barrier or gather of ", round.members.size(), " workers: still waiting for ", missing)));
  });
}

void Gathers::serve(Agent& agent, Request request, Responder responder) {
  Decoder in(request.message, &agent, request.from);
  const auto members = in.get<std::vector<int32_t>>();
  const auto number = in.number<uint64_t>();
  const auto timeout = Duration(in.number<int64_t>());
  Message theirs = get_message(in);
  in.expect_end();
  const std::string round_key = str(key_of(members), "#", number);

  const TimePoint now = agent.runtime()->now();
  Round complete;
  std::vector<int32_t> missing;
  bool fresh = false, whole = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("barrier or gather: worker '", agent.self().name, "' was shut down"));
    Round& round = rounds_[round_key];
    fresh = round.members.empty();
    round.members = members;
    round.arrived[request.from.value] = std::move(theirs);
    round.waiting.push_back(std::move(responder));
    if (timeout.count() > 0 && timeout < kNever - now) {
      const TimePoint give_up = now + timeout;
      if (give_up < round.give_up) {
        if (round.timer.value != 0) agent.runtime()->cancel(round.timer);
        round.give_up = give_up;
        round.timer = agent.runtime()->call_at(give_up, [this, weak = agent.weak_from_this(), round_key] {
          if (const auto self = weak.lock()) time_out(*self, round_key);
        });
      }
    }
    for (const int32_t id : members)
      if (round.arrived.count(id) == 0) missing.push_back(id);
    whole = missing.empty();
    if (whole) {
      complete = std::move(round);
      rounds_.erase(round_key);
    }
  }
  if (fresh) watch_members(agent, members, +1);
  // Checked after the round became visible: a loss at this moment is noticed here or in peer_lost.
  if (!whole) {
    for (const int32_t id : missing)
      if (agent.is_lost(WorkerId{id})) {
        const std::string name = peers_.name(WorkerId{id});
        fail(agent, round_key, [&](const Round&) {
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

void install_gather(Agent& agent) {
  agent.handle(Kind::kGather, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    self->impl().gathers.serve(*self, std::move(request), std::move(responder));
  });
}

void Gathers::peer_lost(Agent& agent, const WorkerInfo& peer, bool left, const std::string& why) {
  std::vector<std::string> broken;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, round] : rounds_)
      if (round.arrived.count(peer.id.value) == 0 &&
          std::count(round.members.begin(), round.members.end(), peer.id.value) > 0)
        broken.push_back(key);
  }
  for (const std::string& key : broken)
    fail(agent, key, [&](const Round&) {
      return std::make_exception_ptr(PeerLost(peer.name, str("barrier or gather: worker '", peer.name, "' ",
                                                             left ? "has left: " : "is lost: ", why)));
    });
}

void Gathers::stop() {
  std::map<std::string, Round> rounds;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    rounds.swap(rounds_);
  }
  for (auto& [key, round] : rounds) {
    if (round.timer.value != 0) core_.runtime->cancel(round.timer);
    for (Responder& r : round.waiting)
      r.fail(std::make_exception_ptr(
          RpcError(str("barrier or gather: worker '", core_.self.name, "' was shut down"))));
  }
}

std::map<std::string, Message> Gathers::gather(Agent& agent, Message mine,
                                               const std::vector<std::string>& names, Duration timeout) {
  std::vector<int32_t> ids;
  if (names.empty())
    for (const WorkerInfo& w : agent.worker_infos()) ids.push_back(w.id.value);
  for (const std::string& name : names) ids.push_back(agent.worker_info_id(name).value);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (!std::binary_search(ids.begin(), ids.end(), core_.self.id.value))
    throw ValueError(str("barrier or gather: worker '", core_.self.name, "' is not among those named"));

  if (timeout.count() == 0) timeout = agent.rpc_timeout();
  const std::string key = key_of(ids);
  Message request;
  {
    Encoder out(request, &agent, WorkerId{ids.front()});
    out.put(ids);
    {
      MutexLock lock(mutex_);
      out.number(next_[key]++);
    }
    out.number(static_cast<int64_t>(timeout.count()));
    put_message(out, mine);
  }
  const CallOptions options{
      .timeout = timeout.count() > 0 ? std::min(timeout, Duration::max() - kGrace) + kGrace : timeout,
      .what = "barrier or gather"};
  const Message all = agent.call(WorkerId{ids.front()}, Kind::kGather, std::move(request), options).take();
  std::map<std::string, Message> out;
  Decoder in(all, &agent, WorkerId{ids.front()}, true);
  for (size_t n = in.size(); n > 0; --n) {
    const auto id = in.number<int32_t>();
    out.emplace(peers_.name(WorkerId{id}), get_message(in));
  }
  return out;
}

}  // namespace weft::rpc
