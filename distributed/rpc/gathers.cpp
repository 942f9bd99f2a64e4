// barrier and gather: the leader's rounds, and the call of every worker. inner/gathers.h describes the
// protocol.
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/inner/gather_messages.h>
#include <weft/distributed/rpc/inner/gathers.h>
#include <weft/distributed/rpc/inner/unrecorded.h>

namespace weft::rpc {

namespace {

constexpr Duration kGrace = std::chrono::seconds(1);  // the members wait so much longer than the leader

bool has_other_life(const std::vector<Life>& lives, Life life) {
  return std::any_of(lives.begin(), lives.end(),
                     [&](const Life& one) { return one.id == life.id && one != life; });
}

void watch_lives(Agent& agent, const std::vector<Life>& lives, int delta) {
  for (const Life& life : lives)
    if (life.id != agent.self().id) agent.watch(life, delta);
}

bool has_life(const std::vector<Life>& lives, const Life& one) {
  return std::find(lives.begin(), lives.end(), one) != lives.end();
}

/// False for a worker whose id is higher than the next leader's.
bool may_have_led(const Agent& agent, const std::string& name) {
  try {
    return agent.worker_info_id(name) <= agent.self().id;
  } catch (const ValueError&) {  // it was lost before this worker joined
    return true;
  }
}

}  // namespace

/// The living members by id, or the lost members.
std::vector<Life> Gathers::members(bool lost) {
  std::vector<Life> out;
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (p->known && p->lost == lost) out.push_back(p->life());
  }
  return out;
}

// ---- the leader

/// Refuses a call for a round of others, and one that another worker leads.
void Gathers::check_named(const std::vector<Life>& lives, Life from) const {
  for (const Life& life : lives)
    if (life.id.value < 0 || life.id.value > kMaxWorkerId)
      detail::malformed(str("a gather of worker ", life.id));
  if (!leads(lives, from)) refuse(from);
}

void Gathers::refuse(Life from) const {
  throw NotAllowed(str("barrier or gather: this round is none of worker '", peers_.name(from.id), "'"));
}

/// This worker leads a round of these lives, sorted, and `from` is one of them.
bool Gathers::leads(const std::vector<Life>& lives, Life from) const {
  return std::binary_search(lives.begin(), lives.end(), from) && lives.front().id == core_.self.id;
}

void Gathers::serve(Agent& agent, Request request, Responder responder) {
  Decoder in(request.message, &agent, request.from);
  Arrival arrival;
  const auto whole = in.get<bool>();
  auto set = in.number<uint64_t>();
  std::vector<Life> lives = get_lives(in);
  const auto number = in.number<uint64_t>();
  arrival.timeout = Duration(in.number<int64_t>());
  arrival.entries = in.get<bool>();
  arrival.fresh = in.get<bool>();
  arrival.dead = in.get<std::string>();
  arrival.text = in.get<std::string>();
  arrival.message = get_message(in);
  in.expect_end();
  arrival.from = request.sender();
  if (whole) {
    set = 0;
  } else if (set == 0) {
    check_named(lives, arrival.from);
    set = set_of(lives);
  } else {
    lives.clear();
  }
  if (!arrival.dead.empty() && (!whole || !may_have_led(agent, arrival.dead)))
    throw NotAllowed(str("barrier or gather: worker '", arrival.dead, "' did not lead before this one"));
  arrival.responder = std::move(responder);
  if (whole) arrival.lost = std::exchange(lives, {});
  enter(agent, {set, number}, std::move(lives), std::move(arrival));
}

/// Step e: the round of a call. A worker that has joined counts from 0.
uint64_t Gathers::place(const Arrival& arrival, uint64_t number) {
  if (!arrival.fresh) return number;
  uint64_t first = floor();
  if (has_joined())
    for (const auto& [key, round] : rounds_)
      if (key.first == 0 && round.through > 0) {
        first = std::max(first, key.second);
        break;
      }
  if (number >= first) return number;
  if (!failures_.empty()) first = std::max(first, failures_.rbegin()->first + 1);
  return first + number;
}

/// Adds a call to an open round.
void Gathers::insert(Agent& agent, const Key& key, Arrival arrival, std::vector<Arrival>& old) {
  Round& round = rounds_[key];
  const TimePoint now = core_.runtime->now();
  if (arrival.timeout.count() > 0 && arrival.timeout < kNever - now &&
      now + arrival.timeout < round.give_up) {
    if (round.timer.value != 0) core_.runtime->cancel(round.timer);
    round.give_up = now + arrival.timeout;
    round.timer = core_.runtime->call_at(round.give_up, [this, weak = agent.weak_from_this(), key] {
      if (const auto self = weak.lock()) time_out(*self, key);
    });
  }
  for (const Life& life : arrival.lost) ++round.aware[life];
  const int32_t id = arrival.from.id.value;
  round.missing.erase(id);
  Arrival& kept = round.arrived[id];
  round.through += arrival.fresh ? 0 : 1;
  if (kept.from.id.value >= 0) {  // of a past life
    round.through -= kept.fresh ? 0 : 1;
    old.push_back(std::move(kept));
  }
  kept = std::move(arrival);
}

