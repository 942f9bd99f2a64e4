// The answers of handlers: Responder, the Finisher that answers with a function's outcome, and the handler of
// Kind::kCall. server_replies.cpp keeps and sends their answers.
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/services.h>

namespace weft::rpc {

void on_served_error(Agent& agent, std::function<void(const ServedError&)> f) {
  agent.impl().server.error_callbacks.add(std::move(f));
}

void detail::tell_served_error(const Served& served, const std::exception_ptr& error) noexcept {
  if (const auto agent = served.agent.lock()) agent->impl().server.tell_error(served, error);
}

Responder::~Responder() {
  if (!served_ || served_->answered) return;
  // Destroyed by an exception that run() or on_request() will catch, and answer with.
  served_->abandoned = true;
  if (std::uncaught_exceptions() > 0 && (served_->in_handler || served_->posting)) return;
  std::exception_ptr error;
  try {
    error = no_answer();
  } catch (...) {  // no memory
    error = std::current_exception();
  }
  fail(std::move(error));
}

void Responder::describe(const char* what) { served_->what = what; }

void Responder::reply(Message message) noexcept {
  const auto served = std::exchange(served_, nullptr);
  if (!served) return;
  if (const auto agent = served->agent.lock()) agent->impl().server.answer(served, std::move(message), false);
}

void Responder::fail(std::exception_ptr error) noexcept {
  const auto served = std::exchange(served_, nullptr);
  if (!served) return;
  if (const auto agent = served->agent.lock()) {
    if (!served->answered) agent->impl().server.tell_error(*served, error);
    agent->impl().server.answer(served, error);
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
        Encoder out(message, context.endpoint.get(), {context.caller, context.caller_life}, true);
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

const FunctionEntry& open_call(Decoder& in) {
  const auto id = in.number<uint64_t>();
  const auto signature = in.number<uint64_t>();
  const FunctionEntry* function = find_function(id);
  if (!function) throw UnknownFunction("");  // the caller knows the name and completes the text
  if (function->signature_hash != signature) throw SignatureMismatch("", function->signature);
  if (const Agent* agent = agent_of(in.endpoint())) agent->check_allowed(*function, in.from());
  return *function;
}

void install_calls(Agent& agent) {
  agent.handle(Kind::kCall, RunOn::kPool, [](Request request, Responder responder) {
    const std::shared_ptr<Agent> agent = agent_of(responder.context());
    std::unique_ptr<PreparedCall> call;
    std::vector<Future<void>> awaited;
    {
      Decoder in(request.message, agent.get(), request.sender());
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
