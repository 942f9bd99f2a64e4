// Shutdown of an agent (agent.cpp, step 9). A graceful shutdown first detects that no call is open in the
// whole group, by double counting as in Mattern's four-counter method. It needs two successive rounds
// (rounds.cpp) without open calls and with equal totals of calls begun.
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::rpc {

namespace {

constexpr Duration kLastAnswers = std::chrono::seconds(2);

/// Waits until this worker has no open call.
void wait_quiet(Agent& agent, TimePoint deadline, const std::string& caller) {
  const Counters& c = agent.impl().core.counters;
  Duration pause = std::chrono::microseconds(200);
  while (c.active_client > 0 || c.active_server > 0) {
    if (agent.impl().rounds.told_to_stop()) throw ToldToStop();
    if (agent.runtime()->now() >= deadline)
      throw Timeout(
          str(caller, ": worker '", agent.self().name, "' still has calls under way:\n", agent.dump()));
    agent.runtime()->sleep_for(pause);
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(10));
  }
}

/// Repeats rounds until no worker has an open call and none was begun since the previous round.
void settle_group(Agent& agent, Rounds& rounds, TimePoint deadline, const std::string& caller) {
  for (int64_t before = -1;;) {
    wait_quiet(agent, deadline, caller);
    const RoundAnswer& all = rounds.next();
    if (all.active == 0 && all.begun == before) return;
    before = all.begun;
  }
}

/// Waits until the send queues of connected peers are empty. A goodbye may overtake a large answer, and a
/// caller that gets the goodbye first drops the call.
void flush(Agent::Impl& s) {
  const TimePoint until = s.core.runtime->now() + s.core.options.lease;
  const auto sends = [&](WorkerId id) {
    const PeerCounters c = s.core.transport->counters(id);
    return c.connected && c.queued_messages > 0;
  };
  try {
    for (Peer* p : s.peers.all())
      while (p->id != s.core.self.id && sends(p->id) && s.core.runtime->now() < until)
        s.core.runtime->sleep_for(std::chrono::milliseconds(1));
  } catch (const Error&) {  // the runtime has stopped: waiting is impossible
  }
}

}  // namespace

void answer_the_last(Agent& agent, TimePoint until) {
  std::vector<std::pair<Peer*, uint64_t>> open;
  const TimePoint now = agent.runtime()->now();
  for (Peer* p : agent.impl().peers.all()) {
    {
      MutexLock lock(p->mutex);
      for (const auto& [sequence, served] : p->served)
        if (!is_round(served->kind) && p->id != agent.self().id) {
          open.emplace_back(p, sequence);
          p->ask_now = true;  // its answer lists the requests that it has finished
        }
      if (!p->ask_now) continue;
    }
    agent.impl().alarm.set(*p, now);
  }
  for (; !open.empty() && agent.runtime()->now() < until;
       agent.runtime()->sleep_for(std::chrono::milliseconds(1)))
    std::erase_if(open, [](const auto& one) {
      MutexLock lock(one.first->mutex);
      return one.first->lost || one.first->served.count(one.second) == 0;
    });
}

void Agent::shutdown(ShutdownOptions options) {
  Impl& s = *impl_;
  std::exception_ptr failure;
  if (options.graceful && !s.ending.ended.is_set()) {
    const TimePoint deadline = options.timeout.count() > 0 ? s.core.runtime->now() + options.timeout : kNever;
    failure = s.ending.closing.exchange(true) ? join_shutdown(deadline, options.caller)
                                              : leave_together(deadline, options.caller);
  }
  stop();
  if (failure) std::rethrow_exception(failure);
}

/// Waits for the shutdown of another thread and takes its outcome.
std::exception_ptr Agent::join_shutdown(TimePoint deadline, const std::string& caller) {
  Impl& s = *impl_;
  try {
    if (!s.ending.ended.wait_until(deadline))
      throw Timeout(
          str(caller, ": another shutdown of worker '", s.core.self.name, "' is still under way:\n", dump()));
  } catch (...) {
    return std::current_exception();
  }
  MutexLock lock(s.ending.mutex);
  return s.ending.failure;
}

