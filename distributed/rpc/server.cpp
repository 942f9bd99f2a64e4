// The callee's side of a call (agent.cpp, steps 2 to 5): its requests. Each request runs at most once, and
// every path through on_request answers it. server_replies.cpp keeps and sends the answers. Responder and the
// handler of Kind::kCall are in responder.cpp.
#include <weft/distributed/rpc/inner/server.h>

#include <algorithm>
#include <new>

#include <weft/distributed/rpc/inner/access.h>
#include <weft/distributed/rpc/inner/put_off.h>

namespace weft::rpc {

namespace {
/// Refused requests of one caller that are kept until it has their answers: as many as may be open, and at
/// least these. Further requests count as lost on the way.
constexpr size_t kRefusedAtLeast = 64;
}  // namespace

void Server::handle(Kind kind, RunOn where, Handler handler) {
  const int number = static_cast<int>(kind);
  if (number < static_cast<int>(Kind::kCall) || number > 127)
    throw ValueError(str("handle: ", to_string(kind), " is the agent's own"));
  MutexLock lock(mutex_);
  if (handlers_[number].load() != nullptr)
    throw ValueError(str("handle: ", to_string(kind), " has a handler already"));
  handler_list_.push_back(std::make_unique<HandlerEntry>(HandlerEntry{where, std::move(handler)}));
  handlers_[number] = handler_list_.back().get();
}

Server::Arrived Server::arrive(Life from, Kind kind, const Envelope& e) {
  const TimePoint now = core_.runtime->now();
  auto served = std::make_shared<Served>();  // complete before other threads can see it
  served->agent = core_.owner.weak_from_this();
  served->sequence = e.sequence;
  served->kind = kind;
  served->started = now;
  served->context.endpoint = core_.agent();
  served->context.caller = from.id;
  served->context.caller_life = from.incarnation;
  served->context.caller_epoch = e.epoch;
  served->context.serving = next_served_.fetch_add(1, std::memory_order_relaxed);
  if (e.remaining_ns > 0 && e.remaining_ns < (kNever - now).count())
    served->context.deadline = now + Duration(e.remaining_ns);
  if (!served->context.endpoint) served.reset();
  return {.served = std::move(served), .fenced = core_.fence.closed()};
}

void Server::record(Peer& p, const Envelope& e, Arrived& arrived) {
  const std::shared_ptr<Served>& served = arrived.served;
  if (!served || p.lost) return;
  if (p.finished.contains(e.sequence)) {
    core_.counters.duplicates.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  served->peer = &p;
  if (!core_.running) served->given_up = true;
  if (p.served.count(e.sequence) != 0) {
    core_.counters.duplicates.fetch_add(1, std::memory_order_relaxed);
    arrived.as = Arrived::As::kAgain;
    return;
  }
  if (arrived.fenced && !is_refused_by_fence(served->kind)) return;
  const size_t most = core_.options.max_served_per_peer;
  if (p.served.size() >= most && p.served.size() - most >= std::max(most, kRefusedAtLeast)) {
    core_.counters.dropped_requests.fetch_add(1, std::memory_order_relaxed);
    return;  // a later status of the caller finds it unknown
  }
  arrived.first = p.served.empty();
  try {
    if (p.spare_served.empty()) {
      p.served.emplace(e.sequence, served);
    } else {
      p.spare_served.key() = e.sequence;
      p.served.insert(std::move(p.spare_served)).position->second = served;
    }
  } catch (const std::bad_alloc&) {
    return;
  }
  arrived.as = p.served.size() > most ? Arrived::As::kRefused : Arrived::As::kNew;
}

void Server::on_request(Peer& p, const Envelope& e, Arrived arrived, Inbound inbound) {
  if (arrived.as == Arrived::As::kDropped) return;
  if (arrived.as == Arrived::As::kAgain) return resend_reply(p, e.sequence);
  const std::shared_ptr<Served> served = std::move(arrived.served);
  const Kind kind = served->kind;
  const bool refused = arrived.as == Arrived::As::kRefused, fenced = arrived.fenced;
  if (!is_round(kind)) {
    core_.counters.served.fetch_add(1, std::memory_order_relaxed);
    core_.counters.active_server.fetch_add(1, std::memory_order_relaxed);
  }

  Responder responder(served);  // from here on every path answers
  try {
    served->refused = true;  // until it may begin
    // the caller is under lease from now on
    if (arrived.first) alarm_.set(p, served->started + core_.options.lease / 4);
    bool full = false;
    if (is_charged(kind)) {
      const int64_t bytes = bytes_of(inbound);
      full = !core_.budget.serve(p, bytes);
      served->bytes = bytes;
    }
    served->refused = refused || fenced || full;
    if (fenced) std::rethrow_exception(core_.fence.error(core_.self.name));
    if (refused)
      throw Overloaded(
          str("more than ", core_.options.max_served_per_peer, " requests of one worker are open"));
    if (finishes_itself(e)) detail::malformed("a request whose floor is beyond it");
    check_access(core_, p, kind);
    if (full) std::rethrow_exception(core_.budget.no_room(served->bytes));
    const int number = static_cast<int>(kind);
    HandlerEntry* handler = number < 128 ? handlers_[number].load() : nullptr;
    if (!handler) throw RpcError(str("nothing here serves requests of ", to_string(kind)));
    Room room;
    if (!is_charged(kind) && !is_round(kind) && handler->where == RunOn::kPool && !inbound.payloads.empty()) {
      room = core_.budget.take(bytes_of(inbound));
      if (!room) {
        core_.budget.count_put_off();
        return put_off(served);
      }
    }
    Message message = devices_.receive(std::move(inbound), e);
    if (message.find(Tag::kResultsToCpu)) served->context.results_to_cpu = true;
    if (handler->where == RunOn::kTransport) return run(*handler, std::move(responder), std::move(message));
    served->request = std::move(message);
    served->request_room = std::move(room);
    served->posting = true;
    try {
      core_.runtime->post_or_refuse([this, keeps_this = agent_of(served->context), handler,
                                     responder = std::move(responder)]() mutable {
        Served& request = *responder.served();
        request.posting = false;
        request.request_room.reset();
        Message message = std::move(request.request);
        if (refusal()) return refuse(std::move(responder), message, no_thread_error(core_.self.name));
        if (is_refused_by_fence(request.kind) && core_.fence.closed())
          return refuse(std::move(responder), message, core_.fence.error(core_.self.name));
        run(*handler, std::move(responder), std::move(message));
      });
      served->posting = false;
    } catch (...) {  // no memory for a task, whose responder has given no answer
      responder = Responder(served);
      served->request = {};
      served->request_room.reset();
      throw;
    }
  } catch (const WireError&) {
    core_.counters.malformed.fetch_add(1, std::memory_order_relaxed);
    responder.fail(std::current_exception());
  } catch (const Overloaded&) {  // its payloads were not read
    served->refused = true;
    responder.fail(std::current_exception());
  } catch (const std::bad_alloc&) {  // the handler has not begun
    served->refused = served->refused || !served->in_handler;
    responder.fail(std::current_exception());
  } catch (...) {
    responder.fail(std::current_exception());
  }
}

void Server::run(HandlerEntry& handler, Responder responder, Message message) {
  const std::shared_ptr<Served> served = responder.served();
  const std::shared_ptr<Agent> agent = agent_of(served->context);
  served->in_handler = true;
  if (core_.tracer.on()) served->begun = core_.runtime->now().time_since_epoch().count();
  try {
    if (core_.interceptors.any()) {
      try {
        core_.interceptors.each([&](Interceptor& i) {
          i.request_received(*agent, served->peer->life(), served->kind, message, served->context);
        });
      } catch (...) {
        core_.interceptors.each(
            [&](Interceptor& i) { i.discarded(*agent, served->peer->life(), served->kind, message, false); });
        throw;
      }
    }
    CallContext context = served->context;
    context.given_up = {served, &served->given_up};
    const CallScope scope(std::move(context));
    handler.handler(Request{served->peer->id, served->kind, std::move(message), served->context.caller_life},
                    std::move(responder));
  } catch (const PutOff&) {
    return put_off(served);
  } catch (...) {
    Responder(served).fail(std::current_exception());
  }
  served->in_handler = false;
  if (served->abandoned) Responder(served).fail(no_answer());
}

/// Forgets a request that cannot be served yet.
void Server::put_off(const std::shared_ptr<Served>& served) {
  if (served->answered.exchange(true)) return;
  if (!is_round(served->kind)) {
    core_.counters.served.fetch_sub(1, std::memory_order_relaxed);
    core_.counters.active_server.fetch_sub(1, std::memory_order_relaxed);
  }
  if (served->bytes >= 0) core_.budget.served(*served->peer, served->bytes);
  const std::shared_ptr<Endpoint> held = std::exchange(served->context.endpoint, nullptr);
  forget(served);
}

/// Its caller sends it again, after a status to which it is unknown.
void Server::forget(const std::shared_ptr<Served>& served) {
  MutexLock lock(served->peer->mutex);
  const auto found = served->peer->served.find(served->sequence);
  if (found != served->peer->served.end() && found->second == served) served->peer->served.erase(found);
}

/// Answers a request that is not served: the pool has no thread for it, or the fence has closed.
void Server::refuse(Responder responder, const Message& message, const std::exception_ptr& error) {
  const Served& served = *responder.served();
  const std::shared_ptr<Agent> agent = agent_of(served.context);
  core_.interceptors.each(
      [&](Interceptor& i) { i.discarded(*agent, served.peer->life(), served.kind, message, false); });
  responder.served()->refused = true;
  responder.fail(error);
}

void Server::tell_error(const Served& served, const std::exception_ptr& error) noexcept {
  if (served.kind != Kind::kCall && served.kind != Kind::kRemote && served.kind != Kind::kMethod) return;
  core_.counters.served_errors.fetch_add(1, std::memory_order_relaxed);
  try {
    const auto callbacks = error_callbacks.copies();
    if (callbacks.empty()) return;
    const char* const what = served.what;
    const ServedError told{{PeerTable::name(*served.peer), served.peer->id},
                           what ? what : to_string(served.kind),
                           error_text(error),
                           error};
    for (const auto& f : callbacks) {
      try {
        f(told);
      } catch (...) {
      }
    }
  } catch (...) {  // no memory for the text
  }
}

}  // namespace weft::rpc
