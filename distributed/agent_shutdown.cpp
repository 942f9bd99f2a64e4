// The end of an agent (agent.cpp, step 9). A graceful one first makes sure that nothing is under way in the whole group.
#include <weft/distributed/agent_impl.h>

namespace weft::rpc {

namespace {

/// Waits until no call is under way here. Returns false at the deadline.
bool wait_quiet(Agent& agent, TimePoint deadline) {
  const Counters& c = agent.impl().counters;
  Duration pause = std::chrono::microseconds(200);
  while (c.active_client > 0 || c.active_server > 0) {
    if (agent.runtime()->now() >= deadline) return false;
    agent.runtime()->sleep_for(pause);
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(10));
  }
  return true;
}

Duration left(Agent& agent, TimePoint deadline) {
  if (deadline == kNever) return std::chrono::hours(24 * 365);
  const Duration d = deadline - agent.runtime()->now();
  if (d.count() <= 0) throw Timeout("shutdown: the time is up");
  return d;
}

/// Rounds until nothing is under way anywhere and nothing was begun since the round before.
void settle_group(Agent& agent, TimePoint deadline) {
  int64_t before = -1;
  for (;;) {
    if (!wait_quiet(agent, deadline))
      throw Timeout(
          str("shutdown: worker '", agent.self().name, "' still has calls under way:\n", agent.dump()));
    const Counters& c = agent.impl().counters;
    Message mine;
    {
      Encoder out(mine);
      out.number(c.calls.load() + c.served.load());  // the rounds themselves are not counted
      out.number(c.active_client.load() + c.active_server.load());
    }
    int64_t begun = 0, active = 0;
    const auto all = agent.gather(std::move(mine), {}, left(agent, deadline));
    for (const auto& [name, message] : all) {
      Decoder in(message);
      begun += in.number<int64_t>();
      active += in.number<int64_t>();
    }
    if (active == 0 && begun == before) return;
    before = begun;
  }
}

}  // namespace

void Agent::shutdown(ShutdownOptions options) {
  Impl& s = *impl_;
  std::exception_ptr failure;
  if (options.graceful && !s.ended.is_set()) {
    const TimePoint deadline = options.timeout.count() > 0 ? s.runtime->now() + options.timeout : kNever;
    failure = s.closing.exchange(true) ? join_shutdown(deadline) : leave_together(deadline);
  }
  stop();
  if (failure) std::rethrow_exception(failure);
}

/// Another thread's shutdown is under way: its outcome is ours.
std::exception_ptr Agent::join_shutdown(TimePoint deadline) {
  Impl& s = *impl_;
  try {
    if (!s.ended.wait_until(deadline))
      throw Timeout(
          str("shutdown: another shutdown of worker '", s.self.name, "' is still under way:\n", dump()));
  } catch (...) {
    return std::current_exception();
  }
  MutexLock lock(s.mutex);
  return s.shutdown_failure;
}

/// The graceful part, with everyone else.
std::exception_ptr Agent::leave_together(TimePoint deadline) {
  Impl& s = *impl_;
  std::exception_ptr failure;
  CallContext context;
  context.agent = shared_from_this();
  const CallScope scope(context);
  try {
    settle_group(*this, deadline);
    std::vector<std::pair<std::string, std::function<void(TimePoint)>>> steps;
    {
      MutexLock lock(s.mutex);
      steps = s.shutdown_steps;
    }
    for (const auto& [name, step] : steps) {
      step(deadline);
      settle_group(*this, deadline);
    }
    linger(deadline);
  } catch (const PeerLost& e) {
    // One that left has been through all rounds itself, or was told to go at once: nothing to wait for in it any more.
    bool left_group = false;
    for (Peer* p : s.all_peers()) {
      MutexLock lock(p->mutex);
      left_group = left_group || (p->left && p->name == e.peer);
    }
    if (!left_group) failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  MutexLock lock(s.mutex);
  return s.shutdown_failure = failure;
}

/// The leader's last answers must arrive before it leaves: they are acknowledged by being finished, or their askers have left.
void Agent::linger(TimePoint deadline) {
  Impl& s = *impl_;
  const TimePoint until =
      std::min(deadline, s.runtime->now() + s.options.lease);  // whoever asks no more by then is lost
  while (s.runtime->now() < until) {
    bool open = false;
    for (Peer* p : s.all_peers()) {
      if (p->id == s.self.id) continue;
      MutexLock lock(p->mutex);
      for (const auto& [sequence, served] : p->served) open = open || served->kind == Kind::kGather;
    }
    if (!open) return;
    s.runtime->sleep_for(std::chrono::milliseconds(1));
  }
}

void Agent::stop() {
  Impl& s = *impl_;
  s.closing = true;
  if (!s.running.exchange(false)) return;
  const struct Through {
    Event& ended;
    ~Through() { ended.set(); }
  } through{s.ended};
  {
    MutexLock lock(s.timer_mutex);
    if (s.timer.value != 0) s.runtime->cancel(s.timer);
    s.timer = {};
    s.timer_at = kNever;
  }
  for (Peer* p : s.all_peers()) {
    std::map<uint64_t, PendingCall> pending;
    std::unordered_map<uint64_t, std::shared_ptr<Served>> served;
    bool tell = false;
    std::string name;
    Envelope e;
    {
      MutexLock lock(p->mutex);
      pending.swap(p->pending);
      served.swap(p->served);
      tell = p->id != s.self.id && !p->lost && p->heard != TimePoint();
      e.floor = p->next_sequence;
      e.to_incarnation = p->incarnation.value;
      name = p->name;
      for (const auto& [sequence, one] : served) one->finished = true;
    }
    const auto error = std::make_exception_ptr(RpcError(
        str("the call to worker '", name, "' was under way when worker '", s.self.name, "' was shut down")));
    for (auto& [sequence, call] : pending) s.end(*p, std::move(call), error);
    for (auto& [sequence, one] : served) {
      for (auto& f : one->reply.settled) f(false);
      one->reply = {};
    }
    if (!tell) continue;
    Message bye;
    seal(bye);
    stamp(bye, e);
    s.send(*p, static_cast<uint8_t>(Kind::kGoodbye), std::move(bye.bytes));
  }
  stop_gathers(s);
  std::vector<std::function<void()>> callbacks;
  {
    MutexLock lock(s.mutex);
    callbacks = s.stop_callbacks;
  }
  for (const auto& f : callbacks) f();
  if (s.transport) s.transport->close();
}

}  // namespace weft::rpc
