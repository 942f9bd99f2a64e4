// References: the requests served by owner and parent (references.cpp, steps 2 to 10). The receiving
// thread starts each request. That is quick and keeps the order of the methods of serialized classes.
// Functions run on the pool.
#include <weft/distributed/rref/inner/references.h>

#include <weft/distributed/rpc/served_errors.h>

namespace weft::rpc::detail {

void put(Encoder& out, const RRefId& id) {
  out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
}
void put(Encoder& out, const ForkId& id) {
  out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
}

template <class Number> static Number get_number(Decoder& in) {
  Number n;
  n.created_on.value = in.number<int32_t>();
  n.life.value = in.number<uint64_t>();
  n.local = in.number<uint64_t>();
  return n;
}
RRefId get_rref(Decoder& in) { return get_number<RRefId>(in); }
ForkId get_fork(Decoder& in) { return get_number<ForkId>(in); }

void put_target(Encoder& out, const RRefState& state) {
  put(out, state.id);
  const bool confirmed = state.is_owner || static_cast<const UserState&>(state).standing.load() ==
                                               UserState::Standing::kConfirmed;
  out.number(static_cast<uint8_t>(confirmed));
}

Message probe_answer(bool there) {
  Message answer;
  Encoder(answer).number(static_cast<uint8_t>(there));
  return answer;
}

void Gate::enter(Runtime& runtime, Task task) {
  {
    MutexLock lock(mutex_);
    if (busy_) {
      waiting_.push_back(std::move(task));
      return;
    }
    busy_ = true;
  }
  runtime.post(std::move(task));
}

void Gate::leave(Runtime& runtime) {
  Task next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      busy_ = false;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  runtime.post(std::move(next));
}

namespace {

/// A function call for a reference: a method of a value, or the creation of one.
struct Invocation {
  Invocation(std::shared_ptr<References> refs, Request request, Responder answer)
      : references(std::move(refs)),
        kind(request.kind),
        from(request.from),
        message(std::move(request.message)),
        responder(std::move(answer)),
        context(responder.context()),
        in(message, context.endpoint.get(), from) {}

  const std::shared_ptr<References> references;
  const Kind kind;
  const WorkerId from;
  const Message message;
  Responder responder;
  const CallContext context;
  Decoder in;
  const FunctionEntry* function = nullptr;
  std::shared_ptr<OwnedState> target;  ///< of a method call
  std::shared_ptr<OwnedState> result;  ///< of a creation
  bool gated = false;
};
using InvocationPtr = std::shared_ptr<Invocation>;

/// Ends an invocation: answers, or keeps the value (steps 2 and 8), and opens the gate for the next one.
class Finish final : public Finisher {
 public:
  explicit Finish(InvocationPtr invocation) : invocation_(std::move(invocation)) {}
  Finish(const Finish&) = delete;
  ~Finish() override {
    if (!invocation_) return;
    Outcome dropped;
    dropped.error = std::make_exception_ptr(RpcError("the function ended without a result"));
    done(dropped);
  }

  void done(Outcome& outcome) noexcept override {
    const InvocationPtr i = std::exchange(invocation_, nullptr);
    if (!i) return;
    if (i->result) keep(*i, outcome);
    else answer_with(std::move(i->responder))->done(outcome);
    if (i->gated) i->target->gate.leave(*i->references->runtime());
  }