void Gathers::enter(Agent& agent, Key key, std::vector<Life> lives, Arrival arrival) {
  const bool whole = key.first == 0;
  bool opens = false;
  std::exception_ptr known;
  std::vector<Arrival> old;
  std::vector<Over> over;
  for (;;) {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("barrier or gather: worker '", agent.self().name, "' was shut down"));
    if (whole) {
      const auto failed = failures_.find(key.second);
      if (failed != failures_.end() && failed->second.late.erase(arrival.from.id.value) > 0) {
        known = failed->second.error;
        if (failed->second.late.empty()) failures_.erase(failed);
        break;
      }
      if (arrival.dead.empty()) key.second = place(arrival, key.second);
    }
    const auto open = rounds_.find(key);
    opens = open == rounds_.end();
    if (!whole) {
      const auto set = sets_.find(key.first);
      if (opens && lives.empty() && set != sets_.end()) lives = set->second.lives;
      if (opens && lives.empty()) {  // the worker has to send them
        over.push_back(moved(key, std::move(arrival)));
        opens = false;
        break;
      }
      if (!leads(opens ? lives : open->second.lives, arrival.from)) {
        lock.unlock();
        refuse(arrival.from);
      }
    }
    if (opens && lives.empty()) {
      lock.unlock();
      lives = members(false);
      continue;
    }
    if (opens && whole && arrival.dead.empty() && lives.front().id != core_.self.id &&
        !has_life(arrival.lost, lives.front())) {  // a member with a smaller id has joined
      over.push_back(moved(key, std::move(arrival)));
      opens = false;
      break;
    }
    if (opens) {
      Round& round = rounds_[key];
      round.lives = lives;
      for (const Life& life : lives) round.missing.insert(life.id.value);
    }
    if (!arrival.dead.empty()) {  // step d
      known = std::make_exception_ptr(PeerLost(arrival.dead, str("barrier or gather: ", arrival.text)));
      rounds_[key].missing.erase(arrival.from.id.value);
      const bool been_through = key.second < floor();
      over.push_back(end(key, known, !been_through));
      break;
    }
    if (whole && !arrival.fresh && has_joined()) {  // step e: others that have joined are in this round
      std::vector<Key> early;
      for (const auto& [other, round] : rounds_)
        if (other.first == 0 && other.second < key.second && !round.arrived.empty() && round.through == 0)
          early.push_back(other);
      for (const Key& other : early) {
        Over emptied{.number = other.second, .round = std::move(rounds_[other]), .error = nullptr};
        rounds_.erase(other);
        for (auto& [id, one] : std::exchange(emptied.round.arrived, {}))
          insert(agent, key, std::move(one), old);
        over.push_back(std::move(emptied));
      }
    }
    insert(agent, key, std::move(arrival), old);
    if (rounds_[key].missing.empty()) over.push_back(end(key, nullptr, false));
    break;
  }
  if (opens) watch_lives(agent, lives, +1);
  for (Over& one : over) finish(agent, std::move(one));
  // `arrival` was not moved where `known` is set.
  if (known) return arrival.responder.fail(known);  // NOLINT(bugprone-use-after-move)
  if (!opens) return;
  // Checked after the round became visible: a loss at this moment is noticed here or in peer_lost.
  for (const Life& life : lives)
    if (peers_.lost(life)) leave_out(agent, key, life);
}

/// The end of a call that this worker cannot put into a round.
Gathers::Over Gathers::moved(const Key& key, Arrival arrival) {
  Over over{.number = key.second, .round = {}, .error = nullptr, .moved = true};
  over.round.arrived[arrival.from.id.value] = std::move(arrival);
  return over;
}

/// Handles a loss from before the opening of a round.
void Gathers::leave_out(Agent& agent, const Key& key, Life life) {
  const std::string name = peers_.name(life.id);
  std::optional<Over> over;
  {
    MutexLock lock(mutex_);
    const auto found = rounds_.find(key);
    if (found == rounds_.end() || found->second.missing.count(life.id.value) == 0) return;
    if (key.first == 0) {
      found->second.missing.erase(life.id.value);
      if (found->second.missing.empty()) over = end(key, nullptr, false);
    } else {
      over = end(
          key, std::make_exception_ptr(PeerLost(name, str("barrier or gather: worker '", name, "' is gone"))),
          false);
    }
  }
  if (over) finish(agent, std::move(*over));
}

