// The shutdown rounds of a group (agent.cpp, step 9): one worker leads, and all get the same outcome. The
// steps follow the includes.
#include <weft/distributed/rpc/inner/rounds.h>

#include <algorithm>
#include <limits>

// The shutdown rounds of a group (agent.cpp, step 9). A passive worker requests one round after the other
// from the leader, the living worker with the smallest id, perhaps itself.
//  a. The leader keeps all members under lease. It answers a round when every living member has requested it,
//     with the same answer for all. It does not wait for members that are lost or have left.
//  b. If the leader is lost, the others turn to the next one. They keep all workers that may lead before them
//     under lease, so that several dead leaders take no longer than one. Workers with the old leader's answer
//     are one round ahead. Their requests carry that answer, and the new leader passes it to the rest.
//     [G: one outcome for all]
//  c. The answer of the first round is the outcome. It has `failed` set if the last active member was lost:
//     a lost member was not passive, and gave signs of life after all living members had become passive. Each
//     request has the time for which its worker has been passive. Whenever a worker becomes passive, the
//     leader asks the active workers for a sign of life. So the uncertainty is at most one message delay.
//     Many active workers are asked together, once per kAskPause: else the number of questions, and the
//     leader's work, would be the square of their number.
//  d. A worker that alone counts the leader as lost may turn to a worker that does not lead. That worker
//     passes on the answer it gets itself.
// Shutdown repeats the rounds for termination detection, with sums of calls begun and
// open (agent_shutdown.cpp).

namespace weft::rpc {
namespace {

/// Up to so many active members are asked at once, whenever another one becomes passive.
constexpr size_t kAskedAtOnce = 16;
/// The time between two questions to more of them, as a part of a lease.
constexpr int kAskPause = 64;

}  // namespace

struct RoundTable::MemberState {
  int32_t id = 0;
  Life life;
  std::string name, why;
  bool lost = false, left = false;
  TimePoint last_heard;
};

RoundTable::RoundTable(AgentCore& core, PeerTable& peers, Alarm& alarm)
    : woken(*core.runtime, "the others, who are still active"), core_(core), peers_(peers), alarm_(alarm) {}

std::vector<RoundTable::MemberState> RoundTable::members() {
  std::vector<MemberState> out;
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (p->known) out.push_back({p->id.value, p->life(), p->name, p->why, p->lost, p->left, p->last_heard});
  }
  return out;
}

namespace {
Message message_of(const RoundAnswer& answer) {
  Message m;
  Encoder out(m);
  out.put(answer);
  out.finish();
  return m;
}
}  // namespace

/// Step c: decides the outcome.
void RoundTable::judge(const std::vector<MemberState>& members, RoundAnswer& answer) const {
  TimePoint all_passive, last;
  for (const auto& [id, one] : arrived_) all_passive = std::max(all_passive, one.passive);
  for (const MemberState& m : members) {
    if (!m.lost || m.left) continue;
    answer.text += str(answer.text.empty() ? "" : "; ", "worker '", m.name, "' is lost: ", m.why);
    if (passive_.count(m.life) > 0 || m.last_heard <= all_passive) continue;
    answer.failed = true;
    if (m.last_heard >= last) answer.peer = m.name, last = m.last_heard;
  }
  answer.text = answer.failed ? "no worker is active any more: " + answer.text : "";
}

void RoundTable::watch_below(Agent& agent, int32_t limit) {
  std::vector<Life> fresh;
  {
    const auto all = members();
    MutexLock lock(mutex_);
    for (const MemberState& m : all)
      if (m.id < limit && m.id != core_.self.id.value && !m.lost && watched_.insert(m.life).second)
        fresh.push_back(m.life);
  }
  for (const Life& life : fresh) agent.watch(life, +1);
}

void RoundTable::joined(Agent& agent) {
  {
    MutexLock lock(mutex_);
    if (arrived_.empty()) return;
  }
  watch_below(agent, std::numeric_limits<int32_t>::max());
}