 private:
  static void keep(Invocation& i, Outcome& outcome) noexcept {
    std::exception_ptr error = outcome.error;
    if (!error) {
      try {
        i.result->set(outcome.box(), outcome.type);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) {
      if (i.responder.served()) rpc::detail::tell_served_error(*i.responder.served(), error);
      i.result->fail(error);
    }
    if (i.from == i.references->self().id) i.references->creation_ended(i.result->id);
    try {
      Message message;
      {
        Encoder out(message);
        out.number(static_cast<uint8_t>(error != nullptr));
        if (error) put_error(out, error);
      }
      i.responder.reply(std::move(message));
    } catch (...) {
      i.responder.fail(std::current_exception());
    }
  }

  InvocationPtr invocation_;
};

void fail(const InvocationPtr& i, std::exception_ptr error) {
  Outcome outcome;
  outcome.error = std::move(error);
  Finish(i).done(outcome);
}

/// Runs an invocation on the pool. Its target, if any, has its value.
void run(const InvocationPtr& i) {
  const CallScope scope(i->context);
  std::unique_ptr<PreparedCall> call;
  void* object = nullptr;
  try {
    if (i->target) {
      i->target->created.state()->join_streams();
      if (i->target->created.has_error()) std::rethrow_exception(i->target->created.error());
      if (i->target->type->name() != i->function->class_name)
        throw ValueError(str("'", i->function->name, "' is not a method of ", i->target->type->name(),
                             ", which ", i->target->id, " refers to"));
      object = i->target->value.get();
    }
    call = i->function->prepare(i->in);
  } catch (...) {
    return fail(i, std::current_exception());
  }
  const auto awaited = std::move(i->in.awaited());
  if (awaited.empty()) return call->run(object, std::make_unique<Finish>(i));
  collect(awaited).add_done_callback([i, object, call = std::move(call)](const Future<void>& all) {
    if (all.has_error()) fail(i, all.error());
    else call->run(object, std::make_unique<Finish>(i));
  });
}

/// Runs an invocation when its target's value exists; for a serialized class, after the previous one.
void start(InvocationPtr i) {
  Runtime& runtime = *i->references->runtime();
  if (i->target && i->function->serialized) {
    i->gated = true;
    OwnedState& target = *i->target;
    return target.gate.enter(runtime, [i = std::move(i)] { run(i); });
  }
  if (!i->target || i->target->created.done()) return runtime.post([i = std::move(i)] { run(i); });
  i->target->created.state()->on_done([i] { i->references->runtime()->post([i] { run(i); }); }, false);
}

void check_form(const FunctionEntry& function, bool method) {
  if ((function.form == FunctionForm::kMethod) != method)
    throw ValueError(
        str("'", function.name, method ? "' is not a method" : "' is a method and needs an object"));
}

}  // namespace

void References::serve(Agent& agent) {
  using Member = void (References::*)(Request, Responder);
  const auto on = [&](Kind kind, RunOn where, Member member) {
    agent.handle(kind, where, [weak = weak_from_this(), member](Request request, Responder responder) {
      if (const auto self = weak.lock()) (self.get()->*member)(std::move(request), std::move(responder));
    });
  };
  on(Kind::kRemote, RunOn::kTransport, &References::serve_create);
  on(Kind::kMethod, RunOn::kTransport, &References::serve_method);
  on(Kind::kFetch, RunOn::kTransport, &References::serve_fetch);
  on(Kind::kFork, RunOn::kTransport, &References::serve_fork);
  on(Kind::kAccept, RunOn::kTransport, &References::serve_accept);
  on(Kind::kDelete, RunOn::kPool, &References::serve_delete);
}

/// Step 2. Once the ids are read, the answer is that the reference exists; later errors stay in it.
void References::serve_create(Request request, Responder responder) {
  const auto i = std::make_shared<Invocation>(shared_from_this(), std::move(request), std::move(responder));
  try {
    const RRefId id = get_rref(i->in);
    const ForkId fork = get_fork(i->in);
    if (id.created_on != i->from) throw WireError(str(id, " cannot be created by worker ", i->from.value));
    i->result = announce(id, fork, i->from);
  } catch (...) {
    return i->responder.fail(std::current_exception());
  }
  try {
    const bool method = i->in.number<uint8_t>() != 0;
    if (method) {
      const RRefId target = get_rref(i->in);
      const bool confirmed = i->in.number<uint8_t>() != 0;
      i->target = find(target, confirmed, i->from);
    }
    i->function = &open_call(i->in);
    check_form(*i->function, method);
    i->responder.describe(i->function->name.c_str());
    if (tracing())
      trace(str("worker ", self_.id.value, " rref: create ", i->result->id, " by ", i->function->name,
                " for ", i->from.value));
  } catch (...) {
    return fail(i, std::current_exception());
  }
  start(i);
}

void References::serve_method(Request request, Responder responder) {
  const auto i = std::make_shared<Invocation>(shared_from_this(), std::move(request), std::move(responder));
  try {
    const RRefId target = get_rref(i->in);
    const bool confirmed = i->in.number<uint8_t>() != 0;
    i->function = &open_call(i->in);
    check_form(*i->function, true);
    i->target = find(target, confirmed, i->from);
    i->responder.describe(i->function->name.c_str());
    if (tracing())
      trace(str("worker ", self_.id.value, " rref: ", i->function->name, " of ", target, " for ",
                i->from.value));
  } catch (...) {
    return i->responder.fail(std::current_exception());
  }
  start(i);
}

void References::serve_fetch(Request request, Responder responder) {
  struct Fetch {
    std::shared_ptr<OwnedState> state;
    Responder responder;
    void run() {
      try {
        if (state->created.has_error()) return responder.fail(state->created.error());
        Message message;
        {
          const CallScope scope(responder.context());
          Encoder out(message, scope.context().endpoint.get(), scope.context().caller, true);
          if (state->value) {
            if (state->type->encode == nullptr)
              throw ValueError(str(state->id, " is a ", state->type->name(), ", which cannot travel"));
            state->type->encode(out, state->value.get());
          }
        }
        responder.reply(std::move(message));
      } catch (...) {
        responder.fail(std::current_exception());
      }
    }
  };
  Decoder in(request.message);
  const RRefId id = get_rref(in);
  const bool confirmed = in.number<uint8_t>() != 0;
  auto fetch = std::make_shared<Fetch>(Fetch{find(id, confirmed, request.from), std::move(responder)});
  if (tracing()) trace(str("worker ", self_.id.value, " rref: fetch ", id, " for ", request.from.value));
  if (fetch->state->created.done()) return runtime_->post([fetch] { fetch->run(); });
  fetch->state->created.state()->on_done([fetch, this] { runtime_->post([fetch] { fetch->run(); }); }, false);
}

/// Step 6, at the owner.
void References::serve_fork(Request request, Responder responder) {
  Decoder in(request.message);
  const RRefId id = get_rref(in);
  const ForkId fork = get_fork(in);
  const bool confirmed = in.number<uint8_t>() != 0;
  add_fork(*agent_of(responder.context()), id, fork, request.from, confirmed);
  responder.reply(Message());
}

void References::add_fork(Agent& agent, RRefId id, ForkId fork, WorkerId holder, bool confirmed) {
  const auto state = find(id, confirmed, holder);
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[id];
    entry.kept = state;
    if (!entry.forks.emplace(fork, holder).second)
      throw WireError(str(fork, " of ", id, " is known already"));
  }
  if (tracing())
    trace(str("worker ", self_.id.value, " rref: fork ", fork, " of ", id, " for ", holder.value));
  watch_holder(agent, holder);
}

/// Watches the holder of a fork that was just added.
void References::watch_holder(Agent& agent, WorkerId holder) {
  agent.watch(holder, +1);
  // step 11 may have run in between
  if (agent.is_lost(holder)) peer_lost(agent.worker_info(holder), false, "it was lost before");
}

std::shared_ptr<OwnedState> References::announce(RRefId id, ForkId fork, WorkerId from) {
  auto fresh = std::make_shared<OwnedState>(shared_from_this(), id, self_, Site{"remote", nullptr, 0}, false);
  std::shared_ptr<OwnedState> state;
  std::vector<Later> after;
  const bool mine = from == self_.id;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("worker '", self_.name, "' has been shut down"));
    const auto found = entries_.find(id);
    if (found != entries_.end()) state = found->second.state.lock();
    if (mine) {
      if (!state) throw WireError(str(id, " was not begun here"));
    } else {
      if (state && found->second.announced) throw WireError(str(id, " is created for the second time"));
      Entry& entry = entries_[id];
      if (!state) entry.state = state = std::exchange(fresh, nullptr);
      else drop_watch(entry.creator, after);
      entry.announced = true;
      entry.kept = state;
      entry.forks.emplace(fork, from);
    }
  }
  later(std::move(after));
  if (!mine)
    if (const auto agent = agent_.lock()) watch_holder(*agent, from);
  return state;
}

