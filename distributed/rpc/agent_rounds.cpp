// The shutdown rounds of a group (agent.cpp, step 9). A passive worker requests one round after the other
// from the leader, the living worker with the smallest id, perhaps itself.
//  a. The leader keeps all members under lease. It answers a round when every living member has requested it,
//     with the same answer for all. It does not wait for members that are lost or have left.
//  b. If the leader is lost, the others turn to the next one. They keep all workers that may lead before them
//     under lease, so that several dead leaders take no longer than one. Workers with the old leader's answer
//     are one round ahead. Their requests carry that answer, and the new leader passes it to the rest.
//     [G: one outcome for all]
//  c. The answer of the first round is the outcome. It has `failed` set if the last active member was lost:
//     a lost member was not passive, and was heard of after all living members had become passive. Each
//     request says how long its worker has been passive. Whenever a worker becomes passive, the leader asks
//     the active ones for a sign of life, so the uncertainty is at most one message delay.
//  d. A worker that alone counts the leader as lost may turn to a worker that does not lead. That worker
//     passes on the answer it gets itself.
// Shutdown repeats the rounds for termination detection, with sums of calls begun and
// open (agent_shutdown.cpp).
#include <limits>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/layers.h>

namespace weft::rpc {

struct RoundState {
  struct Arrived {
    Responder responder;
    uint64_t number = 0;
    TimePoint passive;   ///< when it became passive, by this worker's clock
    RoundAnswer counts;  ///< the counts of its own calls
    RoundAnswer last;    ///< its answer of the previous round
  };
  Mutex mutex;
  std::map<int32_t, Arrived> arrived WEFT_GUARDED_BY(mutex);
  std::set<int32_t> passive WEFT_GUARDED_BY(mutex);  ///< all workers that ever requested a round
  std::set<int32_t> watched WEFT_GUARDED_BY(mutex);
};

namespace {

struct MemberState {
  int32_t id = 0;
  std::string name, why;
  bool lost = false, left = false;
  TimePoint last_heard;
};

std::vector<MemberState> members_of(Agent::Impl& s) {
  std::vector<MemberState> out;
  for (Peer* p : s.all_peers()) {
    MutexLock lock(p->mutex);
    if (p->known) out.push_back({p->id.value, p->name, p->why, p->lost, p->left, p->last_heard});
  }
  return out;
}

Message message_of(const RoundAnswer& answer) {
  Message m;
  Encoder out(m);
  out.put(answer);
  out.finish();
  return m;
}

/// Step c: decides the outcome.
void judge(const RoundState& g, const std::vector<MemberState>& members, RoundAnswer& answer)
    WEFT_REQUIRES(g.mutex) {
  TimePoint all_passive, last;
  for (const auto& [id, one] : g.arrived) all_passive = std::max(all_passive, one.passive);
  for (const MemberState& m : members) {
    if (!m.lost || m.left) continue;
    answer.text += str(answer.text.empty() ? "" : "; ", "worker '", m.name, "' is lost: ", m.why);
    if (g.passive.count(m.id) > 0 || m.last_heard <= all_passive) continue;
    answer.failed = true;
    if (m.last_heard >= last) answer.peer = m.name, last = m.last_heard;
  }
  answer.text = answer.failed ? "no worker is active any more: " + answer.text : "";
}

/// Keeps every member below that id under lease from now on.
void watch_below(Agent& agent, int32_t limit) {
  std::vector<int32_t> fresh;
  {
    RoundState& g = *agent.impl().rounds;
    const auto members = members_of(agent.impl());
    MutexLock lock(g.mutex);
    for (const MemberState& m : members)
      if (m.id < limit && m.id != agent.self().id.value && !m.lost && g.watched.insert(m.id).second)
        fresh.push_back(m.id);
  }
  for (const int32_t id : fresh) agent.watch(WorkerId{id}, +1);
}

/// Asks every member that is not passive for a sign of life.
void ask_active(Agent::Impl& s) {
  std::set<int32_t> passive;
  {
    MutexLock lock(s.rounds->mutex);
    passive = s.rounds->passive;
  }
  for (Peer* p : s.all_peers()) {
    MutexLock lock(p->mutex);
    p->ask_now = p->ask_now || (p->known && !p->lost && passive.count(p->id.value) == 0);
  }
  s.schedule(s.runtime->now());
}

/// Names of the living members that have not requested the round.
std::string missing(Agent& agent) {
  RoundState& g = *agent.impl().rounds;
  const auto members = members_of(agent.impl());
  std::string out;
  MutexLock lock(g.mutex);
  for (const MemberState& m : members)
    if (!m.lost && g.arrived.count(m.id) == 0) out += str(out.empty() ? "'" : ", '", m.name, "'");
  return out;
}

void on_round(Agent& agent, Request request, Responder responder) {
  RoundState& g = *agent.impl().rounds;
  Decoder in(request.message, &agent, request.from);
  const bool asks = in.get<bool>();
  RoundState::Arrived one;
  one.number = in.number<uint64_t>();
  one.passive = agent.runtime()->now() - Duration(in.number<int64_t>());
  one.counts = in.get<RoundAnswer>();
  one.last = in.get<RoundAnswer>();
  in.expect_end();
  if (asks) {
    Message names;
    {
      Encoder out(names);
      out.put(missing(agent));
    }
    return responder.reply(std::move(names));
  }
  one.responder = std::move(responder);
  {
    MutexLock lock(g.mutex);
    g.passive.insert(request.from.value);
    std::swap(g.arrived[request.from.value], one);
  }
  watch_below(agent, std::numeric_limits<int32_t>::max());
  ask_active(agent.impl());
  decide_round(agent.impl());
}

/// Removes and returns the workers that wait for this round.
std::vector<Responder> taken(RoundState& g, uint64_t number) WEFT_REQUIRES(g.mutex) {
  std::vector<Responder> waiting;
  for (auto it = g.arrived.begin(); it != g.arrived.end();) {
    if (it->second.number != number) {
      ++it;
      continue;
    }
    waiting.push_back(std::move(it->second.responder));
    it = g.arrived.erase(it);
  }
  return waiting;
}

/// Step d: answers the workers that wait here for a round whose answer this worker has.
void pass_on(RoundState& g, uint64_t number, const RoundAnswer& answer) {
  std::vector<Responder> waiting;
  {
    MutexLock lock(g.mutex);
    waiting = taken(g, number);
  }
  for (Responder& r : waiting) r.reply(message_of(answer));
}

/// The answer for the waiting thread.
struct RoundReply {
  std::atomic<bool> done{false};
  Message message;
  std::exception_ptr error;
};

class RoundSink final : public ReplySink {
 public:
  RoundSink(Agent::Impl& impl, std::shared_ptr<RoundReply> reply) : impl_(impl), reply_(std::move(reply)) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override {
    reply_->message = std::move(message);
    finish();
  }
  void on_error(std::exception_ptr error) noexcept override {
    reply_->error = std::move(error);
    finish();
  }

