// Bodies of the templates of function.h. Included by it; not on its own.
#pragma once

#include <weft/distributed/rpc/function.h>

namespace weft::rpc {

namespace detail {

template <class R> void TypedCall<R>::run(void* object, std::unique_ptr<Finisher> finisher) {
  using T = typename AnswerOf<R>::type;
  Outcome outcome;
  outcome.type = &value_type<T>;
  try {
    if constexpr (Flat<std::decay_t<R>>::nested) {
      auto state = invoke(object).state();
      auto finish = [held = state.get(), finisher = std::move(finisher)] {
        Outcome late;
        late.type = &value_type<T>;
        late.error = held->error();
        late.may_move = false;
        if constexpr (!std::is_void_v<T>)
          if (held->value) late.value = &*held->value;
        finisher->done(late);
      };
      state->on_done(std::move(finish), false);
      return;
    } else if constexpr (std::is_void_v<R>) {
      invoke(object);
    } else {
      T value = invoke(object);
      outcome.value = &value;
      finisher->done(outcome);
      return;
    }
  } catch (...) {
    outcome.error = std::current_exception();
  }
  finisher->done(outcome);
}

template <class T, class... P> void ConstructorCall<T, P...>::run(void*, std::unique_ptr<Finisher> finisher) {
  Outcome outcome;
  outcome.type = &value_type<T>;
  try {
    outcome.object =
        Args::apply([](auto&&... a) { return std::make_shared<T>(std::forward<decltype(a)>(a)...); }, args_);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  finisher->done(outcome);
}

template <class Args, class Answer> FunctionEntry make_entry(std::string name, FunctionForm form) {
  FunctionEntry e;
  e.signature = name + Args::names() + " -> " + type_name<Answer>();
  e.id = stable_hash(form == FunctionForm::kConstructor ? e.signature : name);
  e.signature_hash = stable_hash(e.signature);
  e.name = std::move(name);
  e.form = form;
  return e;
}

}  // namespace detail

template <auto F> bool register_function(const char* name, bool idempotent) {
  using Traits = detail::FunctionTraits<F>;
  Traits::Args::check();
  const FunctionEntry* const known = detail::function_slot<F>;
  if (known != nullptr && known->name == name && known->idempotent == idempotent) return true;
  FunctionEntry e =
      detail::make_entry<typename Traits::Args, typename Traits::Answer>(name, FunctionForm::kFunction);
  e.prepare = &detail::prepare<detail::FunctionCall<F>>;
  e.idempotent = idempotent;
  detail::function_slot<F> = detail::add_function(std::move(e));
  return true;
}

template <class T, auto M> bool register_method(const char* name) {
  using Traits = detail::FunctionTraits<M>;
  static_assert(std::is_base_of_v<typename Traits::Sig::Class, T>);
  Traits::Args::check();
  if (detail::method_slot<T, M> != nullptr) return true;
  const std::string class_name = weft_rpc_class_name(detail::TypeTag<T>());
  FunctionEntry e = detail::make_entry<typename Traits::Args, typename Traits::Answer>(
      class_name + "::" + name, FunctionForm::kMethod);
  e.class_name = class_name;
  e.serialized = detail::Serialized<T>;
  e.prepare = &detail::prepare<detail::MethodCall<T, M>>;
  detail::method_slot<T, M> = detail::add_function(std::move(e));
  return true;
}

namespace detail {
template <class T, class... P> const FunctionEntry* register_constructor() {
  static_assert(std::is_constructible_v<T, P...>,
                "no constructor takes these arguments (integers arrive as int64, numbers as float64)");
  Arguments<TypeList<P...>>::check();
  const std::string class_name = type_name<T>();
  FunctionEntry e =
      make_entry<Arguments<TypeList<P...>>, T>(class_name + "::" + class_name, FunctionForm::kConstructor);
  e.class_name = class_name;
  e.prepare = &prepare<ConstructorCall<T, P...>>;
  return add_function(std::move(e));
}
template <class T, class... P> struct ConstructorSlot {
  static inline const FunctionEntry* const entry = register_constructor<T, P...>();
};
}  // namespace detail

template <class T, class... P> const FunctionEntry& constructor_entry() {
  // A static of its own: an initialiser of another unit may run before the slot is set. The slot makes sure
  // that the entry exists before main. Registering twice gives the same entry.
  static const FunctionEntry* const entry = detail::register_constructor<T, P...>();
  (void)&detail::ConstructorSlot<T, P...>::entry;
  return *entry;
}

}  // namespace weft::rpc
