// Dynamic batching: open calls of many callers to one function are joined along dim 0 and run once. Each
// caller gets its rows of the result.
//
//   Tensor act(const Tensor& states);                             // [n, 4] -> [n, 2], row by row
//   WEFT_RPC_BATCHED(act, {.max_batch = 32, .max_wait = 200us});  // in place of WEFT_RPC(act)
//   WEFT_RPC_BATCHED_METHOD(Policy, act, {.max_batch = 32});      // beside WEFT_RPC_CLASS; joined per object
//   Tensor p = rpc::rpc_sync<act>("ps", state);                   // called like any other function
//
// Rules. The function takes tensors and values that compare with ==, and returns a Tensor, a vector, pair or
// tuple of them. Row i of each result may depend on row i of the arguments only, and on parameters. Calls are
// joined if their tensors agree in dtype, device and all dims but the first, and their other arguments are
// equal. Other calls run separately, so a wrong shape fails only for its own caller. A caller that has given
// up is left out. An error of a joined run is the answer of all its callers (see apart_after_error).
// Gradients. The joined run has one graph, and each caller's context has the part of its own rows. The
// backward pass of one context needs no other context, and frees nothing that others need. It runs the whole
// joined graph with zeros for the other callers' rows, so it costs as much as a pass for all rows. An inf in
// the rows of one caller may thus become a NaN in the parameter gradients of other callers. Calls that the
// function itself makes belong to no context. Thread safety: any thread.
#pragma once

#include <weft/distributed/rpc/function.h>

