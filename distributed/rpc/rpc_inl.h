// Bodies of the templates of rpc.h. Included by it; not on its own.
#pragma once

#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

namespace detail {

/// The life to which a call goes. Throws: ValueError for a worker outside the group.
WEFT_API Life destination_life(const Agent& agent, const To& to);
/// A future that completes when `state` does, with the same error.
WEFT_API Future<void> done_with(FutureCore& state);

/// A copy of a call's arguments, and the function that writes them.
struct KeptArguments {
  std::shared_ptr<const void> arguments;
  void (*put)(Encoder& out, const void* arguments) = nullptr;
};

/// Decodes a reply into the state of a future.
template <class R> class TypedSink final : public ReplySink {
 public:
  explicit TypedSink(std::shared_ptr<FutureState<R>> state) : state_(std::move(state)) {}
  void on_reply(Agent& agent, WorkerId from, Message message) noexcept override {
    try {
      Decoder in(message, &agent, from, true);
      if constexpr (std::is_void_v<R>) {
        in.expect_end();
        state_->try_set();
      } else {
        R value = in.get<R>();
        in.expect_end();
        if (in.awaited().empty()) {
          state_->try_set(std::move(value));
          return;
        }
        auto ready = collect(in.awaited()).state();
        auto shared = std::make_shared<R>(std::move(value));
        ready->on_done(
            [ready = ready.get(), shared, state = state_] {
              if (ready->failed()) state->try_set_error(ready->error());
              else state->try_set(std::move(*shared));
            },
            false);
      }
    } catch (...) {
      state_->try_set_error(std::current_exception());
    }
  }
  void on_error(std::exception_ptr error) noexcept override { state_->try_set_error(std::move(error)); }

 private:
  std::shared_ptr<FutureState<R>> state_;
};

/// A call of a function while it is being written: its message. For a call that may be repeated, a copy of
/// its arguments.
class WEFT_API OutgoingCall {
 public:
  /// Throws: RpcError without an agent, ValueError for a worker outside the group.
  OutgoingCall(const To& to, const FunctionEntry& function);
  bool repeated() const { return to_.retry().has_value(); }
  Encoder& out() { return *out_; }  ///< unless repeated: the arguments follow
  /// Keeps the arguments of a repeated call. `put` writes them again for each attempt, since references and
  /// gradients in them are counted per message.
  void keep(std::shared_ptr<const void> arguments, void (*put)(Encoder& out, const void* arguments)) {
    kept_ = {std::move(arguments), put};
  }
  [[noreturn]] void throw_not_kept() const;
  const std::shared_ptr<Agent>& agent() const { return agent_; }
  /// Sends the call, whose outcome `state` takes through `sink`. Throws: as with_retry; as Agent::call.
  void send(FutureCore& state, std::unique_ptr<ReplySink> sink);

 private:
  const To& to_;
  const FunctionEntry& function_;
  const std::shared_ptr<Agent> agent_;
  Life peer_;
  Message message_;
  std::optional<Encoder> out_;
  KeptArguments kept_;
};

template <class R> Future<R> send_written(OutgoingCall& call) {
  auto state = std::make_shared<FutureState<R>>(call.agent()->runtime());
  call.send(*state, std::unique_ptr<ReplySink>(new TypedSink<R>(state)));
  return Future<R>(std::move(state));
}

template <auto F, class... A> auto start_call(const To& to, A&&... args) {
  using R = typename FunctionTraits<F>::Answer;
  using List = typename FunctionTraits<F>::Args;
  using Kept = typename List::Tuple;
  static_assert(std::is_void_v<R> || Wire<R>,
                "the result cannot travel: make it with remote() and call its methods there");
  OutgoingCall call(to, function_entry<F>());
  if (!call.repeated()) put_arguments<F>(call.out(), std::forward<A>(args)...);
  else if constexpr (std::is_constructible_v<Kept, A&&...>)
    call.keep(std::make_shared<const Kept>(std::forward<A>(args)...), &List::encode_tuple);
  else call.throw_not_kept();
  return send_written<R>(call);
}

/// The future, which the thread's WaitAll collects.
template <class R> Future<R> noted(Future<R> future) {
  if (WaitAll* const scope = WaitAll::current()) scope->add(done_with(*future.state()));
  return future;
}

}  // namespace detail

template <class R>
Future<R> send_call(Agent& agent, Life to, Kind kind, Message message, CallOptions options) {
  auto state = std::make_shared<detail::FutureState<R>>(agent.runtime());
  state->set_call(agent.weak_from_this(),
                  agent.call(to, kind, std::move(message), options,
                             std::unique_ptr<ReplySink>(new detail::TypedSink<R>(state))));
  return Future<R>(std::move(state));
}

template <auto F, class... Args>
auto rpc_sync(const To& to, Args&&... args) -> typename detail::FunctionTraits<F>::Answer {
  return detail::start_call<F>(to, std::forward<Args>(args)...).take();
}

template <auto F, class... Args>
auto rpc_async(const To& to, Args&&... args) -> Future<typename detail::FunctionTraits<F>::Answer> {
  return detail::noted(detail::start_call<F>(to, std::forward<Args>(args)...));
}

template <Wire T>
std::map<std::string, T> all_gather(const T& value, std::vector<std::string> names, Duration timeout) {
  const std::shared_ptr<Agent> agent = current_agent();
  Message mine;
  {
    Encoder out(mine, agent.get());
    out.put(value);
  }
  std::map<std::string, T> values;
  for (const auto& [name, message] : agent->gather(std::move(mine), std::move(names), timeout)) {
    Decoder in(message, agent.get());
    values.emplace(name, in.get<T>());
  }
  return values;
}

}  // namespace weft::rpc
