// Deadlines, retransmission and failure detection (agent.cpp, steps 4 to 7). Each agent has one timer, set to
// the next deadline, status or end of a lease of any peer.
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::rpc {

namespace {
/// most open requests in one status; further ones are in the next status
constexpr size_t kMaxListed = 4096;
/// most statuses that report the floor to a quiet peer without a watch
constexpr int kMaxTells = 8;
}  // namespace

/// Sets the timer to `when`, unless it fires earlier. It never fires too late, and at most once too often.
void Agent::Impl::schedule(TimePoint when) {
  if (when == kNever || !running) return;
  MutexLock lock(timer_mutex);
  if (timer_at <= when) return;
  if (timer.value != 0) runtime->cancel(timer);
  timer_at = std::max(when, runtime->now());  // tick() measures its delay against this
  timer = runtime->call_at(when, [weak = owner] {
    if (const auto agent = weak.lock()) agent->impl().tick();
  });
}

void Agent::Impl::tick() {
  Duration late;
  {
    MutexLock lock(timer_mutex);
    late = runtime->now() - timer_at;
    timer = {};
    timer_at = kNever;
  }
  if (!running) return;
  // this process was suspended, and has not yet read the messages that arrived meanwhile
  if (late > options.lease / 4) {
    for (Peer* p : all_peers()) {
      MutexLock lock(p->mutex);
      if (p->heard != TimePoint()) p->heard = std::min(p->heard + late, runtime->now());
    }
  }
  TimePoint next = kNever;
  for (Peer* p : all_peers()) next = std::min(next, tend(*p, runtime->now()));
  schedule(next);
}

/// Does the due work of one peer and returns the time of its next work.
TimePoint Agent::Impl::tend(Peer& p, TimePoint now) {
  std::vector<PendingCall> expired;
  TimePoint next = kNever;
  bool lost = false, ask_peer = false, tell = false;
  {
    MutexLock lock(p.mutex);
    if (p.lost) return kNever;
    for (auto it = p.pending.begin(); it != p.pending.end();) {
      if (it->second.deadline > now) {
        next = std::min(next, it->second.deadline);
        ++it;
        continue;
      }
      if (p.given_up.size() < 65536) p.given_up.insert(it->first);
      expired.push_back(std::move(it->second));
      it = p.pending.erase(it);
    }
    const bool is_self = p.id == self.id;
    const bool watched = p.watchers > 0 && !is_self;
    if (!p.pending.empty() || watched) {
      if (!is_self) {
        lost = now >= p.heard + options.lease;
        next = std::min(next, p.heard + options.lease);
      }
      const Duration slow = std::min(options.retry * 8, options.lease / 4);
      // An unanswered status is repeated sooner: one lost message is no sign of a lost peer.
      TimePoint due = p.asked > p.heard ? p.asked + options.lease / 16 : p.heard + options.lease / 4;
      if (!p.pending.empty())
        due = std::min(due, std::max(p.pending.begin()->second.started + options.retry,
                                     p.asked + std::min(p.pause, slow)));
      if (now >= due || p.ask_now) {
        ask_peer = !lost;
        p.asked = now;
        p.pause = std::min(p.pause * 2, slow);
        due = now + std::max(std::min(p.pause, options.lease / 16), Duration(1));
      }
      p.ask_now = false;
      next = std::min(next, due);
      // no open call and no watch: report the floor, so that the peer forgets the last answers
    } else if (p.told_floor < p.next_sequence && p.tells < kMaxTells) {
      TimePoint due = std::max(p.heard, p.asked) + options.retry;
      if (now >= due) {
        tell = true;
        ++p.tells;
        p.asked = now;
        due = now + options.retry;
      }
      next = std::min(next, due);
    }
  }
  for (PendingCall& call : expired) end(p, std::move(call), nullptr);
  if (lost) {
    lose(p, false,
         str("nothing was heard from it for ", std::chrono::duration<double>(options.lease).count(), " s"));
    return kNever;
  }
  if (ask_peer || tell) ask(p);
  return next;
}

/// Sends a status: [wants an answer][upto][count][open requests below upto] (step 5).
void Agent::Impl::ask(Peer& p) {
  Message m;
  Envelope e;
  {
    MutexLock lock(p.mutex);
    Encoder out(m);
    out.number(uint8_t{1});
    const size_t count = std::min(p.pending.size(), kMaxListed);
    uint64_t upto = p.next_sequence;
    std::vector<uint64_t> open;
    open.reserve(count);
    for (const auto& [sequence, call] : p.pending) {
      if (open.size() == count) {
        upto = sequence;
        break;
      }
      open.push_back(sequence);
    }
    out.number(upto);
    out.put(open);
    out.finish();
    e.floor = p.asked_floor = p.floor();
    e.to_incarnation = p.incarnation.value;
  }
  seal(m);
  stamp(m, e);
  counters.asks.fetch_add(1, std::memory_order_relaxed);
  send(p, static_cast<uint8_t>(Kind::kStatus), std::move(m.bytes));
}

/// Step 5 at the callee.
void Agent::Impl::on_status(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const bool wants_answer = in.number<uint8_t>() != 0;
    const auto upto = in.number<uint64_t>();
    const auto open = in.get<std::vector<uint64_t>>();
    in.expect_end();
    if (!std::is_sorted(open.begin(), open.end())) detail::malformed("a status that is not sorted");
    drop_finished(p, upto, &open);
    if (!wants_answer) return;
    std::vector<uint64_t> unknown, answered;
    Envelope back;
    {
      MutexLock lock(p.mutex);
      for (const uint64_t sequence : open) {
        const auto found = p.served.find(sequence);
        if (found != p.served.end()) {
          if (found->second->replied) answered.push_back(sequence);
        } else if (!p.finished.contains(sequence)) {
          unknown.push_back(sequence);
        }
      }
      back.floor = p.floor();
      back.to_incarnation = p.incarnation.value;
    }
    for (const uint64_t sequence : answered) resend_reply(p, sequence);
    Message reply;
    {
      Encoder out(reply);
      out.put(unknown);
    }
    seal(reply);
    stamp(reply, back);
    send(p, static_cast<uint8_t>(Kind::kStatusReply), std::move(reply.bytes));
  } catch (const std::exception&) {
    counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

/// Step 5 at the caller: sends the requests again that the callee never received.
void Agent::Impl::on_status_reply(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const auto unknown = in.get<std::vector<uint64_t>>();
    in.expect_end();
    {
      MutexLock lock(p.mutex);
      p.told_floor = std::max(p.told_floor, p.asked_floor);
      p.tells = 0;
    }
    for (const uint64_t sequence : unknown) {
      std::string bytes;
      std::vector<Payload> payloads;
      Kind kind;
      {
        MutexLock lock(p.mutex);
        const auto found = p.pending.find(sequence);
        const TimePoint now = runtime->now();
        if (found == p.pending.end() || found->second.sent + options.retry / 2 > now) continue;
        PendingCall& call = found->second;
        if (call.message.staging && !call.message.staging->ready()) continue;  // it has not left yet
        call.sent = now;
        kind = call.kind;
        Envelope again;
        again.sequence = sequence;
        again.floor = p.floor();
        if (call.deadline != kNever) again.remaining_ns = std::max<int64_t>(1, (call.deadline - now).count());
        again.to_incarnation = p.incarnation.value;
        stamp(call.message, again);
        bytes = call.message.bytes;
        payloads = payloads_of(call.message);
      }
      counters.resent_requests.fetch_add(1, std::memory_order_relaxed);
      send(p, static_cast<uint8_t>(kind), std::move(bytes), std::move(payloads));
    }
  } catch (const std::exception&) {
    counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

void Agent::Impl::on_peer(WorkerId id, Incarnation incarnation, PeerState state, const std::string& reason) {
  if (!running) return;
  Peer& p = peer(id);
  bool interested = false;
  {
    MutexLock lock(p.mutex);
    if (p.lost || (incarnation.value != 0 && p.incarnation.value != 0 && incarnation != p.incarnation &&
                   state != PeerState::kRejected))
      return;
    if (state == PeerState::kUp) {
      if (p.incarnation.value == 0) p.incarnation = incarnation;
      p.heard = runtime->now();
    }
    interested = !p.pending.empty() || p.watchers > 0;
    if (interested && state == PeerState::kBroken) p.ask_now = true;
  }
  if (!interested) return;
  if (state == PeerState::kBroken) schedule(runtime->now());
  if (state == PeerState::kUnreachable || state == PeerState::kRejected)
    lose(p, false, str(to_string(state), ": ", reason));
}

/// Step 7: tells a lost incarnation that still sends messages that it counts as lost here.
void Agent::Impl::fence(Peer& p) {
  Message m;
  Envelope e;
  {
    MutexLock lock(p.mutex);
    Encoder out(m);
    out.put(p.why);
    e.to_incarnation = p.incarnation.value;
  }
  seal(m);
  stamp(m, e);
  send(p, static_cast<uint8_t>(Kind::kFenced), std::move(m.bytes));
}

void Agent::Impl::on_fenced(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const auto why = in.get<std::string>();
    in.expect_end();
    lose(p, false, str("it counts this worker as lost: ", why));
  } catch (const WireError&) {
    counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

/// Step 7: marks a peer as lost; fails its calls and tells the layers.
void Agent::Impl::lose(Peer& p, bool left_group, const std::string& reason) {
  if (p.id == self.id) return;
  std::map<uint64_t, PendingCall> pending;
  std::unordered_map<uint64_t, std::shared_ptr<Served>> served;
  WorkerInfo info{{}, p.id};
  {
    MutexLock lock(p.mutex);
    if (p.lost) return;
    p.lost = true;
    p.last_heard = p.heard != TimePoint() ? p.heard : runtime->now();
    p.left = left_group;
    p.why = reason;
    pending.swap(p.pending);
    served.swap(p.served);
    for (const auto& [sequence, s] : served) s->finished = true;
    info.name = p.name;
  }
  if (!left_group) counters.lost_peers.fetch_add(1, std::memory_order_relaxed);
  if (runtime->tracing())
    runtime->trace(
        str("worker ", self.id.value, left_group ? " sees leave " : " loses ", p.id.value, ": ", reason));
  const auto error = std::make_exception_ptr(
      PeerLost(info.name,
               str("worker '", info.name, "' ", left_group ? "has left the group: " : "is lost: ", reason)));
  for (auto& [sequence, call] : pending) end(p, std::move(call), error);
  for (auto& [sequence, s] : served) {
    for (auto& f : s->reply.settled) f(false);
    s->reply.settled.clear();
  }
  if (lending) lending->peer_lost(p.id);
  gather_peer_lost(*this, info, left_group, reason);
  decide_round(*this);
  std::vector<std::function<void(const WorkerInfo&, bool, const std::string&)>> callbacks;
  {
    MutexLock lock(mutex);
    callbacks = lost_callbacks;
  }
  const auto agent = owner.lock();
  if (!callbacks.empty() && agent)
    runtime->post([agent, callbacks = std::move(callbacks), info, left_group, reason] {
      CallContext context;
      context.endpoint = agent;
      const CallScope scope(context);
      for (const auto& f : callbacks) f(info, left_group, reason);
    });
}

void Agent::watch(WorkerId id, int delta) {
  Impl& s = *impl_;
  Peer& p = s.peer(id);
  TimePoint wake = kNever;
  {
    MutexLock lock(p.mutex);
    if (p.watchers == 0 && p.pending.empty()) p.heard = s.runtime->now();
    p.watchers += delta;
    if (p.watchers > 0) wake = p.heard + s.options.lease / 4;
  }
  s.schedule(wake);
}

bool Agent::is_lost(WorkerId id) const {
  Peer* p = impl_->find_peer(id);
  if (!p) return false;
  MutexLock lock(p->mutex);
  return p->lost;
}

void Agent::declare_lost(WorkerId id, const std::string& why) { impl_->lose(impl_->peer(id), false, why); }

}  // namespace weft::rpc
