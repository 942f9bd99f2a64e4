// The registry of functions that other workers may call. Code is not sent: caller and callee register the
// same name and signature.
//
//   Tensor my_add(const Tensor& a, const Tensor& b);
//   WEFT_RPC(my_add);                                 // at namespace scope, best beside the declaration
//   WEFT_RPC_AS("clip", static_cast<Tensor (*)(const Tensor&, double)>(&clip));   // overloads and instances
//   WEFT_RPC_IDEMPOTENT(lookup);                      // running it twice is as good as once: see with_retry
//   WEFT_RPC_CLASS(EmbeddingTable, forward, train);   // in the namespace of the class; inherited methods too
//   using Lookup = Tensor (EmbeddingTable::*)(int64_t) const;
//   WEFT_RPC_METHOD_AS(EmbeddingTable, "lookup", static_cast<Lookup>(&EmbeddingTable::at));
//
// Parameters are decayed: const T& is sent as T. Mutable references, pointers, views and types without a
// codec do not compile. A function that returns Future<R> is asynchronous: the caller gets R when the future
// is done, and no thread waits. Methods of a class with `using rpc_serialized = void;` run one at a time per
// object, in order of arrival. Other methods may run concurrently. Agent::create throws for a name that was
// registered for two functions. The address of a function, as a template argument, identifies it in C++. Each
// call compares the hash of the signature, which consists of codec names. It is the same on every machine and
// compiler. Registration runs before main() in each translation unit that sees the macro, if the linker keeps
// that unit. Thread safety: all functions may be called from any thread.
#pragma once

#include <memory>
#include <span>

#include <weft/distributed/wire/codec.h>