/// The graceful part, together with the other workers.
std::exception_ptr Agent::leave_together(TimePoint deadline, const std::string& caller) {
  Impl& s = *impl_;
  std::exception_ptr failure;
  CallContext context;
  context.endpoint = shared_from_this();
  const CallScope scope(context);
  try {
    Rounds rounds(*this, s.core, s.rounds, deadline, caller);
    const RoundAnswer outcome = rounds.next();
    settle_group(*this, rounds, deadline, caller);
    for (const auto& [name, step] : s.ending.steps.all()) {
      step(deadline);
      settle_group(*this, rounds, deadline, caller);
    }
    linger(deadline);
    if (outcome.failed) failure = std::make_exception_ptr(PeerLost(outcome.peer, outcome.text));
  } catch (const ToldToStop&) {
    answer_the_last(*this, s.core.runtime->now() + kLastAnswers);
  } catch (const PeerLost& e) {
    // A worker that left has done all rounds, or was asked to stop: there is no reason to wait for it.
    bool left_group = false;
    for (Peer* p : s.peers.all()) {
      MutexLock lock(p->mutex);
      left_group = left_group || (p->left && p->name == e.peer);
    }
    if (!left_group) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  MutexLock lock(s.ending.mutex);
  return s.ending.failure = failure;
}

/// Waits until the leader's last answers have arrived: the callers have finished the requests or have left.
void Agent::linger(TimePoint deadline) {
  Impl& s = *impl_;
  // a worker that is silent for that long is lost
  const TimePoint until = std::min(deadline, s.core.runtime->now() + s.core.options.lease);
  while (s.core.runtime->now() < until) {
    bool open = false;
    for (Peer* p : s.peers.all()) {
      if (p->id == s.core.self.id) continue;
      MutexLock lock(p->mutex);
      for (const auto& [sequence, served] : p->served) open = open || is_round(served->kind);
      if (open) break;
    }
    if (!open) return;
    s.core.runtime->sleep_for(std::chrono::milliseconds(1));
  }
}

void Agent::stop_serving() { impl_->rounds.tell_to_stop(); }

bool Agent::told_to_stop() const { return impl_->rounds.told_to_stop(); }

void Agent::add_shutdown_step(std::string name, std::function<void(TimePoint)> step) {
  impl_->ending.steps.add({std::move(name), std::move(step)});
}

void Agent::on_stop(std::function<void()> f) { impl_->ending.stop_callbacks.add(std::move(f)); }

void Agent::stop() {
  Impl& s = *impl_;
  s.ending.closing = true;
  if (!s.core.running.exchange(false)) return;
  const struct Through {
    Event& ended;
    ~Through() { ended.set(); }
  } through{s.ending.ended};
  s.alarm.cancel();
  for (Peer* p : s.peers.all()) {
    MutexLock lock(p->mutex);
    for (const auto& [sequence, one] : p->served) one->given_up = true;
  }
  if (s.core.transport) flush(s);
  for (Peer* p : s.peers.all()) {
    PendingCalls pending;
    ServedRequests served;
    bool tell = false;
    std::string name;
    Envelope e;
    {
      MutexLock lock(p->mutex);
      pending.swap(p->pending);
      served.swap(p->served);
      tell = p->id != s.core.self.id && !p->lost && p->heard != TimePoint();
      e.floor = p->next_sequence;
      e.to_incarnation = p->incarnation.load().value;
      name = p->name;
      for (const auto& [sequence, one] : served) one->finish();
    }
    const auto error = std::make_exception_ptr(RpcError(str(
        "the call to worker '", name, "' was under way when worker '", s.core.self.name, "' was shut down")));
    for (auto& [sequence, call] : pending) s.caller.end(*p, std::move(call), error);
    drop_replies(s.core.budget, served);
    if (!tell) continue;
    Message bye;
    seal(bye);
    s.core.stamp(bye, e);
    s.core.send(p->id, static_cast<uint8_t>(Kind::kGoodbye), std::move(bye.bytes));
  }
  s.gathers.stop();
  s.rounds.stop();
  for (const auto& f : s.ending.stop_callbacks.copies()) f();
  // A stalled but living peer still gets the goodbye; one that is silent for a lease is lost.
  if (s.core.transport)
    s.core.transport->close(std::max<Duration>(s.core.options.lease, std::chrono::seconds(2)));
}

}  // namespace weft::rpc