/// Asks every member that is not passive for a sign of life. A question to many that is still to come is for
/// this worker too, which has just become passive.
void RoundTable::ask_active() {
  std::set<Life> passive;
  TimePoint when = core_.runtime->now();
  {
    MutexLock lock(mutex_);
    if (active_ > 0) --active_;
    if (asked_ > when && active_ > kAskedAtOnce) return;
    passive = passive_;
  }
  std::vector<Peer*> active;
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (p->known && !p->lost && passive.count(p->life()) == 0) active.push_back(p);
  }
  {
    MutexLock lock(mutex_);
    active_ = active.size();
    if (active_ > kAskedAtOnce)
      when = std::max(when, asked_ > when ? asked_ : asked_ + core_.options.lease / kAskPause);
    asked_ = when;
  }
  for (Peer* p : active) {
    {
      MutexLock lock(p->mutex);
      p->ask_at = when;
    }
    alarm_.set(*p, when);
  }
}

std::string RoundTable::missing() {
  const auto all = members();
  std::string out;
  MutexLock lock(mutex_);
  for (const MemberState& m : all)
    if (!m.lost && arrived_.count(m.id) == 0) out += str(out.empty() ? "'" : ", '", m.name, "'");
  return out;
}

void RoundTable::serve(Agent& agent, Request request, Responder responder) {
  Decoder in(request.message, &agent, request.from);
  const bool asks = in.get<bool>();
  Arrived one;
  one.number = in.number<uint64_t>();
  one.passive = core_.runtime->now() - Duration(in.number<int64_t>());
  one.counts = in.get<RoundAnswer>();
  one.last = in.get<RoundAnswer>();
  in.expect_end();
  if (asks) {
    Message names;
    {
      Encoder out(names);
      out.put(missing());
    }
    return responder.reply(std::move(names));
  }
  one.responder = std::move(responder);
  bool first = false, became_passive = false, more = false;
  {
    MutexLock lock(mutex_);
    first = arrived_.empty();
    became_passive = passive_.insert(request.sender()).second;
    std::swap(arrived_[request.from.value], one);
    more = missing_ > 1;
    if (more) --missing_;
  }
  if (first) watch_below(agent, std::numeric_limits<int32_t>::max());
  if (became_passive) ask_active();
  if (!more) decide();
}

/// Removes and returns the workers that wait for this round.
std::vector<Responder> RoundTable::take(uint64_t number) {
  std::vector<Responder> waiting;
  for (auto it = arrived_.begin(); it != arrived_.end();) {
    if (it->second.number != number) {
      ++it;
      continue;
    }
    waiting.push_back(std::move(it->second.responder));
    it = arrived_.erase(it);
  }
  return waiting;
}

/// Step d.
void RoundTable::pass_on(uint64_t number, const RoundAnswer& answer) {
  std::vector<Responder> waiting;
  {
    MutexLock lock(mutex_);
    waiting = take(number);
  }
  for (Responder& r : waiting) r.reply(message_of(answer));
}

WorkerId RoundTable::leader() {
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (p->known && !p->lost) return p->id;
  }
  return core_.self.id;
}

namespace {

/// The answer for the waiting thread.
struct RoundReply {
  std::atomic<bool> done{false};
  Message message;
  std::exception_ptr error;
};

class RoundSink final : public ReplySink {
 public:
  RoundSink(Event& woken, std::shared_ptr<RoundReply> reply) : woken_(woken), reply_(std::move(reply)) {}
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
    woken_.set();
  }
  Event& woken_;  // of the calling agent
  const std::shared_ptr<RoundReply> reply_;
};

}  // namespace