namespace weft::rpc {

/// The operations on a type-erased value.
struct ValueType {
  std::string (*name)();
  /// null: no codec, the value cannot leave its worker
  void (*encode)(Encoder& out, const void* value);
  std::shared_ptr<void> (*box)(void* value, bool may_move);  ///< null: neither movable nor copyable
};

/// Result or error of a served function; valid during Finisher::done only.
struct Outcome {
  const ValueType* type = nullptr;
  void* value = nullptr;  ///< the returned value; null for constructors, errors and void
  bool may_move = true;
  std::shared_ptr<void> object;  ///< the constructed object
  std::exception_ptr error;
  /// Moves or copies the value to the heap; null for void. Throws: ValueError for a type that can be neither
  /// moved nor copied.
  WEFT_API std::shared_ptr<void> box();
};

/// Takes the outcome of a served function: sends it back, or keeps it as a remote value. `done` is called
/// once, on any thread; it must not block or throw.
class WEFT_API Finisher {
 public:
  virtual ~Finisher() = default;
  virtual void done(Outcome& outcome) noexcept = 0;
};

/// A function with its decoded arguments. It runs once.
class WEFT_API PreparedCall {
 public:
  virtual ~PreparedCall() = default;
  /// `object`: for a method, the object of the registered class; else null. `finisher` gets the result
  /// or the exception.
  virtual void run(void* object, std::unique_ptr<Finisher> finisher) = 0;
};

/// The form of a registered function.
enum class FunctionForm : uint8_t { kFunction, kConstructor, kMethod };

/// A registered function.
struct FunctionEntry {
  std::string name;       ///< "my_add", "EmbeddingTable::forward", "EmbeddingTable::EmbeddingTable"
  std::string signature;  ///< "my_add(Tensor, Tensor) -> Tensor"
  uint64_t id = 0;        ///< hash of the name (constructors: of the signature)
  uint64_t signature_hash = 0;
  FunctionForm form = FunctionForm::kFunction;
  std::string class_name;  ///< methods and constructors
  bool serialized = false;
  bool idempotent = false;  ///< a call with a RetryPolicy may run it again
  std::unique_ptr<PreparedCall> (*prepare)(Decoder& in) = nullptr;
};

/// The function of this id or name; null when there is none.
WEFT_API const FunctionEntry* find_function(uint64_t id);
WEFT_API const FunctionEntry* find_function(std::string_view name);
/// All registered functions, sorted by name.
WEFT_API std::vector<const FunctionEntry*> all_functions();
/// Throws: ValueError when one name was registered for different functions.
WEFT_API void check_registry();
/// FNV-1a, 64 bits: ids and signature hashes.
WEFT_API uint64_t stable_hash(std::string_view text);

/// Writes [function id, signature hash]; the arguments follow.
WEFT_API void put_function(Encoder& out, const FunctionEntry& function);
/// Reads the output of put_function. Throws: UnknownFunction, SignatureMismatch, NotAllowed (by the agent's
/// allow list), WireError.
WEFT_API const FunctionEntry& open_call(Decoder& in);

namespace detail {

template <class T>
concept HasClassName = requires {
  weft_rpc_class_name(TypeTag<T>());
};
template <class T>
concept Serialized = requires {
  typename T::rpc_serialized;
};

/// The name of a type in signatures: its codec's, or that of its registered class.
template <class T> std::string type_name() {
  if constexpr (std::is_void_v<T>) return "void";
  else if constexpr (Wire<T>) return Codec<T>::name();
  else {
    static_assert(HasClassName<T>,
                  "this type neither travels (Codec, WEFT_FIELDS) nor is registered with WEFT_RPC_CLASS in "
                  "its namespace");
    return weft_rpc_class_name(TypeTag<T>());
  }
}

template <class T> constexpr ValueType make_value_type() {
  ValueType t{&type_name<T>, nullptr, nullptr};
  if constexpr (Wire<T> && !std::is_void_v<T>)
    t.encode = [](Encoder& out, const void* v) { Codec<T>::encode(out, *static_cast<const T*>(v)); };
  if constexpr (!std::is_void_v<T>) {
    if constexpr (std::is_copy_constructible_v<T>)
      t.box = [](void* v, bool may_move) -> std::shared_ptr<void> {
        if (may_move) return std::make_shared<T>(std::move(*static_cast<T*>(v)));
        return std::make_shared<T>(*static_cast<const T*>(v));
      };
    else if constexpr (std::is_move_constructible_v<T>)
      t.box = [](void* v, bool) -> std::shared_ptr<void> {
        return std::make_shared<T>(std::move(*static_cast<T*>(v)));
      };
  }
  return t;
}

// ---- parameter and result types of a callable
/// @cond
template <class... A> struct TypeList { static constexpr size_t size = sizeof...(A); };
template <class F> struct Callable : Callable<decltype(&F::operator())> { using Class = void; };
template <class R, class... A> struct Callable<R (*)(A...)> {
  using Result = R;
  using Args = TypeList<A...>;
  using Class = void;
};
template <class R, class... A> struct Callable<R (*)(A...) noexcept> : Callable<R (*)(A...)> {};
template <class R, class C, class... A> struct Callable<R (C::*)(A...)> {
  using Result = R;
  using Args = TypeList<A...>;
  using Class = C;
};
template <class R, class C, class... A> struct Callable<R (C::*)(A...) const> : Callable<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct Callable<R (C::*)(A...) noexcept> : Callable<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct Callable<R (C::*)(A...) const noexcept> : Callable<R (C::*)(A...)> {};
/// @endcond

template <class T> inline constexpr bool is_view = false;
template <> inline constexpr bool is_view<std::string_view> = true;
template <class T, size_t N> inline constexpr bool is_view<std::span<T, N>> = true;
template <class T> inline constexpr bool is_view<std::initializer_list<T>> = true;

template <class A> constexpr void check_parameter() {
  using T = std::decay_t<A>;
  static_assert(!std::is_lvalue_reference_v<A> || std::is_const_v<std::remove_reference_t<A>>,
                "a parameter of a remote function cannot be a mutable reference: the caller's object is not "
                "there; return the new value");
  static_assert(!std::is_pointer_v<T>,
                "a pointer cannot travel: pass the value, or a remote reference to it");
  static_assert(!is_view<T>, "a view cannot travel, it owns nothing: take std::string or std::vector");
  static_assert(
      Wire<T>,
      "a parameter of this type cannot travel: give it WEFT_FIELDS or a Codec (a lambda never travels)");
}

template <class T> struct AnswerOf { using type = std::decay_t<T>; };
template <> struct AnswerOf<void> { using type = void; };
template <class T> struct AnswerOf<Future<T>> { using type = T; };

/// A call with the result R of its function, which may be a future. The finisher of an asynchronous function
/// gets the outcome when that future is done.
template <class R> class TypedCall : public PreparedCall {
 public:
  void run(void* object, std::unique_ptr<Finisher> finisher) final;

 private:
  virtual R invoke(void* object) = 0;
};

template <class List> struct Arguments;
template <class... A> struct Arguments<TypeList<A...>> {
  using Tuple = std::tuple<std::decay_t<A>...>;
  static constexpr void check() { (check_parameter<A>(), ...); }
  static Tuple decode(Decoder& in) {
    Tuple args{Codec<std::decay_t<A>>::decode(in)...};  // braces: left to right
    in.expect_end();
    return args;
  }
  template <class... V> static void encode(Encoder& out, V&&... values) {
    static_assert(sizeof...(V) == sizeof...(A), "wrong number of arguments for this remote function");
    (encode_one<std::decay_t<A>>(out, std::forward<V>(values)), ...);
  }
  /// Writes a Tuple.
  static void encode_tuple(Encoder& out, const void* tuple) {
    std::apply([&](const auto&... each) { encode(out, each...); }, *static_cast<const Tuple*>(tuple));
  }
  template <class Call> static decltype(auto) apply(Call&& call, Tuple& args) {
    return [&]<size_t... I>(std::index_sequence<I...>)->decltype(auto) {
      return call(static_cast<A&&>(std::get<I>(args))...);
    }
    (std::index_sequence_for<A...>());
  }
  static std::string names() {
    std::string out = "(";
    [[maybe_unused]] const char* comma = "";
    ((out += std::exchange(comma, ", "), out += Codec<std::decay_t<A>>::name()), ...);
    return out += ")";
  }

 private:
  template <class P, class V> static void encode_one(Encoder& out, V&& value) {
    out.begin_argument();
    if constexpr (std::is_same_v<std::decay_t<V>, P>) {
      Codec<P>::encode(out, value);
    } else {
      static_assert(std::is_convertible_v<V&&, P>,
                    "an argument does not convert to the remote function's parameter");
      const P converted = static_cast<P>(std::forward<V>(value));
      Codec<P>::encode(out, converted);
    }
  }
};

template <auto F> struct FunctionTraits {
  using Sig = Callable<std::decay_t<decltype(F)>>;
  using Args = Arguments<typename Sig::Args>;
  using Answer = typename AnswerOf<typename Sig::Result>::type;
};

template <auto F> class FunctionCall final : public TypedCall<typename FunctionTraits<F>::Sig::Result> {
  using Traits = FunctionTraits<F>;

 public:
  explicit FunctionCall(Decoder& in) : args_(Traits::Args::decode(in)) {}

 private:
  typename Traits::Sig::Result invoke(void*) override { return Traits::Args::apply(F, args_); }
  typename Traits::Args::Tuple args_;
};

template <class T, auto M>
class MethodCall final : public TypedCall<typename FunctionTraits<M>::Sig::Result> {
  using Traits = FunctionTraits<M>;

