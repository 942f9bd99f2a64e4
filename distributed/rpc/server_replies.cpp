// The callee's side of a call (agent.cpp, steps 2 to 5): its answers. Each answer is kept until the caller
// has it, and resent to a caller that asks. It is sent later if a device still copies its tensors. A large
// answer may be dropped after that (inner/budget.h, step 4).
#include <weft/distributed/rpc/inner/server.h>

#include <algorithm>

#include <weft/distributed/rpc/result_dropped.h>

namespace weft::rpc {

namespace {

/// Smaller replies are not counted: max_served_per_peer limits their number.
constexpr size_t kLargeReply = 4096;

int64_t kept_bytes(const Message& reply) {
  const int64_t bytes = wire_bytes(reply);
  return bytes > static_cast<int64_t>(kLargeReply) ? bytes : 0;
}

/// The payloads of a reply. Its room is taken until they have left, too.
std::vector<Payload> payloads_with(const Message& reply, const Room& room) {
  std::vector<Payload> payloads = payloads_of(reply);
  if (payloads.empty() || !room) return payloads;
  struct Both {
    Release release;
    Room room;
  };
  Release& last = payloads.back().release;
  auto* const both = new Both{std::move(last), room};
  last = Release([](void* p) { delete static_cast<Both*>(p); }, both);
  return payloads;
}

std::string name_of(const Served& served) {
  const char* const what = served.what;
  return what ? str("'", what, "'") : str("a ", to_string(served.kind));
}

}  // namespace

std::exception_ptr no_answer() { return std::make_exception_ptr(RpcError("the handler gave no answer")); }

Message error_message(const std::exception_ptr& error) {
  Message m;
  Encoder out(m);
  put_error(out, error);
  out.finish();
  return m;
}

/// Step 2: sends the answer of a duplicate request again, unless it has just been sent.
void Server::resend_reply(Peer& p, uint64_t sequence) {
  std::string bytes;
  std::vector<Payload> payloads;
  Kind kind;
  std::shared_ptr<Served> dropped;
  Envelope e;
  {
    MutexLock lock(p.mutex);
    const auto found = p.served.find(sequence);
    if (found == p.served.end() || !found->second->replied) return;
    Served& served = *found->second;
    if (served.reply.staging && !served.reply.staging->ready()) return;  // it has not left yet
    const TimePoint now = core_.runtime->now();
    if (served.sent + core_.options.retry / 2 > now) return;
    served.sent = now;
    kind = served.kind;
    if (served.dropped) {
      dropped = found->second;
      e.sequence = sequence;
      e.floor = p.floor();
      e.to_incarnation = p.incarnation.load().value;
    } else {
      bytes = header_of(served.reply);
      payloads = payloads_with(served.reply, served.room);
    }
  }
  if (dropped)
    return replace_reply(
        p, dropped, e,
        std::make_exception_ptr(ResultDropped(
            str(name_of(*dropped),
                " has run, and its result was lost on the way; no room was left to keep it here"))));
  core_.counters.resent_replies.fetch_add(1, std::memory_order_relaxed);
  core_.send(p.id, static_cast<uint8_t>(kind) | kReplyBit, std::move(bytes), std::move(payloads));
}

void Server::answer(const std::shared_ptr<Served>& served, const std::exception_ptr& error) noexcept {
  Message message;
  try {
    message = error_message(error);
  } catch (...) {  // no memory
    if (served->answered.exchange(true)) return;
    end(served);
    served->context.endpoint.reset();
    return lose_answer(served, message);
  }
  answer(served, std::move(message), true);
}

void Server::answer(const std::shared_ptr<Served>& served, Message message, bool error) noexcept {
  if (served->answered.exchange(true)) return;
  try {
    give_answer(served, message, error);
  } catch (...) {  // no memory
    lose_answer(served, message);
  }
}

/// An answer that cannot be kept. The request must not run again if it has begun.
void Server::lose_answer(const std::shared_ptr<Served>& served, Message& message) noexcept {
  for (auto& f : std::exchange(message.settled, {})) f(false);
  if (served->refused) return forget(served);
  MutexLock lock(served->peer->mutex);
  if (served->replied || served->finished) return;
  served->replied = served->dropped = true;
}

/// The request is no longer open. Returns the window to announce.
int64_t Server::end(const std::shared_ptr<Served>& served) {
  if (!is_round(served->kind)) core_.counters.active_server.fetch_sub(1, std::memory_order_relaxed);
  return served->bytes >= 0 ? core_.budget.served(*served->peer, served->bytes) : 0;
}

/// Step 3: keeps the answer, then sends it. Throws: bad_alloc, before the answer is kept.
void Server::give_answer(const std::shared_ptr<Served>& served, Message& message, bool error) {
  const int64_t window = end(served);
  const auto agent = std::static_pointer_cast<Agent>(std::exchange(served->context.endpoint, nullptr));
  // A function that the end of this agent cuts off fails by that. The goodbye gives the caller the reason.
  if (error && !core_.running) return;
  Peer& p = *served->peer;
  if (core_.tracer.on())
    core_.tracer.add({.of = SpanOf::kServed,
                      .ok = !error,
                      .kind = served->kind,
                      .what = served->what,
                      .peer = p.life(),
                      .sequence = served->sequence,
                      .bytes = tensor_bytes(message),
                      .start = served->started,
                      .begun = TimePoint(Duration(served->begun.load())),
                      .end = core_.runtime->now()});
  Room room;
  bool put_off = false;
  if (!error) {
    try {
      // The successor of this life may have answered others meanwhile.
      if (is_refused_by_fence(served->kind) && core_.fence.closed())
        std::rethrow_exception(core_.fence.error(core_.self.name));
      core_.interceptors.each([&](Interceptor& i) {
        i.reply_sending(*agent, p.life(), served->kind, served->what, message, served->context);
      });
      devices_.seal_for(p, message);
      if (const int64_t bytes = served->bytes >= 0 ? kept_bytes(message) : 0; bytes > 0) {
        room = make_room(p, bytes);
        put_off = !room && served->kind == Kind::kFetch;
        if (!room && !put_off) core_.budget.count_dropped();
        if (!room)
          throw ResultDropped(str(name_of(*served), " has run, and there is no room for its result of ",
                                  bytes, " bytes: ", core_.budget.in_use(), " (BudgetLimits::reserve)"));
      }
    } catch (...) {
      error = true;
      core_.interceptors.each(
          [&](Interceptor& i) { i.discarded(*agent, p.life(), served->kind, message, true); });
      for (auto& f : std::exchange(message.settled, {})) f(false);
      if (put_off) {
        core_.counters.served.fetch_sub(1, std::memory_order_relaxed);
        core_.budget.count_put_off();
        return forget(served);
      }
      message = error_message(std::current_exception());
    }
  }
  if (error) seal(message);
  Envelope e;
  e.sequence = served->sequence;
  if (error) e.error = served->refused ? Envelope::kRefused : Envelope::kThrown;
  e.window = Envelope::pack_window(window);
  const int64_t kept = served->bytes >= 0 ? kept_bytes(message) : 0;
  const std::shared_ptr<Staging> staging = message.staging;
  const bool ready = !staging || staging->ready();
  std::string bytes;
  std::vector<Payload> payloads;
  bool wanted = false;
  {
    MutexLock lock(p.mutex);
    wanted = !served->finished && !p.lost;
    if (wanted) {
      e.floor = p.floor();
      e.to_incarnation = p.incarnation.load().value;
      core_.stamp(message, e);
      if (ready) {
        bytes = header_of(message);
        payloads = payloads_with(message, room);
      }
      served->reply = std::move(message);
      served->room = std::move(room);
      served->replied = true;
      served->kept = kept;
      served->sent = core_.runtime->now();
    }
  }
  // NOLINTBEGIN(bugprone-use-after-move): `message` was not moved on this path
  if (!wanted) {  // the caller gave up or is lost
    if (!error && agent)
      core_.interceptors.each(
          [&](Interceptor& i) { i.discarded(*agent, p.life(), served->kind, message, true); });
    for (auto& f : message.settled) f(false);
    return;
  }
  // NOLINTEND(bugprone-use-after-move)
  core_.budget.keep(p, kept);
  if (ready) return transmit(p, served, e, std::move(bytes), std::move(payloads));
  devices_.carry(staging, [this, held = core_.agent(), &p, served, e](std::exception_ptr failed) {
    if (failed) return replace_reply(p, served, e, std::move(failed));
    std::string staged;
    std::vector<Payload> buffers;
    {
      MutexLock lock(p.mutex);
      if (served->finished) return;
      staged = header_of(served->reply);
      buffers = payloads_with(served->reply, served->room);
    }
    transmit(p, served, e, std::move(staged), std::move(buffers));
  });
}

void Server::transmit(Peer& p, const std::shared_ptr<Served>& served, const Envelope& e, std::string bytes,
                      std::vector<Payload> payloads) {
  const bool large = served->bytes >= 0 && (!payloads.empty() || bytes.size() > kLargeReply);
  try {
    core_.transport->send(p.id, static_cast<uint8_t>(static_cast<uint8_t>(served->kind) | kReplyBit),
                          std::move(bytes), std::move(payloads));
    if (large) drop_oldest(p, *served);
  } catch (const WireError&) {  // over the transport's limits: the error becomes the answer
    if (!e.error) replace_reply(p, served, e, std::current_exception());
  } catch (const std::exception&) {  // the caller will send a status (step 5)
  }
}

/// Drops the oldest replies beyond the limits, once another one has been sent. Replies with references or
/// gradients stay: both ends must agree on whether they arrived.
void Server::drop_oldest(Peer& p, const Served& sent) {
  {
    MutexLock lock(p.mutex);
    while (!p.droppable.empty() && p.served.count(p.droppable.front()) == 0) p.droppable.pop_front();
    if (!sent.finished && sent.reply.settled.empty() && sent.reply.extensions.empty())
      p.droppable.push_back(sent.sequence);
  }
  while (core_.budget.keeps_too_much(p) && drop_one(p, 1, false)) {
  }
}

/// Drops the oldest reply of those that were sent, except the newest `but` ones. `left`: only if its payloads
/// have left. False: there is none.
bool Server::drop_one(Peer& p, size_t but, bool left) {
  Message gone;
  Room room;
  int64_t freed = 0;
  {
    MutexLock lock(p.mutex);
    while (p.droppable.size() > but && freed == 0) {
      const auto found = p.served.find(p.droppable.front());
      const bool kept = found != p.served.end() && found->second->kept > 0;
      if (kept && left && found->second->room.use_count() > 1) return false;
      p.droppable.pop_front();
      if (!kept) continue;
      found->second->dropped = true;
      freed = std::exchange(found->second->kept, 0);
      gone = std::exchange(found->second->reply, {});
      room = std::exchange(found->second->room, nullptr);
    }
  }
  if (freed == 0) return false;
  core_.budget.keep(p, -freed);
  core_.budget.count_dropped();
  return true;
}

/// Room for a result; null: none, and no reply can be dropped for it.
Room Server::make_room(Peer& p, int64_t bytes) {
  for (;;) {
    if (Room room = core_.budget.stand(bytes)) return room;
    if (!drop_one(p, 0, true)) return nullptr;
  }
}

/// Answers with an error in place of a reply that cannot be sent.
void Server::replace_reply(Peer& p, const std::shared_ptr<Served>& served, Envelope e,
                           std::exception_ptr error) {
  Message sorry = error_message(error);
  seal(sorry);
  e.error = 1;
  core_.stamp(sorry, e);
  std::string bytes = sorry.bytes;
  int64_t change = served->bytes >= 0 ? kept_bytes(sorry) : 0;
  Room room;
  {
    MutexLock lock(p.mutex);
    if (served->finished) return;
    std::swap(served->reply, sorry);
    room.swap(served->room);
    served->dropped = false;
    change -= std::exchange(served->kept, change);
  }
  core_.budget.keep(p, change);
  if (const auto agent = core_.agent())
    core_.interceptors.each(
        [&](Interceptor& i) { i.discarded(*agent, p.life(), served->kind, sorry, true); });
  core_.send(p.id, static_cast<uint8_t>(static_cast<uint8_t>(served->kind) | kReplyBit), std::move(bytes));
}

/// Step 5 at the callee.
void Server::on_status(Peer& p, const std::string& header, const Envelope& e) {
  try {
    const Message m = unseal(header, {}, e);
    Decoder in(m);
    const bool wants_answer = in.number<uint8_t>() != 0;
    const auto upto = in.number<uint64_t>();
    const auto open = in.get<std::vector<uint64_t>>();
    in.expect_end();
    if (open.size() > kMaxListed) detail::malformed("a status that lists too many calls");
    if (!std::is_sorted(open.begin(), open.end())) detail::malformed("a status that is not sorted");
    Dropped finished;
    {
      MutexLock lock(p.mutex);
      finished.others.reserve(p.served.size());
      p.finished.add(upto, open);
      take_all_finished(p, finished);
    }
    forget(p, std::move(finished));
    if (!wants_answer) return;
    std::vector<uint64_t> unknown, answered;
    const uint16_t window = Envelope::pack_window(core_.budget.window_for(p));
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
      back.window = window;
      back.to_incarnation = p.incarnation.load().value;
    }
    for (const uint64_t sequence : answered) resend_reply(p, sequence);
    Message reply;
    {
      Encoder out(reply);
      out.number(e.floor);
      out.put(unknown);
    }
    seal(reply);
    core_.stamp(reply, back);
    core_.send(p.id, static_cast<uint8_t>(Kind::kStatusReply), std::move(reply.bytes));
  } catch (const std::exception&) {
    core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
  }
}