Gathers::Over Gathers::end(const Key& key, std::exception_ptr error, bool keep) {
  Over over{.number = key.second, .round = std::move(rounds_[key]), .error = std::move(error)};
  rounds_.erase(key);
  if (key.first != 0) return over;
  decided_ = std::max(decided_, key.second + 1);
  if (keep && !over.round.missing.empty()) failures_[key.second] = {over.error, over.round.missing};
  return over;
}

/// Answers the workers of a round that is over. The leader is the last: once it goes on, it may leave the
/// group, and the others need their answers.
void Gathers::finish(Agent& agent, Over over) {
  if (over.round.timer.value != 0) core_.runtime->cancel(over.round.timer);
  watch_lives(agent, over.round.lives, -1);
  if (over.round.arrived.empty()) return;
  const auto answer_with = [&](bool entries) {
    Message m;
    Encoder out(m, &agent, core_.self.id, true);
    out.put(over.moved);
    out.number(over.number);
    out.size(entries ? over.round.arrived.size() : 0);
    for (const auto& [id, one] : over.round.arrived) {
      if (!entries) break;
      out.number(id);
      put_message(out, one.message);
    }
    out.finish();
    return m;
  };
  std::optional<Message> all, none;
  const auto answer = [&](Arrival& one) {
    if (over.error) return one.responder.fail(over.error);
    const bool entries = one.entries && !over.moved;
    std::optional<Message>& same = entries ? all : none;
    if (!same) same = answer_with(entries);
    one.responder.reply(*same);
  };
  for (auto& [id, one] : over.round.arrived)
    if (id != core_.self.id.value) answer(one);
  const auto own = over.round.arrived.find(core_.self.id.value);
  if (own != over.round.arrived.end()) answer(own->second);
}

void Gathers::time_out(Agent& agent, const Key& key) {
  Over over;
  {
    MutexLock lock(mutex_);
    if (rounds_.count(key) == 0) return;
    over = end(key, nullptr, false);
  }
  std::string missing, troubles;
  for (const int32_t id : over.round.missing) {
    missing += str(missing.empty() ? "'" : ", '", peers_.name(WorkerId{id}), "'");
    troubles += PeerTable::trouble(peers_.at(WorkerId{id}));
  }
  over.error = std::make_exception_ptr(
      Timeout(str("barrier or gather of ", over.round.arrived.size() + over.round.missing.size(),
                  " workers: still waiting for ", missing, troubles)));
  finish(agent, std::move(over));
}

void Gathers::peer_lost(Agent& agent, const LostPeer& peer) {
  const auto error = std::make_exception_ptr(
      PeerLost(peer.info.name, str("barrier or gather: worker '", peer.info.name, "' ",
                                   peer.left ? "has left: " : "is lost: ", peer.why)));
  const int32_t id = peer.info.id.value;
  std::vector<Over> over;
  {
    MutexLock lock(mutex_);
    for (auto& [number, failure] : failures_) failure.late.erase(id);
    std::erase_if(failures_, [](const auto& one) { return one.second.late.empty(); });
    std::vector<Key> waiting;
    for (const auto& [key, round] : rounds_)
      if (round.missing.count(id) > 0 && has_life(round.lives, peer.life())) waiting.push_back(key);
    for (const Key& key : waiting) {
      Round& round = rounds_[key];
      round.missing.erase(id);
      const bool all_know = key.first == 0 && round.aware[peer.life()] == round.arrived.size();
      if (!all_know) over.push_back(end(key, error, true));
      else if (round.missing.empty()) over.push_back(end(key, nullptr, false));
    }
  }
  for (Over& one : over) finish(agent, std::move(one));
}

void Gathers::joined(Agent& agent, Life life) {
  std::vector<Over> over;
  std::vector<Life> watched;
  {
    MutexLock lock(mutex_);
    std::erase_if(sets_, [&](const auto& one) { return has_other_life(one.second.lives, life); });
    std::vector<Key> all;
    for (const auto& [key, round] : rounds_)
      if (key.first == 0) all.push_back(key);
    for (const Key& key : all) {
      if (life.id < core_.self.id) {  // it leads from now on
        Over moved{.number = key.second, .round = std::move(rounds_[key]), .error = nullptr, .moved = true};
        rounds_.erase(key);
        over.push_back(std::move(moved));
        continue;
      }
      Round& round = rounds_[key];
      if (has_life(round.lives, life)) continue;
      round.lives.push_back(life);
      const auto came = round.arrived.find(life.id.value);
      if (came == round.arrived.end() || came->second.from != life) round.missing.insert(life.id.value);
      watched.push_back(life);
    }
  }
  watch_lives(agent, watched, +1);
  for (Over& one : over) finish(agent, std::move(one));
}

