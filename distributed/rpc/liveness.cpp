// Deadlines, the times of statuses, and failure detection (agent.cpp, steps 4 to 7). The alarm of an agent
// tends each peer at its own next deadline, status or end of a lease.
#include <weft/distributed/rpc/inner/liveness.h>

#include <weft/distributed/rpc/inner/put_off.h>

namespace weft::rpc {

namespace {
/// most statuses that report the floor to a quiet peer without a watch
constexpr int kMaxTells = 8;
constexpr char kEnded[] = "its process ended";
constexpr char kNotConnected[] = "not connected";
}  // namespace

void Liveness::on_ring(Duration late) {
  // this process was suspended, and has not yet read the messages that arrived meanwhile
  if (late <= core_.options.lease / 4) return;
  for (Peer* p : peers_.all()) {
    MutexLock lock(p->mutex);
    if (p->heard != TimePoint()) p->heard = std::min(p->heard + late, core_.runtime->now());
  }
}

TimePoint Liveness::tend(Peer& p) {
  peers_.visits.fetch_add(1, std::memory_order_relaxed);
  const TimePoint now = core_.runtime->now(), next = do_due(p, now);
  TimePoint end = kNever;  // of an expected life that nothing waits for
  {
    MutexLock lock(p.mutex);
    if (!p.told && !p.lost && !p.wanted() && p.heard != TimePoint()) end = p.heard + core_.options.lease;
  }
  if (end > now) return std::min(next, end);
  peers_.give_up(p.life());
  return next;
}

/// Does the due work of one peer and returns the time of its next work.
TimePoint Liveness::do_due(Peer& p, TimePoint now) {
  PendingCalls expired;
  TimePoint next = kNever;
  bool lost = false, ended = false, ask_peer = false, tell = false, told = true;
  std::string trouble;
  {
    MutexLock lock(p.mutex);
    if (p.lost) return kNever;
    for (auto it = p.pending.begin(); it != p.pending.end();) {
      if (it->second.deadline > now) {
        next = std::min(next, it->second.deadline);
        ++it;
        continue;
      }
      if (!it->second.waits) p.note_given_up(it->first);
      expired.insert(p.pending.extract(it++));  // without an allocation
    }
    const bool is_self = p.id == core_.self.id;
    const bool watched = p.watchers > 0 && !is_self;
    if (!p.pending.empty() || watched) {
      if (!is_self) {
        ended = p.ended;
        lost = ended || now >= p.heard + core_.options.lease;
        next = std::min(next, p.heard + core_.options.lease);
      }
      const Duration slow = std::min(core_.options.retry * 8, core_.options.lease / 4);
      // An unanswered status is repeated sooner: one lost message is no sign of a lost peer.
      TimePoint due =
          p.asked > p.heard ? p.asked + core_.options.lease / 16 : p.heard + core_.options.lease / 4;
      if (!p.pending.empty())
        due = std::min(due, std::max(p.pending.begin()->second.started + core_.options.retry,
                                     p.asked + std::min(p.pause, slow)));
      if (p.take_question(now) || now >= due) {
        ask_peer = !lost;
        p.asked = now;
        p.pause = std::min(p.pause * 2, slow);
        due = now + std::max(std::min(p.pause, core_.options.lease / 16), Duration(1));
      }
      next = std::min({next, due, p.ask_at});
    } else {
      if (!p.served.empty() && !is_self) {
        // Its caller asks for an open request and reports the end of one; both are messages. It is asked only
        // when they stay away.
        const TimePoint end = p.heard + core_.options.lease;
        TimePoint due =
            p.asked > p.heard ? p.asked + core_.options.lease / 16 : p.heard + core_.options.lease / 2;
        ended = p.ended;
        lost = ended || now >= end;
        if (p.take_question(now) || now >= due) {
          ask_peer = !lost;
          p.asked = now;
          due = now + std::max(core_.options.lease / 16, Duration(1));
        }
        next = std::min({next, end, due, p.ask_at});
      }
      // no open call and no watch: report the floor, so that the peer forgets the last answers
      if (!ask_peer && p.told_floor < p.next_sequence && p.tells < kMaxTells) {
        TimePoint due = std::max(p.heard, p.asked) + core_.options.retry;
        if (now >= due) {
          tell = true;
          ++p.tells;
          p.asked = now;
          due = now + core_.options.retry;
        }
        next = std::min(next, due);
      }
    }
    if (lost) trouble = p.trouble, told = p.told;
  }
  for (auto& [sequence, call] : expired) caller_.end(p, std::move(call), nullptr);
  if (lost) {
    const double silence = std::chrono::duration<double>(core_.options.lease).count();
    lose(p, false,
         ended   ? std::string(kEnded)
         : !told ? str("this worker was not told of it for ", silence, " s")
                 : str("nothing was heard from it for ", silence, " s", trouble.empty() ? "" : "; it is ",
                       trouble));
    return kNever;
  }
  if (ask_peer || tell) caller_.ask(p);
  return next;
}

/// A report of the transport. Only a refusal, which another life or a worker of another wire version has
/// given, is the end of a peer. Otherwise the lease decides.
void Liveness::on_peer(WorkerId id, Incarnation incarnation, PeerState state, const std::string& reason) {
  Peer& p = peers_.at(id);
  const TimePoint now = core_.runtime->now();
  bool wanted = false, ask = false;
  {
    MutexLock lock(p.mutex);
    if (!p.may_be(incarnation)) return;
    if (state == PeerState::kUp) {
      if (p.incarnation.load().value == 0) p.incarnation = incarnation;
      p.heard = now;
      p.trouble.clear();
    } else {
      p.trouble = str(state == PeerState::kBroken ? kNotConnected : to_string(state), ": ", reason);
    }
    wanted = p.wanted();
    // A report may come at once after each attempt; so there is a pause between two questions.
    ask = wanted && (state == PeerState::kBroken ||
                     (state == PeerState::kUnreachable && now >= p.asked + core_.options.lease / 64));
    p.ask_now = p.ask_now || ask;
  }
  if (ask) alarm_.set(p, now);
  if (wanted && state == PeerState::kRejected) lose(p, false, str(to_string(state), ": ", reason));
}

/// The reason is kept for the errors of calls and of a loss. It decides nothing.
void Liveness::on_failed_attempt(WorkerId id, Incarnation incarnation, const std::string& reason) {
  Peer& p = peers_.at(id);
  MutexLock lock(p.mutex);
  if (p.may_be(incarnation)) p.trouble = str(kNotConnected, ": ", reason);
}

void Liveness::fence(Peer& p) {
  Message m;
  Envelope e;
  {
    MutexLock lock(p.mutex);
    Encoder out(m);
    out.put(p.why);
    e.to_incarnation = p.incarnation.load().value;
  }
  seal(m);
  core_.stamp(m, e);
  core_.send(p.id, static_cast<uint8_t>(Kind::kFenced), std::move(m.bytes));
}

void Liveness::on_fenced(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const auto why = in.get<std::string>();
    in.expect_end();
    lose(p, false, str("it counts this worker as lost: ", why));
  } catch (const WireError&) {
    core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

void Liveness::lose(Peer& p, bool left_group, const std::string& reason) {
  if (p.id == core_.self.id) return;
  PendingCalls pending;
  ServedRequests served;
  LostPeer lost{{PeerTable::name(p), p.id}, p.incarnation.load(), left_group, reason};
  std::string why = reason;
  const auto error = std::make_exception_ptr(PeerLost(
      lost.info.name,
      str("worker '", lost.info.name, "' ", left_group ? "has left the group: " : "is lost: ", reason)));
  bool told = false;
  {
    MutexLock lock(p.mutex);
    if (p.lost) return;
    told = p.told;
    p.lost = true;
    p.last_heard = p.heard != TimePoint() ? p.heard : core_.runtime->now();
    p.left = left_group;
    p.why = std::move(why);
    pending.swap(p.pending);
    served.swap(p.served);
    for (const auto& [sequence, s] : served) s->finish();
  }
  if (!left_group) core_.counters.lost_peers.fetch_add(1, std::memory_order_relaxed);
  if (core_.runtime->tracing())
    core_.runtime->trace(str("worker ", core_.self.id.value, left_group ? " sees leave " : " loses ",
                             p.id.value, ": ", reason));
  for (auto& [sequence, call] : pending) caller_.end(p, std::move(call), error);
  drop_replies(core_.budget, served);
  if (!served.empty()) caller_.end_unneeded();
  if (told) core_.budget.lost(p);
  if (told) on_loss_(lost);
  else peers_.give_up(lost.life());
  const auto agent = core_.agent();
  auto callbacks = lost_callbacks.copies();
  if (callbacks.empty() || !agent) return;
  core_.runtime->post([agent, callbacks = std::move(callbacks), lost] {
    CallContext context;
    context.endpoint = agent;
    const CallScope scope(context);
    for (const auto& f : callbacks) f(lost);
  });
}

Peer& Liveness::live(Peer& p, Incarnation told) {
  if (told.value == 0) return p;
  {
    MutexLock lock(p.mutex);
    const Incarnation known = p.incarnation.load();
    // a life that was lost before its number was known is not the life reported now
    if (known == told || (known.value == 0 && !p.lost)) return p;
  }
  if (p.id == core_.self.id)
    throw ValueError(
        str("add_members: worker '", core_.self.name, "' is this worker, whose life is another one"));
  lose(p, false, "it was restarted");
  return peers_.succeed(p, told, core_.runtime->now());
}

void Liveness::watch(Life life, int delta) {
  if (foreign(life)) return;
  PeerTable::Hold hold(peers_);
  Peer* const found = delta > 0 ? &peers_.of(life, &hold) : peers_.find(life);
  if (!found) return;  // a past life
  Peer& p = *found;
  TimePoint wake = kNever;
  {
    MutexLock lock(p.mutex);
    if (p.lost && p.told) return;
    if (!p.wanted()) p.heard = core_.runtime->now();
    p.watchers += delta;
    if (p.watchers > 0) wake = p.heard + core_.options.lease / 4;
  }
  alarm_.set(p, wake);
}

void Liveness::process_ended(Life life) {
  Peer* const p = peers_.find(life);
  if (!p) return;
  {
    MutexLock lock(p->mutex);
    p->ended = true;
    // Workers that never met say no goodbye to each other.
    if (p->lost || (p->heard == TimePoint() && !p->wanted())) return;
  }
  lose(*p, false, kEnded);
}

void Liveness::check_told(Life life) {
  if (peers_.told(life)) return;
  Peer& p = peers_.of(life);
  try {
    const TimePoint now = core_.runtime->now();
    TimePoint end;
    bool late = false;
    std::string name;
    {
      MutexLock lock(p.mutex);
      if (p.told) return;
      if (p.heard == TimePoint()) p.heard = now;
      end = p.heard + core_.options.lease;
      late = p.lost || now >= end;
      name = p.name;
    }
    const std::string text =
        str("worker '", core_.self.name, "' was not told of this life of worker '", name, "' ");
    if (late) {
      const double lease = std::chrono::duration<double>(core_.options.lease).count();
      throw PeerLost(name, str(text, "for ", lease, " s"));
    }
    alarm_.set(p, end);
    throw PutOff(text + "yet");
  } catch (const PutOff&) {
    throw;
  } catch (...) {  // of() has made it or taken it back, and no alarm would end it
    peers_.give_up(life);
    throw;
  }
}

bool Liveness::is_lost(Life life) const { return foreign(life) || peers_.lost(life); }

bool Liveness::foreign(Life life) const {
  return life.id == core_.self.id && life.incarnation.value != 0 &&
         life.incarnation != core_.transport->incarnation();
}

}  // namespace weft::rpc