/// Step 9: serves ACCEPT (0, the child has arrived) and PROBE (1, the question whether it has).
void References::serve_accept(Request request, Responder responder) {
  Decoder in(request.message);
  const auto question = in.number<uint8_t>();
  const ForkId fork = get_fork(in);
  if (question == 0) {
    resolve(fork, false);
    return responder.reply(Message());
  }
  bool there = false;
  {
    MutexLock lock(mutex_);
    const auto waiting = pending_.find(fork);
    if (waiting != pending_.end()) {
      waiting->second.probes.push_back(std::move(responder));
      return;
    }
    there = users_.count(fork) != 0;
    if (!there) refuse(fork);
  }
  responder.reply(probe_answer(there));
}

/// Step 10, at the owner. It answers after it has sent the resulting messages. So a group without open calls
/// has no messages left to send.
void References::serve_delete(Request request, Responder responder) {
  Decoder in(request.message);
  std::vector<Later> after;
  const WorkerInfo user = agent_of(responder.context())->worker_info(request.from);
  for (size_t n = in.size(); n > 0; --n) {
    const RRefId id = get_rref(in);
    const ForkId fork = get_fork(in);
    std::string site = in.get<std::string>();
    MutexLock lock(mutex_);
    if (!remove_fork(id, fork, after)) continue;
    if (tracing()) trace(str("worker ", self_.id.value, " rref: deleted ", fork, " of ", id));
    if (!site.empty()) leaks_.push_back({id, fork, self_, user, std::move(site)});
  }
  later(std::move(after));
  drain();
  changed();
  responder.reply(Message());
}

}  // namespace weft::rpc::detail