 public:
  explicit MethodCall(Decoder& in) : args_(Traits::Args::decode(in)) {}

 private:
  typename Traits::Sig::Result invoke(void* object) override {
    return Traits::Args::apply(
        [&](auto&&... a) -> decltype(auto) {
          return (static_cast<T*>(object)->*M)(std::forward<decltype(a)>(a)...);
        },
        args_);
  }
  typename Traits::Args::Tuple args_;
};

template <class T, class... P> class ConstructorCall final : public PreparedCall {
  using Args = Arguments<TypeList<P...>>;

 public:
  explicit ConstructorCall(Decoder& in) : args_(Args::decode(in)) {}
  void run(void*, std::unique_ptr<Finisher> finisher) override;

 private:
  typename Args::Tuple args_;
};

template <class Call> std::unique_ptr<PreparedCall> prepare(Decoder& in) {
  return std::unique_ptr<PreparedCall>(new Call(in));  // make_unique would cost a type for each function
}

/// Adds an entry and returns the stored entry. Adding it twice is no error: several units may see the macro.
WEFT_API const FunctionEntry* add_function(FunctionEntry entry);
[[noreturn]] WEFT_API void throw_unregistered(const char* pretty);

// The entry of a function or method, by its compile-time key.
template <auto F> WEFT_API inline const FunctionEntry* function_slot = nullptr;
template <class T, auto M> WEFT_API inline const FunctionEntry* method_slot = nullptr;

}  // namespace detail

/// The type information of T's values.
template <class T> inline constexpr ValueType value_type = detail::make_value_type<T>();

/// Registers a function under a name; WEFT_RPC calls it. Returns true.
template <auto F> bool register_function(const char* name, bool idempotent = false);
/// Registers M under "<class>::<name>" for references to T; WEFT_RPC_CLASS calls it. Returns true.
template <class T, auto M> bool register_method(const char* name);

/// The entry of a registered function. Throws: RpcError when it was never registered.
template <auto F> const FunctionEntry& function_entry() {
  if (detail::function_slot<F> == nullptr) detail::throw_unregistered(__PRETTY_FUNCTION__);
  return *detail::function_slot<F>;
}
template <class T, auto M> const FunctionEntry& method_entry() {
  static_assert(std::is_base_of_v<typename detail::FunctionTraits<M>::Sig::Class, T>,
                "the method is not one of the reference's class");
  if (detail::method_slot<T, M> == nullptr) detail::throw_unregistered(__PRETTY_FUNCTION__);
  return *detail::method_slot<T, M>;
}

/// The type in which a constructor's argument is sent: int64 for integers, float64 for floating numbers,
/// std::string for text, else the decayed type.
template <class A>
using constructor_argument_t = std::conditional_t<
    std::is_same_v<std::decay_t<A>, bool>, bool,
    std::conditional_t<std::is_integral_v<std::decay_t<A>>, int64_t,
                       std::conditional_t<std::is_floating_point_v<std::decay_t<A>>, double,
                                          std::conditional_t<std::is_convertible_v<A, std::string_view>,
                                                             std::string, std::decay_t<A>>>>>;

/// The entry of a constructor. Its instantiation registers the constructor; a program that only serves uses
/// WEFT_RPC_CONSTRUCTOR for that.
template <class T, class... P> const FunctionEntry& constructor_entry();

/// Writes the arguments of F, converted to its parameters.
template <auto F, class... V> void put_arguments(Encoder& out, V&&... values) {
  detail::FunctionTraits<F>::Args::encode(out, std::forward<V>(values)...);
}

}  // namespace weft::rpc

