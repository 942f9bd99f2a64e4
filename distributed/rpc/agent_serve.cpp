// The callee's side of a call (agent.cpp, steps 2 to 5): it runs each request at most once and keeps
// the answer until the caller has it. The callbacks of served_errors.h and the handler of Kind::kCall
// are here too.
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/layers.h>

namespace weft::rpc {

namespace {
std::exception_ptr no_answer() { return std::make_exception_ptr(RpcError("the handler gave no answer")); }
}  // namespace

void FinishedSet::add(uint64_t upto, const std::vector<uint64_t>& open) {
  // A request is open if both sets list it, or if only one set's horizon covers it and lists it.
  std::vector<uint64_t> merged;
  for (const uint64_t s : open_)
    if (s >= upto || std::binary_search(open.begin(), open.end(), s)) merged.push_back(s);
  for (const uint64_t s : open)
    if (s >= horizon_ && s < upto) merged.push_back(s);
  std::sort(merged.begin(), merged.end());
  open_ = std::move(merged);
  horizon_ = std::max(horizon_, upto);
}

bool FinishedSet::add_floor(uint64_t floor) {
  const auto first = std::lower_bound(open_.begin(), open_.end(), floor);
  const bool news = first != open_.begin() || floor > horizon_;
  open_.erase(open_.begin(), first);
  horizon_ = std::max(horizon_, floor);
  return news;
}

Block Agent::Impl::allocate(WorkerId, uint8_t, const std::string&, int64_t bytes, int32_t device) {
  return allocate_payload(bytes, device);
}

void Agent::Impl::on_message(Inbound inbound) {
  if (!running) return;  // during the start or after the end; the caller will send a status
  Envelope e;
  try {
    e = open_envelope(inbound.header);
  } catch (const std::exception&) {
    counters.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const bool is_reply = inbound.kind & kReplyBit;
  const auto kind = static_cast<Kind>(inbound.kind & ~kReplyBit);
  Peer& p = peer(inbound.from);
  bool fenced = false;
  {
    MutexLock lock(p.mutex);
    if (p.incarnation.value == 0) p.incarnation = inbound.incarnation;
    if (p.incarnation != inbound.incarnation || (p.lost && (p.left || is_reply))) return;  // step 7
    if (e.to_incarnation != 0 && e.to_incarnation != transport->incarnation().value) return;
    fenced = p.lost;
    if (!fenced) p.heard = runtime->now();
  }
  if (fenced) {
    if (kind != Kind::kFenced && kind != Kind::kGoodbye) fence(p);
    return;
  }
  if (!is_reply && kind != Kind::kStatus) drop_finished(p, e.floor, nullptr);
  if (is_reply) return on_reply(p, kind, e, std::move(inbound));
  switch (kind) {
    case Kind::kStatus: return on_status(p, inbound.header, e);
    case Kind::kStatusReply: return on_status_reply(p, inbound.header, e);
    case Kind::kGoodbye: return lose(p, true, "it was shut down");
    case Kind::kFenced: return on_fenced(p, inbound.header, e);
    default: return on_request(p, kind, e, std::move(inbound));
  }
}

void Agent::Impl::on_request(Peer& p, Kind kind, const Envelope& e, Inbound inbound) {
  const TimePoint now = runtime->now();
  auto served = std::make_shared<Served>();  // complete before other threads can see it
  served->agent = owner;
  served->from = p.id;
  served->sequence = e.sequence;
  served->kind = kind;
  served->started = now;
  served->context.endpoint = owner.lock();
  served->context.caller = p.id;
  served->context.serving = next_served.fetch_add(1, std::memory_order_relaxed);
  if (e.remaining_ns > 0 && e.remaining_ns < (kNever - now).count())
    served->context.deadline = now + Duration(e.remaining_ns);
  if (!served->context.endpoint) return;
  bool again = false, refused = false;
  {
    MutexLock lock(p.mutex);
    if (p.lost) return;
    if (p.finished.contains(e.sequence)) {
      counters.duplicates.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    auto& slot = p.served[e.sequence];
    if (slot) {
      counters.duplicates.fetch_add(1, std::memory_order_relaxed);
      again = true;
    } else {
      slot = served;
      refused = p.served.size() > options.max_served_per_peer;
    }
  }
  if (again) return resend_reply(p, e.sequence);
  if (!is_round(kind)) {
    counters.served.fetch_add(1, std::memory_order_relaxed);
    counters.active_server.fetch_add(1, std::memory_order_relaxed);
  }

  Responder responder(served);  // from here on every path answers
  try {
    if (refused)
      throw Overloaded(str("more than ", options.max_served_per_peer, " requests of one worker are open"));
    const int number = static_cast<int>(kind);
    HandlerEntry* handler = number < 128 ? handlers[number].load() : nullptr;
    if (!handler) throw RpcError(str("nothing here serves requests of ", to_string(kind)));
    Message message = receive(std::move(inbound), e);
    if (message.find(Tag::kResultsToCpu)) served->context.results_to_cpu = true;
    if (handler->where == RunOn::kTransport) return run(*handler, std::move(responder), std::move(message));
    struct Work {
      std::shared_ptr<Agent> agent;
      HandlerEntry* handler;
      Responder responder;
      Message message;
    };
    auto work = std::make_unique<Work>(
        Work{agent_of(served->context), handler, std::move(responder), std::move(message)});
    runtime->post([work = std::move(work)] {
      work->agent->impl().run(*work->handler, std::move(work->responder), std::move(work->message));
    });
  } catch (const WireError&) {
    counters.malformed.fetch_add(1, std::memory_order_relaxed);
    responder.fail(std::current_exception());
  } catch (...) {
    responder.fail(std::current_exception());
  }
}

void Agent::Impl::run(HandlerEntry& handler, Responder responder, Message message) {
  const std::shared_ptr<Served> served = responder.served();
  const std::shared_ptr<Agent> agent = agent_of(served->context);
  served->in_handler = true;
  try {
    if (has_interceptors) {
      try {
        intercept([&](Interceptor& i) {
          i.request_received(*agent, served->from, served->kind, message, served->context);
        });
      } catch (...) {
        intercept([&](Interceptor& i) { i.discarded(*agent, served->from, served->kind, message, false); });
        throw;
      }
    }
    const CallScope scope(served->context);
    handler.handler(Request{served->from, served->kind, std::move(message)}, std::move(responder));
  } catch (...) {
    Responder(served).fail(std::current_exception());
  }
  served->in_handler = false;
  if (served->abandoned) Responder(served).fail(no_answer());
}

/// Step 2: sends the answer of a duplicate request again, unless it has just been sent.
void Agent::Impl::resend_reply(Peer& p, uint64_t sequence) {
  std::string bytes;
  std::vector<Payload> payloads;
  Kind kind;
  {
    MutexLock lock(p.mutex);
    const auto found = p.served.find(sequence);
    if (found == p.served.end() || !found->second->replied) return;
    Served& served = *found->second;
    if (served.reply.staging && !served.reply.staging->ready()) return;  // it has not left yet
    const TimePoint now = runtime->now();
    if (served.sent + options.retry / 2 > now) return;
    served.sent = now;
    kind = served.kind;
    bytes = served.reply.bytes;
    payloads = payloads_of(served.reply);
  }
  counters.resent_replies.fetch_add(1, std::memory_order_relaxed);
  send(p, static_cast<uint8_t>(kind) | kReplyBit, std::move(bytes), std::move(payloads));
}

/// Step 3: keeps the answer, then sends it.
void Agent::Impl::answer(const std::shared_ptr<Served>& served, Message message, bool error) {
  if (served->answered.exchange(true)) return;
  if (!is_round(served->kind)) counters.active_server.fetch_sub(1, std::memory_order_relaxed);
  const auto agent = std::static_pointer_cast<Agent>(std::exchange(served->context.endpoint, nullptr));
  Peer& p = peer(served->from);
  if (!error) {
    try {
      if (has_interceptors)
        intercept([&](Interceptor& i) {
          i.reply_sending(*agent, p.id, served->kind, served->what, message, served->context);
        });
      seal_for(p, message);
    } catch (...) {
      error = true;
      if (has_interceptors)
        intercept([&](Interceptor& i) { i.discarded(*agent, p.id, served->kind, message, true); });
      message = error_message(std::current_exception());
    }
  }
  if (error) seal(message);
  Envelope e;
  e.sequence = served->sequence;
  e.error = error;
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
      e.to_incarnation = p.incarnation.value;
      stamp(message, e);
      if (ready) {
        bytes = message.bytes;
        payloads = payloads_of(message);
      }
      served->reply = std::move(message);
      served->replied = true;
      served->sent = runtime->now();
    }
  }
  if (!wanted) {  // the caller gave up or is lost
    if (!error && has_interceptors && agent)
      intercept([&](Interceptor& i) { i.discarded(*agent, p.id, served->kind, message, true); });
    for (auto& f : message.settled) f(false);
    return;
  }
  if (ready) return transmit(p, served, e, std::move(bytes), std::move(payloads));
  courier->carry(staging, [this, held = owner.lock(), &p, served, e](std::exception_ptr failed) {
    if (failed) return replace_reply(p, served, e, std::move(failed));
    std::string staged;
    std::vector<Payload> buffers;
    {
      MutexLock lock(p.mutex);
      if (served->finished) return;
      staged = served->reply.bytes;
      buffers = payloads_of(served->reply);
    }
    transmit(p, served, e, std::move(staged), std::move(buffers));
  });
}

void Agent::Impl::transmit(Peer& p, const std::shared_ptr<Served>& served, const Envelope& e,
                           std::string bytes, std::vector<Payload> payloads) {
  try {
    transport->send(p.id, static_cast<uint8_t>(static_cast<uint8_t>(served->kind) | kReplyBit),
                    std::move(bytes), std::move(payloads));
  } catch (const WireError&) {  // over the transport's limits: the error becomes the answer
    if (!e.error) replace_reply(p, served, e, std::current_exception());
  } catch (const std::exception&) {  // the caller will send a status (step 5)
  }
}

/// Answers with an error in place of a reply that cannot be sent.
void Agent::Impl::replace_reply(Peer& p, const std::shared_ptr<Served>& served, Envelope e,
                                std::exception_ptr error) {
  Message sorry = error_message(error);
  seal(sorry);
  e.error = 1;
  stamp(sorry, e);
  std::string bytes = sorry.bytes;
  {
    MutexLock lock(p.mutex);
    if (served->finished) return;
    std::swap(served->reply, sorry);
  }
  if (const auto agent = owner.lock(); agent && has_interceptors)
    intercept([&](Interceptor& i) { i.discarded(*agent, p.id, served->kind, sorry, true); });
  send(p, static_cast<uint8_t>(static_cast<uint8_t>(served->kind) | kReplyBit), std::move(bytes));
}

/// Forgets the requests that their caller has finished: all below `upto` except those in `open`.
void Agent::Impl::drop_finished(Peer& p, uint64_t upto, const std::vector<uint64_t>* open) {
  std::vector<std::shared_ptr<Served>> done;
  {
    MutexLock lock(p.mutex);
    const uint64_t before = p.finished.floor();
    if (open) {
      p.finished.add(upto, *open);
    } else if (!p.finished.add_floor(upto)) {
      return;
    } else if (upto - before <= p.served.size()) {  // the usual case: the floor went up by a few
      for (uint64_t sequence = before; sequence < upto; ++sequence) {
        const auto found = p.served.find(sequence);
        if (found == p.served.end()) continue;
        found->second->finished = true;
        done.push_back(std::move(found->second));
        p.served.erase(found);
      }
    }
    for (auto it = p.served.begin();
         (open || upto - before > p.served.size() + done.size()) && it != p.served.end();) {
      if (!p.finished.contains(it->first)) {
        ++it;
        continue;
      }
      it->second->finished = true;
      done.push_back(std::move(it->second));
      it = p.served.erase(it);
    }
  }
  for (const auto& served : done) {
    if (!served->replied) continue;  // still running: answer() will see `finished`
    for (auto& f : served->reply.settled) f(true);
    served->reply = {};
  }
}

// ---- Responder

Responder::~Responder() {
  if (!served_ || served_->answered) return;
  // Destroyed by an exception that run() will catch: run() answers with it.
  served_->abandoned = true;
  if (std::uncaught_exceptions() > 0 && served_->in_handler) return;
  fail(no_answer());
}

void Responder::describe(const char* what) { served_->what = what; }

void Responder::reply(Message message) noexcept {
  const auto served = std::exchange(served_, nullptr);
  if (!served) return;
  if (const auto agent = served->agent.lock()) agent->impl().answer(served, std::move(message), false);
}

void Responder::fail(std::exception_ptr error) noexcept {
  const auto served = std::exchange(served_, nullptr);
  if (!served) return;
  if (const auto agent = served->agent.lock()) {
    if (!served->answered) detail::tell_served_error(*served, error);
    agent->impl().answer(served, error_message(error), true);
  }
}

void Responder::reply_with(const Future<Message>& future) {
  future.state()->on_done(
      [state = future.state().get(), self = std::move(*this)]() mutable {
        if (state->failed()) self.fail(state->error());
        else self.reply(*state->value);
      },
      false);
}

const CallContext& Responder::context() const { return served_->context; }

void on_served_error(Agent& agent, std::function<void(const ServedError&)> f) {
  MutexLock lock(agent.impl().mutex);
  agent.impl().served_error_callbacks.push_back(std::move(f));
}

void detail::tell_served_error(const Served& served, const std::exception_ptr& error) noexcept {
  if (served.kind != Kind::kCall && served.kind != Kind::kRemote && served.kind != Kind::kMethod) return;
  const auto agent = served.agent.lock();
  if (!agent) return;
  Agent::Impl& impl = agent->impl();
  impl.counters.served_errors.fetch_add(1, std::memory_order_relaxed);
  try {
    std::vector<std::function<void(const ServedError&)>> callbacks;
    {
      MutexLock lock(impl.mutex);
      callbacks = impl.served_error_callbacks;
    }
    if (callbacks.empty()) return;
    const char* const what = served.what;
    const ServedError told{{impl.peer_name(impl.peer(served.from)), served.from},
                           what ? what : to_string(served.kind),
                           error_text(error),
                           error};
    for (const auto& f : callbacks) {
      try {
        f(told);
      } catch (...) {
      }
    }
  } catch (...) {  // no memory for the callbacks
  }
}

Message error_message(const std::exception_ptr& error) {
  Message m;
  Encoder out(m);
  put_error(out, error);
  out.finish();
  return m;
}

// ---- Kind::kCall

namespace {

class AnswerFinisher final : public Finisher {
 public:
  explicit AnswerFinisher(Responder responder) : responder_(std::move(responder)) {}
  void done(Outcome& outcome) noexcept override {
    try {
      if (outcome.error) return responder_.fail(outcome.error);
      Message message;
      {
        const CallContext& context = responder_.context();
        Encoder out(message, context.endpoint.get(), context.caller, true);
        if (context.results_to_cpu) out.unmapped_to_cpu();
        if (outcome.value != nullptr) {
          if (outcome.type->encode == nullptr)
            throw ValueError(str("a result of type ", outcome.type->name(), " cannot travel"));
          outcome.type->encode(out, outcome.value);
        }
      }
      responder_.reply(std::move(message));
    } catch (...) {
      responder_.fail(std::current_exception());
    }
  }

