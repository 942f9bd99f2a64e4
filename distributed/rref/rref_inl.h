// Bodies of the templates of rref.h. Included by it; not on its own.
#pragma once

#include <weft/distributed/rref/rref.h>

namespace weft::rpc {

namespace detail {

/// Takes the reply to a request made through a reference, and keeps the reference until then.
template <class R> class UseSink final : public ReplySink {
 public:
  UseSink(StatePtr held, std::shared_ptr<FutureState<R>> state)
      : held_(std::move(held)), typed_(std::move(state)) {}
  void on_reply(Agent& agent, WorkerId from, Message message) noexcept override {
    typed_.on_reply(agent, from, std::move(message));
  }
  void on_error(std::exception_ptr error) noexcept override {
    typed_.on_error(Use::translate(*held_, std::move(error)));
  }

 private:
  StatePtr held_;
  TypedSink<R> typed_;
};

template <class R> Future<R> send_use(Use& use, std::optional<Duration> timeout) {
  auto state = std::make_shared<FutureState<R>>(use.agent().runtime());
  const CallId call = use.send(timeout, std::unique_ptr<ReplySink>(new UseSink<R>(use.state(), state)));
  state->set_call(use.agent().weak_from_this(), call);
  return Future<R>(std::move(state));
}

}  // namespace detail

template <class T> Future<T> RRef<T>::to_here_async(std::optional<Duration> timeout) const {
  static_assert(std::is_void_v<T> || Wire<T>,
                "this type has no codec and stays where it is: call its methods through the reference");
  state();
  detail::Use use(state_, Kind::kFetch, nullptr);
  return detail::send_use<T>(use, timeout);
}

template <class T> T RRef<T>::to_here(std::optional<Duration> timeout) const {
  static_assert(std::is_void_v<T> || Wire<T>,
                "this type has no codec and stays where it is: call its methods through the reference");
  if constexpr (std::is_void_v<T> || std::is_copy_constructible_v<T>) {
    if (is_owner()) {
      const auto value = detail::owned_value(state(), &value_type_of(), timeout);
      if constexpr (std::is_void_v<T>) return;
      else return *std::static_pointer_cast<T>(value);
    }
  }
  return to_here_async(timeout).take();
}

template <class T>
template <auto M, class... A>
auto RRef<T>::send_method(std::optional<Duration> limit, std::optional<Device> device, A&&... args) const {
  using R = typename detail::FunctionTraits<M>::Answer;
  static_assert(std::is_void_v<R> || Wire<R>, "the result cannot travel: keep it there with remote()");
  state();
  detail::Use use(state_, Kind::kMethod, &method_entry<T, M>());
  if (device) {
    use.out().place_on(device);
    use.out().message().extension(Tag::kResultsToCpu);
  }
  put_arguments<M>(use.out(), std::forward<A>(args)...);
  return detail::send_use<R>(use, limit);
}

template <class T>
template <auto M, class... A>
auto RRef<T>::rpc_async_on(Device device, A&&... args) const {
  return detail::noted(send_method<M>({}, device, std::forward<A>(args)...));
}

template <class T>
template <auto M, class... A>
auto RRef<T>::remote_within(std::optional<Duration> limit, A&&... args) const {
  using R = typename detail::FunctionTraits<M>::Answer;
  const FunctionEntry& method = method_entry<T, M>();
  state();
  detail::Creation creation(state_, method, limit, {method.name.c_str(), nullptr, 0});
  put_arguments<M>(creation.out(), std::forward<A>(args)...);
  return RRef<R>(creation.start());
}

template <class T>
void RRef<T>::backward(std::optional<int64_t> context_id,
                       const dist_autograd::BackwardOptions& options) const {
  static_assert(std::is_same_v<T, Tensor>, "backward starts from a tensor");
  backward_from(*this, context_id, options);
}

template <class T> template <auto M, class... A> auto RRefProxy<T>::rpc_sync(A&&... args) const {
  return rref_.template rpc_async_within<M>(limit_, std::forward<A>(args)...).take();
}
template <class T> template <auto M, class... A> auto RRefProxy<T>::rpc_async(A&&... args) const {
  return detail::noted(rref_.template rpc_async_within<M>(limit_, std::forward<A>(args)...));
}
template <class T> template <auto M, class... A> auto RRefProxy<T>::remote(A&&... args) const {
  return rref_.template remote_within<M>(limit_, std::forward<A>(args)...);
}

template <auto F, class... A>
auto remote(const Destination& to, A&&... args) -> RRef<typename detail::FunctionTraits<F>::Answer> {
  using R = typename detail::FunctionTraits<F>::Answer;
  const FunctionEntry& function = function_entry<F>();
  detail::Creation creation(to, function, {function.name.c_str(), to.at().file_name(), to.at().line()});
  put_arguments<F>(creation.out(), std::forward<A>(args)...);
  return RRef<R>(creation.start());
}

template <class T, class... A>
requires std::is_class_v<T> RRef<T> remote(const Destination& to, A&&... args) {
  const FunctionEntry& constructor = constructor_entry<T, constructor_argument_t<A>...>();
  detail::Creation creation(to, constructor, {constructor.name.c_str(), to.at().file_name(), to.at().line()});
  detail::Arguments<detail::TypeList<constructor_argument_t<A>...>>::encode(creation.out(),
                                                                            std::forward<A>(args)...);
  return RRef<T>(creation.start());
}

}  // namespace weft::rpc
