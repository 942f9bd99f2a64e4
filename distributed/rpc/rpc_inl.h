// Bodies of the templates of rpc.h. Included by it; not on its own.
#pragma once

#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

namespace detail {

/// The life to which a call goes. Throws: ValueError for a worker outside the group.
inline Life destination_life(const Agent& agent, const To& to) {
  const WorkerId id = agent.worker_info_id(to);
  return to.incarnation().value != 0 ? Life(id, to.incarnation()) : agent.life_of(id);
}

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

/// Writes the message of an attempt, anew for each one: the references and gradients in it count by message.
using WriteMessage = std::function<Message(Agent& agent, Life to)>;
/// Starts a call that is repeated by the policy of `to`. Throws: as with_retry; as Agent::call.
WEFT_API std::shared_ptr<Canceller> start_repeated(std::shared_ptr<Agent> agent,
                                                   const FunctionEntry& function, const To& to,
                                                   WriteMessage write, std::unique_ptr<ReplySink> sink);

template <auto F> using KeptArguments = typename FunctionTraits<F>::Args::Tuple;

/// The arguments of a function from a tuple of them.
template <auto F, class Tuple> void put_kept(Encoder& out, const Tuple& kept) {
  std::apply([&](const auto&... each) { put_arguments<F>(out, each...); }, kept);
}

template <auto F, class... Args> auto start_call(const To& to, Args&&... args) {
  using R = typename FunctionTraits<F>::Answer;
  static_assert(std::is_void_v<R> || Wire<R>,
                "the result cannot travel: make it with remote() and call its methods there");
  const FunctionEntry& function = function_entry<F>();
  const std::shared_ptr<Agent> agent = current_agent();
  if (to.retry()) {
    using Kept = KeptArguments<F>;
    if constexpr (std::is_constructible_v<Kept, Args&&...>) {
      const auto kept = std::make_shared<const Kept>(std::forward<Args>(args)...);
      auto write = [kept, &function](Agent& sender, Life callee) {
        Message message;
        {
          Encoder out(message, &sender, callee);
          put_function(out, function);
          put_kept<F>(out, *kept);
        }
        return message;
      };
      auto state = std::make_shared<FutureState<R>>(agent->runtime());
      state->set_call(
          start_repeated(agent, function, to, std::move(write), std::make_unique<TypedSink<R>>(state)), {});
      return Future<R>(std::move(state));
    } else {
      throw ValueError(str("with_retry: '", function.name, "': its arguments cannot be kept, only moved"));
    }
  }
  const Life peer = destination_life(*agent, to);
  Message message;
  {
    Encoder out(message, agent.get(), peer);
    put_function(out, function);
    put_arguments<F>(out, std::forward<Args>(args)...);
  }
  return send_call<R>(*agent, peer, Kind::kCall, std::move(message), {to.timeout(), function.name.c_str()});
}

}  // namespace detail

template <class R>
Future<R> send_call(Agent& agent, Life to, Kind kind, Message message, CallOptions options) {
  auto state = std::make_shared<detail::FutureState<R>>(agent.runtime());
  state->set_call(agent.weak_from_this(), agent.call(to, kind, std::move(message), options,
                                                     std::make_unique<detail::TypedSink<R>>(state)));
  return Future<R>(std::move(state));
}

template <auto F, class... Args>
auto rpc_sync(const To& to, Args&&... args) -> typename detail::FunctionTraits<F>::Answer {
  return detail::start_call<F>(to, std::forward<Args>(args)...).take();
}

template <auto F, class... Args>
auto rpc_async(const To& to, Args&&... args) -> Future<typename detail::FunctionTraits<F>::Answer> {
  auto future = detail::start_call<F>(to, std::forward<Args>(args)...);
  if (WaitAll* scope = WaitAll::current())
    scope->add(future.then_inline([](const Future<typename detail::FunctionTraits<F>::Answer>& f) {
      if (f.has_error()) std::rethrow_exception(f.error());
    }));
  return future;
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