void Gathers::stop() {
  std::map<Key, Round> rounds;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    rounds.swap(rounds_);
  }
  for (auto& [key, round] : rounds) {
    if (round.timer.value != 0) core_.runtime->cancel(round.timer);
    for (auto& [id, one] : round.arrived)
      one.responder.fail(std::make_exception_ptr(
          RpcError(str("barrier or gather: worker '", core_.self.name, "' was shut down"))));
  }
}

// ---- every worker

/// One call of this worker, and its end.
struct Gathers::Call {
  /// `named`: sorted, empty without names
  Call(Gathers& gathers, const std::vector<Life>& named)
      : g(gathers), set(named.empty() ? 0 : set_of(named)) {
    MutexLock lock(g.mutex_);
    fresh = g.fresh_;
    if (set != 0) {
      NamedSet& mine = g.sets_[set];
      if (mine.lives.empty()) mine.lives = named;
      if (mine.lives != named) throw RpcError("barrier or gather: two sets of workers have one number");
      number = mine.next++;
      by_number = mine.known;
    } else {
      number = g.next_whole_++;
      g.open_.insert(number);
    }
    joined = number;
  }
  ~Call() {
    if (set != 0) return;
    MutexLock lock(g.mutex_);
    g.open_.erase(number);
    g.fresh_ = false;
    g.next_whole_ = std::max(g.next_whole_, joined + 1);
  }
  /// A round with names was completed: its leader has called it too.
  void complete() {
    if (set == 0) return;
    MutexLock lock(g.mutex_);
    const auto mine = g.sets_.find(set);
    if (mine != g.sets_.end()) mine->second.known = true;
  }
  Gathers& g;
  const uint64_t set;      ///< as Key::first
  bool by_number = false;  ///< the leader knows the lives of the set
  uint64_t number = 0;
  uint64_t joined = 0;  ///< number of the round that it took part in
  bool fresh = false;
};

std::map<std::string, Message> Gathers::gather(Agent& agent, Message mine,
                                               const std::vector<std::string>& names, Duration timeout,
                                               bool entries) {
  const bool whole = names.empty();
  std::vector<Life> named;
  for (const std::string& name : names) named.push_back(agent.life_of(agent.worker_info_id(name)));
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  if (!whole && !has_life(named, agent.life()))
    throw ValueError(str("barrier or gather: worker '", core_.self.name, "' is not among those named"));

  if (grad_enabled()) check_unrecorded(agent, mine, "all_gather", {}, Carries::kNeverRecorded);

  if (timeout.count() == 0) timeout = agent.rpc_timeout();
  const TimePoint start = core_.runtime->now();
  const TimePoint until = timeout.count() > 0 && timeout < kNever - start ? start + timeout : kNever;
  Call call(*this, named);
  std::string dead, text;  // a leader that was lost meanwhile
  for (;;) {
    const WorkerId leader = whole ? members(false).front().id : named.front().id;
    const Duration left = until == kNever ? Duration(0) : std::max(Duration(1), until - core_.runtime->now());
    Message request;
    {
      Encoder out(request, &agent, leader);
      out.put(whole);
      out.number(call.by_number ? call.set : 0);
      put_lives(out, whole ? members(true) : call.by_number ? std::vector<Life>() : named);
      out.number(call.number);
      out.number(static_cast<int64_t>(left.count()));
      out.put(entries);
      out.put(call.fresh);
      out.put(dead);
      out.put(text);
      put_message(out, mine);
    }
    const CallOptions options{
        .timeout = left.count() > 0 ? std::min(left, Duration::max() - kGrace) + kGrace : left,
        .what = "barrier or gather"};
    try {
      const Message all = agent.call(leader, Kind::kGather, std::move(request), options).take();
      Decoder in(all, &agent, leader, true);
      const bool moved = in.get<bool>();
      const auto number = in.number<uint64_t>();
      std::map<std::string, Message> out;
      for (size_t n = in.size(); n > 0; --n) {
        const auto id = in.number<int32_t>();
        out.emplace(peers_.name(WorkerId{id}), get_message(in));
      }
      if (!moved) {
        call.joined = number;
        call.complete();
        return out;
      }
      if (call.by_number) {
        call.by_number = false;
        continue;
      }
      if (core_.runtime->now() >= until)
        throw Timeout(str("barrier or gather: worker '", peers_.name(leader), "' does not lead it any more"));
      core_.runtime->sleep_for(core_.options.retry / 8);
    } catch (const PeerLost& e) {
      if (!whole || leader == core_.self.id || e.peer != peers_.name(leader)) throw;
      if (dead.empty()) dead = e.peer, text = e.what();  // step d: this round ends by it
    }
  }
}

}  // namespace weft::rpc
