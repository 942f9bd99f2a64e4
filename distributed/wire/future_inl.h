// Bodies of the templates of future.h. Included by it; not on its own.
#pragma once

#include <weft/distributed/wire/call_context.h>
#include <weft/distributed/wire/future.h>

namespace weft::rpc {

template <class T> Future<T>::Future() : Future(current_runtime()) {}

namespace detail {

template <class T> template <class F, class... A> void Completer<T>::run(F&& f, A&&... args) {
  using R = std::invoke_result_t<F&, A...>;
  try {
    if constexpr (Flat<R>::nested) {
      auto inner = f(std::forward<A>(args)...).state();
      inner->on_done(
          [held = inner.get(), outer = std::move(*this)]() mutable {
            if (held->failed()) outer.error(held->error());
            else if constexpr (std::is_void_v<T>) outer.value();
            else outer.value(*held->value);
          },
          false);
    } else if constexpr (std::is_void_v<R>) {
      f(std::forward<A>(args)...);
      value();
    } else {
      value(f(std::forward<A>(args)...));
    }
  } catch (...) {
    if (state_) error(std::current_exception());
  }
}

/// Collects the values of several futures. The last value, or the first error, completes `out`.
template <class Values, class Slots> struct Collector {
  Collector(size_t n, std::shared_ptr<FutureState<Values>> s) : open(n), out(std::move(s)) {}
  template <class T, class Store>
  static void watch(const std::shared_ptr<Collector>& all, const Future<T>& future, Store store) {
    FutureState<T>* state = future.state().get();
    state->on_done(
        [all, state, store] {
          if (state->failed()) {
            all->out->try_set_error(state->error());
            return;
          }
          store(all->slots, *state->value);
          if (all->open.fetch_sub(1) == 1) all->finish();
        },
        false);
  }
  void finish() {
    if constexpr (std::is_void_v<Values>) out->try_set();
    else out->try_set(Slots::values(slots));
  }
  std::atomic<size_t> open;
  std::shared_ptr<FutureState<Values>> out;
  typename Slots::type slots;
};

template <class T> struct ListSlots {
  using type = std::vector<std::optional<T>>;
  static std::vector<T> values(type& slots) {
    std::vector<T> out;
    out.reserve(slots.size());
    for (auto& slot : slots) out.push_back(std::move(*slot));
    return out;
  }
};
template <class... Ts> struct TupleSlots {
  using type = std::tuple<std::optional<Ts>...>;
  static std::tuple<Ts...> values(type& slots) {
    return std::apply([](auto&... slot) { return std::tuple<Ts...>(std::move(*slot)...); }, slots);
  }
};

}  // namespace detail

template <class T> template <class F> auto Future<T>::chain(F f, bool pooled) const {
  using R = typename detail::ThenResult<F, T>::type;
  using Out = typename detail::Flat<R>::type;
  auto next = std::make_shared<detail::FutureState<Out>>(state_->runtime());
  Task step = [state = state_.get(), f = std::move(f), out = detail::Completer<Out>(next)]() mutable {
    if constexpr (detail::takes_future<F, T>) {
      out.run(f, of(*state));
    } else {
      if (state->failed()) return out.error(state->error());
      if constexpr (std::is_void_v<T>) out.run(f);
      else out.run(f, std::as_const(*state->value));
    }
  };
  state_->on_done(pooled ? detail::with_context(std::move(step)) : std::move(step), pooled, pooled);
  return Future<Out>(std::move(next));
}

template <class T> Future<std::vector<T>> collect(const std::vector<Future<T>>& futures) {
  using Values = std::vector<T>;
  using All = detail::Collector<Values, detail::ListSlots<T>>;
  auto runtime = futures.empty() ? current_runtime() : futures[0].state()->runtime();
  auto out = std::make_shared<detail::FutureState<Values>>(std::move(runtime));
  auto all = std::make_shared<All>(futures.size(), out);
  all->slots.resize(futures.size());
  if (futures.empty()) all->finish();
  for (size_t i = 0; i < futures.size(); ++i)
    All::watch(all, futures[i], [i](auto& slots, const T& value) { slots[i].emplace(value); });
  return Future<Values>(std::move(out));
}

template <class A, class B, class... More>
Future<std::tuple<A, B, More...>> collect(Future<A> a, Future<B> b, Future<More>... more) {
  using Values = std::tuple<A, B, More...>;
  using All = detail::Collector<Values, detail::TupleSlots<A, B, More...>>;
  auto out = std::make_shared<detail::FutureState<Values>>(a.state()->runtime());
  auto all = std::make_shared<All>(2 + sizeof...(More), out);
  [&]<size_t... I>(std::index_sequence<I...>, const auto&... futures) {
    (All::watch(all, futures, [](auto& slots, const auto& value) { std::get<I>(slots).emplace(value); }),
     ...);
  }
  (std::make_index_sequence<2 + sizeof...(More)>(), a, b, more...);
  return Future<Values>(std::move(out));
}

}  // namespace weft::rpc