#define WEFT_RPC(...) WEFT_RPC_AS(#__VA_ARGS__, __VA_ARGS__)
#define WEFT_RPC_AS(name, ...)                                                     \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::register_function<(__VA_ARGS__)>(name)
#define WEFT_RPC_IDEMPOTENT(...) WEFT_RPC_IDEMPOTENT_AS(#__VA_ARGS__, __VA_ARGS__)
#define WEFT_RPC_IDEMPOTENT_AS(name, ...)                                          \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::register_function<(__VA_ARGS__)>(name, true)
#define WEFT_RPC_METHOD_AS(Class, name, ...)                                       \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::register_method<Class, (__VA_ARGS__)>(name)
#define WEFT_RPC_METHOD_ITEM(Class, method) WEFT_RPC_METHOD_AS(Class, #method, &Class::method);
#define WEFT_RPC_CLASS(Class, ...)                                                                      \
  inline const char* weft_rpc_class_name(const ::weft::rpc::detail::TypeTag<Class>&) { return #Class; } \
  WEFT_FOR_EACH(WEFT_RPC_METHOD_ITEM, Class, __VA_ARGS__)                                               \
  static_assert(true)
#define WEFT_RPC_CONSTRUCTOR(Class, ...)                                            \
  [[maybe_unused]] static const auto& WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::constructor_entry<Class __VA_OPT__(, ) __VA_ARGS__>()

#include <weft/distributed/rpc/function_inl.h>