 private:
  Responder responder_;
};

}  // namespace

std::unique_ptr<Finisher> answer_with(Responder responder) {
  return std::make_unique<AnswerFinisher>(std::move(responder));
}

void Agent::run_when(std::vector<Future<void>> awaited, std::function<void(std::exception_ptr)> run) {
  if (awaited.empty()) return run(nullptr);
  collect(awaited).add_done_callback([run = std::move(run)](const Future<void>& all) { run(all.error()); });
}

const FunctionEntry& open_call(Decoder& in) {
  const auto id = in.number<uint64_t>();
  const auto signature = in.number<uint64_t>();
  const FunctionEntry* function = find_function(id);
  if (!function) throw UnknownFunction("");  // the caller knows the name and completes the text
  if (function->signature_hash != signature) throw SignatureMismatch("", function->signature);
  if (const Agent* agent = agent_of(in.endpoint())) agent->check_allowed(*function, in.from());
  return *function;
}

void Agent::check_allowed(const FunctionEntry& function, WorkerId caller) const {
  const AgentOptions& o = impl_->options;
  if (caller == impl_->self.id || (o.allow.empty() && !o.deny_unlisted)) return;
  const auto list = o.allow.find(function.name);
  const std::string name = impl_->peer_name(impl_->peer(caller));
  if (list == o.allow.end() ? !o.deny_unlisted
                            : std::find(list->second.begin(), list->second.end(), name) != list->second.end())
    return;
  throw NotAllowed(str("worker '", name, "' may not call '", function.name, "'"));
}

void install_calls(Agent& agent) {
  agent.handle(Kind::kCall, RunOn::kPool, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> agent = agent_of(responder.context());
    std::unique_ptr<PreparedCall> call;
    std::vector<Future<void>> awaited;
    {
      Decoder in(request.message, agent.get(), request.from);
      const FunctionEntry& function = open_call(in);
      responder.describe(function.name.c_str());
      if (agent->runtime()->tracing())
        agent->runtime()->trace(
            str("worker ", agent->self().id.value, " runs ", function.name, " for ", request.from.value));
      call = function.prepare(in);
      awaited = std::move(in.awaited());
    }
    if (awaited.empty()) return call->run(nullptr, answer_with(std::move(responder)));
    auto shared = std::make_shared<std::pair<std::unique_ptr<PreparedCall>, Responder>>(std::move(call),
                                                                                        std::move(responder));
    Agent::run_when(std::move(awaited), [shared](std::exception_ptr error) {
      if (error) shared->second.fail(error);
      else shared->first->run(nullptr, answer_with(std::move(shared->second)));
    });
  });
}

}  // namespace weft::rpc
