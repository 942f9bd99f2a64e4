// The caller's side of a call (agent.cpp, steps 1, 5, 6 and 8). The callee's side is in server.cpp;
// liveness.cpp decides when a peer is asked; calls that wait for credit are in caller_waiting.cpp.
#include <weft/distributed/rpc/inner/caller.h>

#include <new>

#include <weft/tensor/inner/tracer.h>

namespace weft::rpc {

namespace {

std::string describe(const PendingCall& call) {
  return call.what ? str("'", call.what, "'") : str("a ", to_string(call.kind));
}

void settle(Message& message, bool received) {
  for (auto& f : message.settled) f(received);
  message.settled.clear();
}

/// Puts a call under its number, which is the highest, into the table. Without memory it stays as it is.
void keep(Peer& p, PendingCall& call) WEFT_REQUIRES(p.mutex) {
  const uint64_t sequence = call.sequence;
  if (p.spare.empty()) {
    p.pending.emplace(sequence, std::move(call));
    return;
  }
  p.spare.key() = sequence;
  p.spare.mapped() = std::move(call);
  p.pending.insert(p.pending.end(), std::move(p.spare));
}

std::string seconds(Duration d) {
  const double s = std::chrono::duration<double>(d).count();
  return s < 1 ? str(s * 1000, " ms") : str(s, " s");
}

}  // namespace

Caller::Caller(AgentCore& core, PeerTable& peers, Devices& devices, Alarm& alarm)
    : core_(core),
      peers_(peers),
      devices_(devices),
      alarm_(alarm),
      timeout_ns_(core.options.rpc_timeout.count()) {}

CallId Caller::start(Life to, Kind kind, Message message, const CallOptions& call_options,
                     std::unique_ptr<ReplySink> sink) {
  weft::detail::refuse_trace("calls another worker");
  if (!core_.running)
    throw RpcError(str("RPC has not been initialized: worker '", core_.self.name, "' has been shut down"));
  if (call_options.timeout && call_options.timeout->count() < 0)
    throw ValueError(str("timeout is negative: ", call_options.timeout->count(), " ns"));
  if (to.id == core_.self.id && to.incarnation.value != 0 &&
      to.incarnation != core_.transport->incarnation()) {
    settle(message, false);
    const std::string& name = core_.self.name;
    sink->on_error(std::make_exception_ptr(
        PeerLost(name, str("worker '", name, "' is lost: another life has taken its place"))));
    return {};
  }
  PendingCall call;  // before the hold: its context may own the table
  PeerTable::Hold hold(peers_);
  Peer& p = peers_.of(to, &hold);
  try {
    core_.interceptors.each(
        [&](Interceptor& i) { i.request_sending(core_.owner, p.life(), kind, call_options.what, message); });
    devices_.seal_for(p, message);
    call.context = capture_context();
    if (open_accelerators() > 0) call.streams = current_streams(false);
  } catch (...) {  // for example, no memory for the copies of its tensors
    discard(p, kind, message);
    throw;
  }

  call.kind = kind;
  call.message = std::move(message);
  call.context.endpoint = core_.owner.shared_from_this();
  call.sink = std::move(sink);
  call.what = call_options.what;
  call.started = call.sent = core_.runtime->now();
  if (call_options.timeout) {
    call.timeout = *call_options.timeout;
    if (call.timeout.count() > 0 && call.timeout < kNever - call.started)
      call.deadline = call.started + call.timeout;
  } else {
    call.timeout = timeout();
    if (call.timeout.count() > 0 && call.timeout < kNever - call.started)
      call.deadline = call.started + call.timeout;
    if (call.context.deadline < call.deadline) {
      call.deadline = call.context.deadline;
      call.timeout = std::max(Duration(0), call.deadline - call.started);
    }
  }
  call.deadline = std::min(call.deadline, call_options.until);
  // The messages of references and of backward passes count on their delivery.
  call.ends_with_served =
      !call_options.timeout && (kind == Kind::kCall || kind == Kind::kMethod || kind == Kind::kFetch);
  const TimePoint deadline = call.deadline;

  Envelope e;
  if (deadline != kNever) e.remaining_ns = std::max<int64_t>(1, (deadline - call.started).count());
  const std::shared_ptr<Staging> staging = call.message.staging;
  const bool ready = !staging || staging->ready();
  bool waits = false;  // until this worker learns of that life
  std::string bytes;
  std::vector<Payload> payloads;
  TimePoint wake;
  std::exception_ptr refused;
  if (is_charged(kind)) {
    try {
      call.charge = core_.budget.open(p, wire_bytes(call.message), call.context.serving != 0, call.waits);
    } catch (...) {  // Overloaded, or no memory
      refused = std::current_exception();
    }
  }
  const std::shared_ptr<Charge> waiting = call.waits ? call.charge : nullptr;
  const bool fenced = is_held_by_fence(kind) && core_.fence.closed();
  try {
    MutexLock lock(p.mutex);
    if (refused) {                // there is no room for it
    } else if (!core_.running) {  // stop() may have emptied this table
      refused = std::make_exception_ptr(
          RpcError(str("RPC has not been initialized: worker '", core_.self.name, "' has been shut down")));
    } else if (fenced) {
      refused = core_.fence.error(core_.self.name);
    } else if (p.lost) {
      refused = std::make_exception_ptr(PeerLost(
          p.name, str("worker '", p.name, "' ", p.left ? "has left the group" : "is lost", ": ", p.why)));
    } else if (call.unneeded()) {  // end_unneeded() may have read this table
      lock.unlock();
      refused = unneeded_error(p, call);
    } else {
      const bool first = p.pending.empty();
      if (!p.wanted()) p.heard = call.started;
      e.sequence = call.sequence = p.next_sequence;
      if (first) p.pause = core_.options.retry;
      e.floor = p.floor();
      e.to_incarnation = p.incarnation.load().value;
      core_.stamp(call.message, e);
      if (ready && !waiting) {
        bytes = header_of(call.message);
        payloads = payloads_of(call.message);
      }
      wake = std::min(deadline, call.started + core_.options.retry);
      keep(p, call);
      ++p.next_sequence;
      p.tells = 0;
      waits = !p.told;
    }
  } catch (const std::bad_alloc&) {
    refused = std::current_exception();
  }
  // NOLINTBEGIN(bugprone-use-after-move): `call` was not moved on this path
  if (refused) {
    discard(p, kind, call.message);
    release(p, call, 0);
    call.sink->on_error(std::move(refused));
    return {};
  }
  // NOLINTEND(bugprone-use-after-move)
  if (!is_round(kind)) {
    core_.counters.calls.fetch_add(1, std::memory_order_relaxed);
    core_.counters.active_client.fetch_add(1, std::memory_order_relaxed);
  }
  const Outgoing call_out{e.sequence, kind, deadline};
  try {
    alarm_.set(p, wake);
    if (waiting) {
      if (core_.budget.wait(waiting, e.sequence)) ask(p);
      if (core_.budget.begin_starting()) start_waiting();
    } else if (!ready) {
      send_when_ready(p, call_out, staging);
    } else if (!waits) {
      transmit(p, call_out, std::move(bytes), std::move(payloads));
    }
  } catch (const std::bad_alloc&) {  // its deadline, or the room that it waits for, would not come to it
    fail(p, e.sequence, std::current_exception());
    return {};
  }
  return {&p, e.sequence};
}

bool Caller::cancel(const CallId& id) {
  if (id.peer == nullptr) return false;
  Peer& p = *static_cast<Peer*>(id.peer);
  PendingCall call;
  {
    MutexLock lock(p.mutex);
    const auto found = p.pending.find(id.sequence);
    if (found == p.pending.end()) return false;
    call = std::move(found->second);
    p.pending.erase(found);
    if (!call.waits) p.note_given_up(id.sequence);
  }
  const auto error = std::make_exception_ptr(
      Cancelled(str(describe(call), " on worker '", PeerTable::name(p), "' was cancelled")));
  end(p, std::move(call), error);
  tell_ended(p);
  return true;
}

void Caller::end_unneeded() {
  for (Peer* p : peers_.all()) {
    PendingCalls ended;
    {
      MutexLock lock(p->mutex);
      for (auto it = p->pending.begin(); it != p->pending.end();) {
        if (!it->second.unneeded()) {
          ++it;
          continue;
        }
        p->note_given_up(it->first);
        ended.insert(p->pending.extract(it++));
      }
    }
    for (auto& [sequence, call] : ended) {
      std::exception_ptr error = unneeded_error(*p, call);
      end(*p, std::move(call), std::move(error));
    }
    if (!ended.empty()) tell_ended(*p);
  }
}

std::exception_ptr Caller::unneeded_error(Peer& p, const PendingCall& call) {
  return std::make_exception_ptr(
      Cancelled(str(describe(call), " on worker '", PeerTable::name(p), "' was cancelled: worker '",
                    peers_.name(call.context.caller), "' has given up the call that needs it")));
}

/// Tells a callee at once that calls to it have ended. A later status repairs the loss of this one.
void Caller::tell_ended(Peer& p) {
  ask(p);
  alarm_.set(p, core_.runtime->now() + core_.options.retry);
}

/// Drops a request that is not sent.
void Caller::discard(Peer& p, Kind kind, Message& message) {
  if (const auto agent = core_.agent())
    core_.interceptors.each([&](Interceptor& i) { i.discarded(*agent, p.life(), kind, message, true); });
  settle(message, false);
}

/// Fails a call that was not sent, if it is still in the table.
void Caller::fail(Peer& p, uint64_t sequence, std::exception_ptr error) {
  PendingCall failed;
  {
    MutexLock lock(p.mutex);
    const auto found = p.pending.find(sequence);
    if (found == p.pending.end()) return;
    failed = std::move(found->second);
    p.pending.erase(found);
  }
  if (!failed.waits) discard(p, failed.kind, failed.message);  // else end() does so
  end(p, std::move(failed), std::move(error));
}

void Caller::transmit(Peer& p, const Outgoing& call, std::string bytes, std::vector<Payload> payloads) {
  try {
    for (;;) {
      try {
        core_.transport->send(p.id, static_cast<uint8_t>(call.kind), std::move(bytes), std::move(payloads));
        break;
      } catch (const Overloaded&) {
        if (!core_.transport->wait_writable(p.id, call.deadline))
          break;  // tend() ends the call by its deadline
        MutexLock lock(p.mutex);
        const auto found = p.pending.find(call.sequence);
        if (found == p.pending.end()) break;
        bytes = header_of(found->second.message);
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

Caller::Answered Caller::take(Peer& p, Kind kind, const Envelope& e) {
  Answered out;
  const auto found = p.pending.find(e.sequence);
  if (found == p.pending.end()) {
    out.late = p.given_up.erase(e.sequence) > 0;  // else it is a duplicate
  } else if (found->second.kind != kind) {
    core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
  } else {
    if (e.error) out.name = p.name;
    out.call = std::move(found->second);
    p.spare = p.pending.extract(found);
    p.pause = core_.options.retry;
  }
  return out;
}

void Caller::on_reply(Peer& p, Kind kind, const Envelope& e, Answered answered, Inbound inbound) {
  const std::shared_ptr<Agent> agent = core_.agent();
  if (answered.late) {
    core_.counters.late_replies.fetch_add(1, std::memory_order_relaxed);
    if (e.error || !core_.interceptors.any() || !agent) return;
    try {
      const Message message = devices_.receive(std::move(inbound), e);
      core_.interceptors.each([&](Interceptor& i) { i.discarded(*agent, p.life(), kind, message, false); });
    } catch (const std::exception&) {
      core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
    }
    return;
  }
  if (!answered.call) return;
  PendingCall& call = *answered.call;
  core_.counters.active_client.fetch_sub(is_round(kind) ? 0 : 1, std::memory_order_relaxed);
  settle(call.message, !e.error);
  try {
    release(p, call, bytes_of(inbound));
    record(p, call, !e.error);
    const std::optional<StreamScope> scope =
        call.streams.empty() ? std::nullopt : std::optional<StreamScope>(std::in_place, call.streams);
    Message message = devices_.receive(std::move(inbound), e);
    if (e.error) {
      Decoder in(message, agent.get(), p.id, true);
      const FunctionEntry* const mine = call.what ? find_function(std::string_view(call.what)) : nullptr;
      std::exception_ptr error =
          get_error(in, answered.name, call.what, mine ? mine->signature : std::string());
      if (e.error == Envelope::kRefused) call.sink->on_error(std::move(error));
      else call.sink->on_thrown(std::move(error));
      return;
    }
    if (!agent) throw RpcError("the agent has ended");
    core_.interceptors.each(
        [&](Interceptor& i) { i.reply_received(*agent, p.life(), kind, message, call.context); });
    call.sink->on_reply(*agent, p.id, std::move(message));
  } catch (...) {
    call.sink->on_error(std::current_exception());
  }
}

/// Sends a status, unless there is no memory for it: a later one follows.
void Caller::ask(Peer& p) {
  try {
    send_status(p);
  } catch (const std::bad_alloc&) {
  }
}

/// [wants an answer][upto][count][open requests below upto] (step 5)
void Caller::send_status(Peer& p) {
  Message m;
  Envelope e;
  {
    MutexLock lock(p.mutex);
    if (!p.told) return;
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
    e.floor = p.floor();
    e.to_incarnation = p.incarnation.load().value;
  }
  seal(m);
  core_.stamp(m, e);
  core_.counters.asks.fetch_add(1, std::memory_order_relaxed);
  core_.send(p.id, static_cast<uint8_t>(Kind::kStatus), std::move(m.bytes));
}

/// Step 5 at the caller: sends the requests again that the callee never received.
void Caller::stamp_again(const Peer& p, uint64_t sequence, PendingCall& call, TimePoint now) {
  call.sent = now;
  Envelope e;
  e.sequence = sequence;
  e.floor = p.floor();
  if (call.deadline != kNever) e.remaining_ns = std::max<int64_t>(1, (call.deadline - now).count());
  e.to_incarnation = p.incarnation.load().value;
  core_.stamp(call.message, e);
}

void Caller::on_status_reply(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const auto floor = in.number<uint64_t>();  // of the status that this answers; later ones may be lost
    const auto unknown = in.get<std::vector<uint64_t>>();
    in.expect_end();
    bool tells = false;  // an earlier floor than the present one
    {
      MutexLock lock(p.mutex);
      p.told_floor = std::max(p.told_floor, std::min(floor, p.next_sequence));
      p.tells = 0;
      tells = p.told_floor < p.next_sequence;
    }
    if (tells) alarm_.set(p, core_.runtime->now() + core_.options.retry);
    for (const uint64_t sequence : unknown) {
      std::string bytes;
      std::vector<Payload> payloads;
      Kind kind;
      {
        MutexLock lock(p.mutex);
        const auto found = p.pending.find(sequence);
        const TimePoint now = core_.runtime->now();
        if (found == p.pending.end() || found->second.sent + core_.options.retry / 2 > now) continue;
        PendingCall& call = found->second;
        if (call.waits || (call.message.staging && !call.message.staging->ready()))
          continue;  // it has not left yet
        stamp_again(p, sequence, call, now);
        kind = call.kind;
        bytes = header_of(call.message);
        payloads = payloads_of(call.message);
      }
      core_.counters.resent_requests.fetch_add(1, std::memory_order_relaxed);
      core_.send(p.id, static_cast<uint8_t>(kind), std::move(bytes), std::move(payloads));
    }
  } catch (const std::exception&) {
    core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

void Caller::record(Peer& p, const PendingCall& call, bool ok) {
  if (!core_.tracer.on()) return;
  core_.tracer.add({.ok = ok,
                    .kind = call.kind,
                    .what = call.what,
                    .peer = p.life(),
                    .sequence = call.sequence,
                    .bytes = tensor_bytes(call.message),
                    .start = call.started,
                    .end = core_.runtime->now()});
}

std::exception_ptr Caller::timeout_error(Peer& p, const PendingCall& call) {
  const std::string name = PeerTable::name(p);
  return std::make_exception_ptr(
      call.waits ? Timeout(str(describe(call), " was not sent to worker '", name,
                               "': it waited for credit for the whole timeout of ", seconds(call.timeout),
                               "; ", core_.budget.explain(*call.charge), PeerTable::trouble(p)))
                 : Timeout(str(describe(call), " on worker '", name, "' ran for more than the timeout of ",
                               seconds(call.timeout), PeerTable::trouble(p))));
}

/// Without memory the call ends with that error.
void Caller::end(Peer& p, PendingCall call, std::exception_ptr error) {
  if (!is_round(call.kind)) core_.counters.active_client.fetch_sub(1, std::memory_order_relaxed);
  if (!error) core_.counters.timeouts.fetch_add(1, std::memory_order_relaxed);
  try {
    record(p, call, false);
    if (!error) error = timeout_error(p, call);
  } catch (const std::bad_alloc&) {
    if (!error) error = std::current_exception();
  }
  release(p, call, 0);
  if (call.waits) discard(p, call.kind, call.message);
  settle(call.message, false);
  call.sink->on_error(std::move(error));
}

}  // namespace weft::rpc