/// Removes a request from the table. Its place there is kept for the next one.
void Server::Dropped::add(Peer& p, ServedRequests::iterator of) {
  gave_up = of->second->finish() || gave_up;
  freed += std::exchange(of->second->kept, 0);
  if (!first) first = std::move(of->second);
  else others.push_back(std::move(of->second));
  p.spare_served = p.served.extract(of);
}

void Server::take_finished(Peer& p, uint64_t floor, Dropped& out) {
  const uint64_t before = p.finished.floor();
  if (floor <= before) return;
  const uint64_t count = std::min<uint64_t>(floor - before, p.served.size());
  if (count > 1) out.others.reserve(count - 1);
  p.finished.add_floor(floor);
  if (floor - before <= p.served.size()) {  // the usual case: the floor went up by a few
    for (uint64_t sequence = before; sequence < floor; ++sequence)
      if (const auto found = p.served.find(sequence); found != p.served.end()) out.add(p, found);
    return;
  }
  take_all_finished(p, out);
}

void Server::take_all_finished(Peer& p, Dropped& out) {
  for (auto it = p.served.begin(); it != p.served.end();) {
    const auto next = std::next(it);
    if (p.finished.contains(it->first)) out.add(p, it);
    it = next;
  }
}

void Server::forget(Peer& p, Dropped dropped) noexcept {
  const auto free = [](Served& served) {
    if (!served.replied) return;  // still running: answer() will see `finished`
    for (auto& f : served.reply.settled) {
      try {
        f(true);
      } catch (...) {  // no memory or thread for a timer
      }
    }
    served.reply = {};
    served.room.reset();
  };
  core_.budget.keep(p, -dropped.freed);
  if (dropped.first) free(*dropped.first);
  for (const auto& served : dropped.others) free(*served);
  if (!dropped.gave_up) return;
  try {
    caller_.end_unneeded();
  } catch (...) {  // no memory: the calls that are open still go on to their end
  }
}

void drop_replies(Budget& budget, ServedRequests& served) {
  for (auto& [sequence, one] : served) {
    budget.keep(*one->peer, -std::exchange(one->kept, 0));
    for (auto& f : one->reply.settled) f(false);
    one->reply = {};
    one->room.reset();
  }
}

}  // namespace weft::rpc