 private:
  void finish() {
    reply_->done = true;
    impl_.woken.set();
  }
  Agent::Impl& impl_;  // of the calling agent
  const std::shared_ptr<RoundReply> reply_;
};

WorkerId leader_of(Agent& agent) {
  for (const MemberState& m : members_of(agent.impl()))
    if (!m.lost) return WorkerId{m.id};
  return agent.self().id;
}

}  // namespace

void install_rounds(Agent& agent) {
  agent.impl().rounds = std::make_shared<RoundState>();
  agent.handle(Kind::kRound, RunOn::kTransport, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> self = agent_of(responder.context());
    on_round(*self, std::move(request), std::move(responder));
  });
}

void decide_round(Agent::Impl& impl) {
  if (!impl.rounds) return;
  RoundState& g = *impl.rounds;
  const auto members = members_of(impl);
  std::vector<Responder> waiting, gone;
  RoundAnswer answer;
  {
    MutexLock lock(g.mutex);
    bool whole = true;
    for (const MemberState& m : members) {
      const auto found = g.arrived.find(m.id);
      if (!m.lost) {
        whole = whole && found != g.arrived.end();
      } else if (found != g.arrived.end()) {
        gone.push_back(std::move(found->second.responder));
        g.arrived.erase(found);
      }
    }
    if (!whole || g.arrived.empty()) return;
    const auto order = [](const auto& a, const auto& b) { return a.second.number < b.second.number; };
    const auto [first, last] = std::minmax_element(g.arrived.begin(), g.arrived.end(), order);
    const uint64_t number = first->second.number;
    if (number < last->second.number) {  // step b
      answer = last->second.last;
    } else {
      for (const auto& [id, one] : g.arrived)
        answer.begun += one.counts.begun, answer.active += one.counts.active;
      if (number == 0) judge(g, members, answer);
    }
    waiting = taken(g, number);
  }
  for (Responder& r : waiting) r.reply(message_of(answer));
}

