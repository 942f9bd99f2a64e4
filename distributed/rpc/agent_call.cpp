// The caller's side of a call: its start, and its end by the reply, the deadline or the loss of the peer
// (agent.cpp, steps 1, 5, 6 and 8). The callee's side is in agent_serve.cpp, the timer in agent_liveness.cpp.
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::rpc {

namespace {

/// The reply as a Future<Message>.
class MessageSink final : public ReplySink {
 public:
  explicit MessageSink(std::shared_ptr<detail::FutureState<Message>> state) : state_(std::move(state)) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override { state_->try_set(std::move(message)); }
  void on_error(std::exception_ptr error) noexcept override { state_->try_set_error(std::move(error)); }

 private:
  std::shared_ptr<detail::FutureState<Message>> state_;
};

std::string describe(const PendingCall& call) {
  return call.what ? str("'", call.what, "'") : str("a ", to_string(call.kind));
}

void settle(Message& message, bool received) {
  for (auto& f : message.settled) f(received);
  message.settled.clear();
}

std::string seconds(Duration d) {
  const double s = std::chrono::duration<double>(d).count();
  return s < 1 ? str(s * 1000, " ms") : str(s, " s");
}

}  // namespace

Future<Message> Agent::call(WorkerId to, Kind kind, Message message, CallOptions options) {
  auto state = std::make_shared<detail::FutureState<Message>>(impl_->runtime);
  call(to, kind, std::move(message), options, std::make_unique<MessageSink>(state));
  return Future<Message>(std::move(state));
}

void Agent::call(WorkerId to, Kind kind, Message message, CallOptions options,
                 std::unique_ptr<ReplySink> sink) {
  Impl& s = *impl_;
  if (!s.running)
    throw RpcError(str("RPC has not been initialized: worker '", s.self.name, "' has been shut down"));
  if (options.timeout && options.timeout->count() < 0)
    throw ValueError(str("timeout is negative: ", options.timeout->count(), " ns"));
  s.start(*this, s.peer(to), kind, std::move(message), options, std::move(sink));
}

void Agent::Impl::start(Agent& agent, Peer& p, Kind kind, Message message, const CallOptions& call_options,
                        std::unique_ptr<ReplySink> sink) {
  if (has_interceptors)
    intercept([&](Interceptor& i) { i.request_sending(agent, p.id, kind, call_options.what, message); });
  try {
    seal_for(p, message);
  } catch (...) {  // for example, no memory for the copies of its tensors
    discard(p, kind, message);
    throw;
  }

  PendingCall call;
  call.kind = kind;
  call.message = std::move(message);
  call.context = capture_context();
  call.context.endpoint = agent.shared_from_this();
  if (open_accelerators() > 0) call.streams = current_streams(false);
  call.sink = std::move(sink);
  call.what = call_options.what;
  call.started = call.sent = runtime->now();
  if (call_options.timeout) {
    call.timeout = *call_options.timeout;
    if (call.timeout.count() > 0 && call.timeout < kNever - call.started)
      call.deadline = call.started + call.timeout;
  } else {
    call.timeout = Duration(rpc_timeout_ns.load(std::memory_order_relaxed));
    if (call.timeout.count() > 0 && call.timeout < kNever - call.started)
      call.deadline = call.started + call.timeout;
    if (call.context.deadline < call.deadline) {
      call.deadline = call.context.deadline;
      call.timeout = std::max(Duration(0), call.deadline - call.started);
    }
  }
  const TimePoint deadline = call.deadline;

  Envelope e;
  if (deadline != kNever) e.remaining_ns = std::max<int64_t>(1, (deadline - call.started).count());
  const std::shared_ptr<Staging> staging = call.message.staging;
  const bool ready = !staging || staging->ready();
  std::string bytes;
  std::vector<Payload> payloads;
  TimePoint wake;
  std::exception_ptr refused;
  {
    MutexLock lock(p.mutex);
    if (!running) {  // stop() may have emptied this table
      refused = std::make_exception_ptr(
          RpcError(str("RPC has not been initialized: worker '", self.name, "' has been shut down")));
    } else if (p.lost) {
      refused = std::make_exception_ptr(PeerLost(
          p.name, str("worker '", p.name, "' ", p.left ? "has left the group" : "is lost", ": ", p.why)));
    } else {
      const bool first = p.pending.empty();
      if (first && p.watchers == 0) p.heard = call.started;
      e.sequence = p.next_sequence++;
      if (first) p.pause = options.retry;
      PendingCall& kept = p.pending.emplace(e.sequence, std::move(call)).first->second;
      e.floor = p.floor();
      p.tells = 0;
      e.to_incarnation = p.incarnation.value;
      stamp(kept.message, e);
      if (ready) {
        bytes = kept.message.bytes;
        payloads = payloads_of(kept.message);
      }
      wake = std::min(deadline, kept.started + options.retry);
    }
  }
  if (refused) {
    discard(p, kind, call.message);
    call.sink->on_error(std::move(refused));
    return;
  }
  if (!is_round(kind)) {
    counters.calls.fetch_add(1, std::memory_order_relaxed);
    counters.active_client.fetch_add(1, std::memory_order_relaxed);
  }
  schedule(wake);
  const Outgoing call_out{e.sequence, kind, deadline};
  if (ready) return transmit(p, call_out, std::move(bytes), std::move(payloads));
  courier->carry(staging, [this, held = agent.shared_from_this(), &p, call_out](std::exception_ptr error) {
    if (error) return fail(p, call_out.sequence, std::move(error));
    std::string staged;
    std::vector<Payload> buffers;
    {
      MutexLock lock(p.mutex);
      const auto found = p.pending.find(call_out.sequence);
      if (found == p.pending.end()) return;
      staged = found->second.message.bytes;
      buffers = payloads_of(found->second.message);
    }
    transmit(p, call_out, std::move(staged), std::move(buffers));
  });
}

/// Drops a request that is not sent.
void Agent::Impl::discard(Peer& p, Kind kind, Message& message) {
  if (const auto agent = owner.lock(); agent && has_interceptors)
    intercept([&](Interceptor& i) { i.discarded(*agent, p.id, kind, message, true); });
  settle(message, false);
}

/// Fails a call that was not sent, if it is still in the table.
void Agent::Impl::fail(Peer& p, uint64_t sequence, std::exception_ptr error) {
  PendingCall failed;
  {
    MutexLock lock(p.mutex);
    const auto found = p.pending.find(sequence);
    if (found == p.pending.end()) return;
    failed = std::move(found->second);
    p.pending.erase(found);
  }
  discard(p, failed.kind, failed.message);
  end(p, std::move(failed), std::move(error));
}

void Agent::Impl::transmit(Peer& p, const Outgoing& call, std::string bytes, std::vector<Payload> payloads) {
  try {
    for (;;) {
      try {
        transport->send(p.id, static_cast<uint8_t>(call.kind), std::move(bytes), std::move(payloads));
        break;
      } catch (const Overloaded&) {
        if (!transport->wait_writable(p.id, call.deadline)) break;  // tend() ends the call by its deadline
        MutexLock lock(p.mutex);
        const auto found = p.pending.find(call.sequence);
        if (found == p.pending.end()) break;
        bytes = found->second.message.bytes;
        payloads = payloads_of(found->second.message);
      }
    }
  } catch (const WireError&) {  // over the transport's limits: a retry cannot help
    fail(p, call.sequence, std::current_exception());
  } catch (const std::exception&) {
    // Not sent: the queue is full where waiting is not allowed, or the connection is down. The next status
    // repairs it (step 5).
  }
}

void Agent::Impl::send(Peer& p, uint8_t kind, std::string bytes, std::vector<Payload> payloads) {
  try {
    transport->send(p.id, kind, std::move(bytes), std::move(payloads));
  } catch (const std::exception&) {  // a lost message: the next status repairs it
  }
}

/// Takes a reply: removes the call from the table, then passes the value to its sink.
void Agent::Impl::on_reply(Peer& p, Kind kind, const Envelope& e, Inbound inbound) {
  PendingCall call;
  bool late = false;
  std::string name;
  {
    MutexLock lock(p.mutex);
    const auto found = p.pending.find(e.sequence);
    if (found == p.pending.end()) {
      late = p.given_up.erase(e.sequence) > 0;
      if (!late) return;  // a duplicate
    } else {
      call = std::move(found->second);
      p.pending.erase(found);
      p.pause = options.retry;
    }
    name = p.name;
  }
  const std::shared_ptr<Agent> agent = owner.lock();
  if (late) {
    counters.late_replies.fetch_add(1, std::memory_order_relaxed);
    if (e.error || !has_interceptors || !agent) return;
    try {
      const Message message = receive(std::move(inbound), e);
      intercept([&](Interceptor& i) { i.discarded(*agent, p.id, kind, message, false); });
    } catch (const std::exception&) {
      counters.malformed.fetch_add(1, std::memory_order_relaxed);
    }
    return;
  }
  counters.active_client.fetch_sub(is_round(kind) ? 0 : 1, std::memory_order_relaxed);
  settle(call.message, !e.error);
  try {
    const std::optional<StreamScope> scope =
        call.streams.empty() ? std::nullopt : std::optional<StreamScope>(std::in_place, call.streams);
    Message message = receive(std::move(inbound), e);
    if (e.error) {
      Decoder in(message, agent.get(), p.id, true);
      call.sink->on_error(get_error(in, name, call.what));
      return;
    }
    if (!agent) throw RpcError("the agent has ended");
    if (has_interceptors)
      intercept([&](Interceptor& i) { i.reply_received(*agent, p.id, kind, message, call.context); });
    call.sink->on_reply(*agent, p.id, std::move(message));
  } catch (...) {
    call.sink->on_error(std::current_exception());
  }
}

/// Ends a call that was removed from the table. A null error: its deadline came.
void Agent::Impl::end(Peer& p, PendingCall call, std::exception_ptr error) {
  if (!is_round(call.kind)) counters.active_client.fetch_sub(1, std::memory_order_relaxed);
  if (!error) {
    counters.timeouts.fetch_add(1, std::memory_order_relaxed);
    error =
        std::make_exception_ptr(Timeout(str(describe(call), " on worker '", peer_name(p),
                                            "' ran for more than the timeout of ", seconds(call.timeout))));
  }
  settle(call.message, false);
  call.sink->on_error(std::move(error));
}

}  // namespace weft::rpc
