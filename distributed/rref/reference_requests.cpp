// The requests served by owner and parent (references.cpp, steps 2 to 10). The receiving thread starts each
// request, which is quick and keeps the order of methods of serialized classes. Functions run on the pool.
#include <weft/distributed/rpc/inner/services.h>
#include <weft/distributed/rpc/served_errors.h>
#include <weft/distributed/rref/inner/reference_messages.h>
#include <weft/distributed/rref/inner/references.h>

namespace weft::rpc::detail {

namespace {

using ReferencesPtr = std::shared_ptr<References>;

/// A function call for a reference: a method of a value, or the creation of one.
struct Invocation {
  Invocation(ReferencesPtr refs, Request request, Responder answer)
      : references(std::move(refs)),
        kind(request.kind),
        from(request.sender()),
        message(std::move(request.message)),
        responder(std::move(answer)),
        context(capture_context()),
        in(message, context.endpoint.get(), from) {}

  const ReferencesPtr references;
  const Kind kind;
  const Life from;
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
    if (i.from.id == i.references->self().id) i.references->owners().end_creation(i.result->id);
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
  if (refusal()) return fail(i, no_thread_error(i->references->self().name));
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
  if (!i->target || i->target->created.done()) return runtime.post_or_refuse([i = std::move(i)] { run(i); });
  const auto later = [i] { i->references->runtime()->post_or_refuse([i] { run(i); }); };
  i->target->created.state()->on_done(later, false);
}

void check_form(const FunctionEntry& function, bool method) {
  if ((function.form == FunctionForm::kMethod) != method)
    throw ValueError(
        str("'", function.name, method ? "' is not a method" : "' is a method and needs an object"));
}

/// Step 2. Once the ids are read, the answer is that the reference exists; later errors stay in it.
void serve_create(const ReferencesPtr& refs, Request request, Responder responder) {
  const auto i = std::make_shared<Invocation>(refs, std::move(request), std::move(responder));
  try {
    const RRefId id = get_rref(i->in);
    const ForkId fork = get_fork(i->in);
    i->result = refs->announce(id, fork, i->from);
  } catch (...) {
    return i->responder.fail(std::current_exception());
  }
  try {
    const bool method = i->in.number<uint8_t>() != 0;
    if (method) {
      const RRefId target = get_rref(i->in);
      const bool confirmed = i->in.number<uint8_t>() != 0;
      i->target = refs->find(target, confirmed, i->from.id);
    }
    i->function = &open_call(i->in);
    check_form(*i->function, method);
    i->responder.describe(i->function->name.c_str());
    refs->context().trace("create ", i->result->id, " by ", i->function->name, " for ", i->from.id.value);
  } catch (...) {
    return fail(i, std::current_exception());
  }
  start(i);
}

void serve_method(const ReferencesPtr& refs, Request request, Responder responder) {
  const auto i = std::make_shared<Invocation>(refs, std::move(request), std::move(responder));
  try {
    const RRefId target = get_rref(i->in);
    const bool confirmed = i->in.number<uint8_t>() != 0;
    i->function = &open_call(i->in);
    check_form(*i->function, true);
    i->target = refs->find(target, confirmed, i->from.id);
    i->responder.describe(i->function->name.c_str());
    refs->context().trace(i->function->name, " of ", target, " for ", i->from.id.value);
  } catch (...) {
    return i->responder.fail(std::current_exception());
  }
  start(i);
}

void serve_fetch(const ReferencesPtr& refs, Request request, Responder responder) {
  struct Fetch {
    std::shared_ptr<OwnedState> state;
    Responder responder;
    std::string worker;  ///< this one
    void run() {
      if (refusal()) return responder.fail(no_thread_error(worker));
      try {
        if (state->created.has_error()) return responder.fail(state->created.error());
        Message message;
        {
          const CallScope scope(responder.context());
          const Life caller{scope.context().caller, scope.context().caller_life};
          Encoder out(message, scope.context().endpoint.get(), caller, true);
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
  auto fetch = std::make_shared<Fetch>(
      Fetch{refs->find(id, confirmed, request.from), std::move(responder), refs->self().name});
  refs->context().trace("fetch ", id, " for ", request.from.value);
  Runtime& runtime = *refs->runtime();
  if (fetch->state->created.done()) return runtime.post_or_refuse([fetch] { fetch->run(); });
  const auto later = [fetch, &runtime] { runtime.post_or_refuse([fetch] { fetch->run(); }); };
  fetch->state->created.state()->on_done(later, false);
}

/// Step 6, at the owner.
void serve_fork(const ReferencesPtr& refs, Request request, Responder responder) {
  Decoder in(request.message);
  const RRefId id = get_rref(in);
  const ForkId fork = get_fork(in);
  const bool confirmed = in.number<uint8_t>() != 0;
  refs->add_fork(*agent_of(responder.context()), id, fork, request.sender(), confirmed);
  responder.reply(Message());
}

/// Step 9: serves ACCEPT and PROBE.
void serve_accept(const ReferencesPtr& refs, Request request, Responder responder) {
  Decoder in(request.message);
  const auto question = in.number<uint8_t>();
  const ForkId fork = get_fork(in);
  if (question != kAcceptByte) {
    if (fork.maker() != request.sender())
      throw NotAllowed(str("worker ", request.from.value, " cannot probe ", fork, ", which it did not make"));
    return refs->users().probe(fork, std::move(responder));
  }
  refs->shares().accept(fork, request.sender());
  responder.reply(Message());
}

/// Step 10, at the owner. It answers after it has sent the resulting messages. So a group without open calls
/// has no messages left to send.
void serve_delete(const ReferencesPtr& refs, Request request, Responder responder) {
  Decoder in(request.message);
  std::vector<DeferredItem> after;
  const auto agent = agent_of(responder.context());
  const WorkerInfo user = info_of(*agent, request.from);
  std::vector<OwnerTable::Deleted> all;
  for (size_t n = in.size(); n > 0; --n) {
    const RRefId id = get_rref(in);
    const ForkId fork = get_fork(in);
    auto site = in.get<std::string>();
    const bool refused = in.number<uint8_t>() != 0 && !agent->is_lost(request.sender());
    all.push_back({id, fork, std::move(site), refused});
  }
  refs->owners().delete_forks(std::move(all), user, request.sender(), after);
  refs->work().add(std::move(after));
  refs->work().drain();
  refs->context().changed();
  responder.reply(Message());
}

/// Registers the handlers. They do not keep `references` alive.
void serve_references(Agent& agent, std::weak_ptr<References> references) {
  using Serve = void (*)(const ReferencesPtr&, Request, Responder);
  const auto on = [&](Kind kind, RunOn where, Serve serve) {
    agent.handle(kind, where, [references, serve](Request request, Responder responder) {
      if (const auto refs = references.lock()) serve(refs, std::move(request), std::move(responder));
    });
  };
  on(Kind::kRemote, RunOn::kTransport, serve_create);
  on(Kind::kMethod, RunOn::kTransport, serve_method);
  on(Kind::kFetch, RunOn::kTransport, serve_fetch);
  on(Kind::kFork, RunOn::kTransport, serve_fork);
  on(Kind::kAccept, RunOn::kTransport, serve_accept);
  on(Kind::kDelete, RunOn::kPool, serve_delete);
}

}  // namespace

}  // namespace weft::rpc::detail

namespace weft::rpc {

void install_references(Agent& agent) {
  const auto references = detail::References::of(agent);
  detail::serve_references(agent, references);
  references->install(agent);
}

}  // namespace weft::rpc