size_t count_passive(Agent::Impl& impl) {
  MutexLock lock(impl.rounds->mutex);
  return impl.rounds->passive.size();
}

void stop_rounds(Agent::Impl& impl) {
  std::map<int32_t, RoundState::Arrived> arrived;
  MutexLock lock(impl.rounds->mutex);
  arrived.swap(impl.rounds->arrived);
  lock.unlock();  // no answer is needed: stop() has sent them a goodbye
}

Rounds::Rounds(Agent& agent, TimePoint deadline)
    : agent_(agent), deadline_(deadline), passive_(agent.runtime()->now()) {}

Message Rounds::request(bool asks) const {
  const Counters& c = agent_.impl().counters;
  Message m;
  Encoder out(m);
  out.put(asks);
  out.number(number_);
  out.number(static_cast<int64_t>((agent_.runtime()->now() - passive_).count()));
  const int64_t begun = c.calls.load() + c.served.load(),
                active = c.active_client.load() + c.active_server.load();
  out.put(RoundAnswer{.begun = begun, .active = active});  // the rounds themselves are not counted
  out.put(last_);
  out.finish();
  return m;
}

const RoundAnswer& Rounds::next() {
  Agent::Impl& s = agent_.impl();
  for (;;) {
    const WorkerId leader = leader_of(agent_);
    const auto reply = std::make_shared<RoundReply>();
    const CallOptions options{.timeout = Duration::zero(), .what = "the end of the group"};
    agent_.call(leader, Kind::kRound, request(false), options, std::make_unique<RoundSink>(s, reply));
    while (!reply->done) {
      if (s.told_to_stop) throw ToldToStop();
      if (!s.woken.wait_until(deadline_)) throw Timeout(waits_for(leader));
      s.woken.reset();
    }
    if (reply->error) {
      if (leader == s.self.id || !agent_.is_lost(leader)) std::rethrow_exception(reply->error);
      watch_below(agent_, s.self.id.value);  // step b
      continue;
    }
    Decoder in(reply->message, &agent_, leader, true);
    last_ = in.get<RoundAnswer>();
    pass_on(*s.rounds, number_++, last_);
    return last_;
  }
}

std::string Rounds::waits_for(WorkerId leader) {
  const std::string text = str("shutdown: worker '", agent_.self().name, "' has waited for its whole time, ");
  const bool calling = agent_.impl().counters.active_client > 0;
  const std::string calls = calling ? str("; under way:\n", agent_.dump()) : "";
  const auto named = [&](const std::string& names) {
    return text + str(number_ == 0 ? "still active: " : "not through yet: ", names, calls);
  };
  if (leader == agent_.self().id) return named(missing(agent_));
  try {
    const CallOptions options{.timeout = std::chrono::seconds(1), .what = "who is still active"};
    const Message names = agent_.call(leader, Kind::kRound, request(true), options).take();
    Decoder in(names, &agent_, leader, true);
    return named(in.get<std::string>());
  } catch (const RpcError& e) {
    return text + str("and does not know who is still active: ", e.what(), calls);
  }
}

}  // namespace weft::rpc