namespace weft::rpc {

/// Options of a batched function; durations in nanoseconds or any std::chrono unit.
struct BatchOptions {
  int64_t max_batch = 32;  ///< most rows of a joined run; a call with more rows runs alone
  Duration max_wait = std::chrono::milliseconds(1);  ///< longest wait of a call for other calls
  bool idempotent = false;                           ///< as WEFT_RPC_IDEMPOTENT
  /// After an error of a joined run, runs each of its calls alone, so that only the faulty call fails. A call
  /// may then run twice.
  bool apart_after_error = false;
};

namespace detail {

/// A served call that waits for its joined run.
struct BatchedCallItem {
  std::vector<Tensor> tensors;         ///< the arguments to join, in the order of the parameters
  std::shared_ptr<const void> values;  ///< all arguments, as a tuple
  std::unique_ptr<Finisher> finisher;  ///< keeps the object of a method
  CallContext context;
};

/// A batched function without its types.
struct BatchedFunction {
  BatchOptions options;
  const FunctionEntry* entry = nullptr;
  bool (*same_values)(const void* a, const void* b) = nullptr;
  std::vector<Tensor> (*run)(void* object, const void* values, const std::vector<Tensor>& joined) = nullptr;
  void (*finish)(Finisher& finisher, std::vector<Tensor> rows) = nullptr;
};

/// Takes a call: runs it at once, or with other calls before its longest wait is over.
WEFT_API void submit_batched(const BatchedFunction& function, void* object, BatchedCallItem item);

/// The tensors of a result.
template <class R> struct BatchedResult {
  static_assert(std::is_same_v<R, Tensor>,
                "a batched function returns a Tensor, or a vector, pair or tuple of them");
  static std::vector<Tensor> tensors(R&& value) { return {std::move(value)}; }
  static R make(std::vector<Tensor>&& rows) { return std::move(rows.at(0)); }
};
template <> struct BatchedResult<std::vector<Tensor>> {
  static std::vector<Tensor> tensors(std::vector<Tensor>&& value) { return std::move(value); }
  static std::vector<Tensor> make(std::vector<Tensor>&& rows) { return std::move(rows); }
};
template <class... T>
requires(std::is_same_v<T, Tensor>&&...) struct BatchedResult<std::tuple<T...>> {
  static std::vector<Tensor> tensors(std::tuple<T...>&& value) {
    return std::apply([](T&... each) { return std::vector<Tensor>{std::move(each)...}; }, value);
  }
  static std::tuple<T...> make(std::vector<Tensor>&& rows) {
    return [&]<size_t... I>(std::index_sequence<I...>) { return std::tuple<T...>(std::move(rows.at(I))...); }
    (std::index_sequence_for<T...>());
  }
};
template <> struct BatchedResult<std::pair<Tensor, Tensor>> {
  static std::vector<Tensor> tensors(std::pair<Tensor, Tensor>&& value) {
    return {std::move(value.first), std::move(value.second)};
  }
  static std::pair<Tensor, Tensor> make(std::vector<Tensor>&& rows) {
    return {std::move(rows.at(0)), std::move(rows.at(1))};
  }
};

template <class Tuple> bool same_batched_values(const void* a, const void* b) {
  const auto equal = [](const auto& x, const auto& y) {
    if constexpr (std::is_same_v<std::decay_t<decltype(x)>, Tensor>) return true;
    else return static_cast<bool>(x == y);
  };
  return [&]<size_t... I>(std::index_sequence<I...>) {
    const auto& x = *static_cast<const Tuple*>(a);
    const auto& y = *static_cast<const Tuple*>(b);
    return (equal(std::get<I>(x), std::get<I>(y)) && ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

/// T: the class of a method; void for a function.
template <class T, auto F> class BatchedCall final : public PreparedCall {
  using Traits = FunctionTraits<F>;
  using Tuple = typename Traits::Args::Tuple;
  using Result = std::decay_t<typename Traits::Sig::Result>;

 public:
  static inline BatchedFunction function;

  explicit BatchedCall(Decoder& in) : values_(std::make_shared<Tuple>(Traits::Args::decode(in))) {}
  void run(void* object, std::unique_ptr<Finisher> finisher) override {
    BatchedCallItem item{{}, values_, std::move(finisher), capture_context()};
    const auto take = [&](const auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Tensor>) item.tensors.push_back(value);
    };
    std::apply([&](const auto&... each) { (take(each), ...); }, *values_);
    submit_batched(function, object, std::move(item));
  }

  static void fill(const BatchOptions& options, const FunctionEntry* entry) {
    static_assert(!Flat<Result>::nested, "a batched function returns its value, not a Future");
    function = {options, entry, &same_batched_values<Tuple>, &run_joined, &finish};
  }

 private:
  static std::vector<Tensor> run_joined(void* object, const void* values, const std::vector<Tensor>& joined) {
    Tuple all = *static_cast<const Tuple*>(values);
    size_t next = 0;
    const auto give = [&](auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Tensor>) value = joined.at(next++);
    };
    std::apply([&](auto&... each) { (give(each), ...); }, all);
    if constexpr (std::is_void_v<T>) {
      return BatchedResult<Result>::tensors(Traits::Args::apply(F, all));
    } else {
      return BatchedResult<Result>::tensors(Traits::Args::apply(
          [&](auto&&... a) { return (static_cast<T*>(object)->*F)(std::forward<decltype(a)>(a)...); }, all));
    }
  }
  static void finish(Finisher& finisher, std::vector<Tensor> rows) {
    Result value = BatchedResult<Result>::make(std::move(rows));
    Outcome outcome;
    outcome.type = &value_type<Result>;
    outcome.value = &value;
    finisher.done(outcome);
  }

  std::shared_ptr<const Tuple> values_;
};

template <class T> inline constexpr bool has_tensor = false;
template <class... A> inline constexpr bool has_tensor<std::tuple<A...>> = (std::is_same_v<A, Tensor> || ...);

}  // namespace detail

/// Registers a batched function; WEFT_RPC_BATCHED calls it. Returns true.
template <auto F> bool register_batched(const char* name, const BatchOptions& options = {}) {
  using Traits = detail::FunctionTraits<F>;
  using Call = detail::BatchedCall<void, F>;
  Traits::Args::check();
  static_assert(detail::has_tensor<typename Traits::Args::Tuple>, "a batched function takes a Tensor");
  FunctionEntry e =
      detail::make_entry<typename Traits::Args, typename Traits::Answer>(name, FunctionForm::kFunction);
  e.prepare = &detail::prepare<Call>;
  e.idempotent = options.idempotent;
  detail::function_slot<F> = detail::add_function(std::move(e));
  Call::fill(options, detail::function_slot<F>);
  return true;
}

/// Registers a batched method under "<class>::<name>"; WEFT_RPC_BATCHED_METHOD calls it. Returns true.
template <class T, auto M> bool register_batched_method(const char* name, const BatchOptions& options = {}) {
  using Traits = detail::FunctionTraits<M>;
  using Call = detail::BatchedCall<T, M>;
  static_assert(std::is_base_of_v<typename Traits::Sig::Class, T>);
  static_assert(!detail::Serialized<T>, "calls of a serialized class wait for each other, so none can join");
  Traits::Args::check();
  static_assert(detail::has_tensor<typename Traits::Args::Tuple>, "a batched method takes a Tensor");
  const std::string class_name = weft_rpc_class_name(detail::TypeTag<T>());
  FunctionEntry e = detail::make_entry<typename Traits::Args, typename Traits::Answer>(
      class_name + "::" + name, FunctionForm::kMethod);
  e.class_name = class_name;
  e.prepare = &detail::prepare<Call>;
  detail::method_slot<T, M> = detail::add_function(std::move(e));
  Call::fill(options, detail::method_slot<T, M>);
  return true;
}

/// Changes the options of a batched function or method, such as a max_batch that is known only at run time.
/// Set them before the first call; `idempotent` stays as it was registered.
template <auto F> void set_batch_options(const BatchOptions& options) {
  detail::BatchedCall<void, F>::function.options = options;
}
template <class T, auto M> void set_batch_options(const BatchOptions& options) {
  detail::BatchedCall<T, M>::function.options = options;
}

}  // namespace weft::rpc

#define WEFT_RPC_BATCHED(function, ...) WEFT_RPC_BATCHED_AS(#function, function __VA_OPT__(, ) __VA_ARGS__)
#define WEFT_RPC_BATCHED_AS(name, function, ...)                                   \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::register_batched<(function)>(name __VA_OPT__(, ) __VA_ARGS__)
#define WEFT_RPC_BATCHED_METHOD(Class, method, ...)                                \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::register_batched_method<Class, &Class::method>(#method __VA_OPT__(, ) __VA_ARGS__)