void RoundTable::decide() {
  uint64_t look = 0;
  {
    MutexLock lock(mutex_);
    look = ++looks_;
    missing_ = 0;
    if (arrived_.empty()) return;
  }
  const auto all = members();
  std::vector<Responder> waiting, gone;
  RoundAnswer answer;
  {
    MutexLock lock(mutex_);
    size_t missing = 0;
    for (const MemberState& m : all) {
      const auto found = arrived_.find(m.id);
      if (!m.lost) {
        missing += found == arrived_.end();
      } else if (found != arrived_.end()) {
        gone.push_back(std::move(found->second.responder));
        arrived_.erase(found);
      }
    }
    // A later look may know of a loss, and have answered the round. Then this count may be too high.
    missing_ = look == looks_ ? missing : 0;
    if (missing > 0 || arrived_.empty()) return;
    const auto order = [](const auto& a, const auto& b) { return a.second.number < b.second.number; };
    const auto [first, last] = std::minmax_element(arrived_.begin(), arrived_.end(), order);
    const uint64_t number = first->second.number;
    if (number < last->second.number) {  // step b
      answer = last->second.last;
    } else {
      for (const auto& [id, one] : arrived_)
        answer.begun += one.counts.begun, answer.active += one.counts.active;
      if (number == 0) judge(all, answer);
    }
    waiting = take(number);
  }
  for (Responder& r : waiting) r.reply(message_of(answer));
}

size_t RoundTable::count_passive() {
  MutexLock lock(mutex_);
  return passive_.size();
}

void RoundTable::tell_to_stop() {
  told_to_stop_ = true;
  woken.set();
}

void RoundTable::stop() {
  std::map<int32_t, Arrived> arrived;
  MutexLock lock(mutex_);
  arrived.swap(arrived_);
  lock.unlock();  // no answer is needed: stop() has sent them a goodbye
}

Rounds::Rounds(Agent& agent, AgentCore& core, RoundTable& table, TimePoint deadline, std::string caller)
    : agent_(agent),
      core_(core),
      table_(table),
      deadline_(deadline),
      passive_(core.runtime->now()),
      caller_(std::move(caller)) {}

Message Rounds::request(bool asks) const {
  const Counters& c = core_.counters;
  Message m;
  Encoder out(m);
  out.put(asks);
  out.number(number_);
  out.number(static_cast<int64_t>((core_.runtime->now() - passive_).count()));
  const int64_t begun = c.calls.load() + c.served.load(),
                active = c.active_client.load() + c.active_server.load();
  out.put(RoundAnswer{.begun = begun, .active = active});  // the rounds themselves are not counted
  out.put(last_);
  out.finish();
  return m;
}

const RoundAnswer& Rounds::next() {
  for (;;) {
    const WorkerId leader = table_.leader();
    const auto reply = std::make_shared<RoundReply>();
    const CallOptions options{.timeout = Duration::zero(), .what = "the end of the group"};
    agent_.call(leader, Kind::kRound, request(false), options,
                std::make_unique<RoundSink>(table_.woken, reply));
    while (!reply->done) {
      if (table_.told_to_stop()) throw ToldToStop();
      if (!table_.woken.wait_until(deadline_)) throw Timeout(waits_for(leader));
      table_.woken.reset();
    }
    if (reply->error) {
      if (leader == core_.self.id || !agent_.is_lost(leader)) std::rethrow_exception(reply->error);
      table_.watch_below(agent_, core_.self.id.value);  // step b
      continue;
    }
    Decoder in(reply->message, &agent_, leader, true);
    last_ = in.get<RoundAnswer>();
    table_.pass_on(number_++, last_);
    return last_;
  }
}

std::string Rounds::waits_for(WorkerId leader) {
  const std::string text = str(caller_, ": worker '", core_.self.name, "' has waited for its whole time, ");
  const bool calling = core_.counters.active_client > 0;
  const std::string calls = calling ? str("; under way:\n", agent_.dump()) : "";
  const auto named = [&](const std::string& names) {
    return text + str(number_ == 0 ? "still active: " : "not through yet: ", names, calls);
  };
  if (leader == core_.self.id) return named(table_.missing());
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
