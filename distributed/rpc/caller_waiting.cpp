// Calls that wait for credit at their caller (inner/budget.h). A waiting call is in the peer's table like any
// open call. So its deadline, its cancellation, the loss of the peer and the end of the agent find it. Only
// its message has not been sent. The end of another call, or a larger window, starts it.
#include <weft/distributed/rpc/inner/caller.h>

namespace weft::rpc {

/// Gives back the room of a call that has ended, with a reply of `bytes`.
void Caller::release(Peer& p, const PendingCall& call, int64_t bytes) {
  if (!call.charge) return;
  const Budget::Ended ended = core_.budget.end(call.charge, bytes);
  if (ended.start) start_waiting();
  if (ended.acknowledge) ask(p);
}

void Caller::on_window(Peer& p, uint16_t packed) noexcept {
  if (p.window.exchange(packed) == packed) return;
  Envelope e;
  e.window = packed;
  try {
    if (core_.budget.announced(p, e.window_bytes()) && core_.budget.begin_starting()) start_waiting();
  } catch (...) {  // the next message states it again
    p.window = 0;
  }
}

/// Starts the waiting calls that have room now. One thread does so at a time (Budget::begin_starting): a
/// start may end a call, which gives room to others.
void Caller::start_waiting() {
  while (const auto ready = core_.budget.next()) {
    try {
      start_now(*ready->to, ready->sequence);
    } catch (...) {  // no memory
      fail(*ready->to, ready->sequence, std::current_exception());
    }
  }
}

void Caller::start_now(Peer& p, uint64_t sequence) {
  const TimePoint now = core_.runtime->now();
  Outgoing out{};
  std::shared_ptr<Staging> staging;
  {
    MutexLock lock(p.mutex);
    const auto found = p.pending.find(sequence);
    if (found == p.pending.end() || !core_.running) return;  // its end gives the room back
    PendingCall& call = found->second;
    call.waits = false;
    stamp_again(p, sequence, call, now);
    staging = call.message.staging;
    out = {sequence, call.kind, call.deadline};
  }
  if (is_held_by_fence(out.kind) && core_.fence.closed())
    return fail(p, sequence, core_.fence.error(core_.self.name));
  const NoBlockScope scope("the start of a waiting call");
  send_when_ready(p, out, staging);
}

/// Sends an open call once the copies of its tensors are done.
void Caller::send_when_ready(Peer& p, const Outgoing& call, const std::shared_ptr<Staging>& staging) {
  const auto send = [this, &p, call](std::exception_ptr error) {
    if (error) return fail(p, call.sequence, std::move(error));
    std::string bytes;
    std::vector<Payload> payloads;
    {
      MutexLock lock(p.mutex);
      const auto found = p.pending.find(call.sequence);
      if (found == p.pending.end() || !p.told) return;  // until this worker learns of that life
      bytes = header_of(found->second.message);
      payloads = payloads_of(found->second.message);
    }
    transmit(p, call, std::move(bytes), std::move(payloads));
  };
  if (!staging || staging->ready()) return send(nullptr);
  devices_.carry(staging, [send, held = core_.owner.shared_from_this()](std::exception_ptr error) {
    send(std::move(error));
  });
}

}  // namespace weft::rpc
