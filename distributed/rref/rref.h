// RRef<T>: a remote reference. The value lives on one worker, its owner; references to it can be sent to all
// workers.
//
//   RRef<Tensor> y = remote<my_add>("ps", a, b);                  // returns at once; the result stays there
//   Tensor here = y.to_here();                                    // a copy, one round trip
//   RRef<EmbeddingTable> table = remote<EmbeddingTable>("ps", ntoken, ninp);
//   Tensor e = table.rpc_sync<&EmbeddingTable::forward>(ids);     // runs on the owner
//   auto f = table.within(500ms).rpc_async<&EmbeddingTable::forward>(ids);
//   rpc_sync<train>("worker2", table);               // argument, result, in containers and structs
//   RRef<Model> mine = make_rref<Model>(args...);    // owned by this worker
//
// The value lives as long as any worker has a reference (distributed reference counting). RRef copies on one
// worker share one reference. The owner confirms a reference that arrives as an argument before the function
// starts. An error of the creating function stays in the reference: to_here() and methods throw it. The owner
// drops the references of a lost user. After the loss of the owner every use throws OwnerLost at once. That
// holds even if another life has taken the owner's place. references.cpp describes the protocol and its
// guarantees.
// Thread safety: an RRef is a plain value; copies may be used from different threads. Methods of the value
// run concurrently, unless its class has `using rpc_serialized = void;`.
#pragma once

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/backward_options.h>
#include <weft/distributed/rref/rref_state.h>

namespace weft::rpc {

/// The part of an RRef that does not depend on T.
class WEFT_API RRefBase {
 public:
  /// False for the empty reference. It can be sent and compared, but not used.
  explicit operator bool() const { return state_ != nullptr; }
  /// True when the value is on this worker. Throws (as all below): RpcError for the empty reference.
  bool is_owner() const { return state().is_owner; }
  const WorkerInfo& owner() const { return state().owner; }
  const std::string& owner_name() const { return state().owner.name; }
  /// The owner's life that has the value; on the owner itself the incarnation is 0.
  Life owner_life() const { return detail::owner_life(state()); }
  /// True once the owner has counted this reference. Always true on the owner.
  bool confirmed_by_owner() const { return detail::confirmed_by_owner(state()); }
  /// Done when the creating function has returned at the owner; fails with its error or Timeout. For a
  /// received reference: done when the owner has confirmed it.
  Future<void> created() const { return state().created; }
  RRefId id() const { return state().id; }
  /// The fork id of this worker's reference; on the owner it has no number.
  ForkId fork_id() const { return detail::fork_of(state()); }
  /// "OwnerRRef(RRefId(created_on=0, local_id=1))", "UserRRef(RRefId(...), ForkId(...), owner
  /// worker 'ps' (0))".
  std::string str() const { return detail::describe(state_.get()); }

  /// Equal: both refer to the same value.
  friend bool operator==(const RRefBase& a, const RRefBase& b) {
    return a.state_ == b.state_ || (a.state_ && b.state_ && a.state_->id == b.state_->id);
  }
  const detail::StatePtr& state_ptr() const { return state_; }

 protected:
  RRefBase() = default;
  explicit RRefBase(detail::StatePtr state) : state_(std::move(state)) {}
  const detail::RRefState& state() const {
    if (!state_) detail::throw_empty();
    return *state_;
  }
  detail::StatePtr state_;
};
inline std::string to_string(const RRefBase& r) { return r.str(); }

template <class T> class RRef;

/// A reference with a timeout for the calls made through it. It may be kept and reused.
template <class T> class RRefProxy {
 public:
  RRefProxy(RRef<T> rref, Duration limit) : rref_(std::move(rref)), limit_(limit) {}
  template <auto M, class... A> auto rpc_sync(A&&... args) const;
  template <auto M, class... A> auto rpc_async(A&&... args) const;
  template <auto M, class... A> auto remote(A&&... args) const;
  T to_here() const { return rref_.to_here(limit_); }

 private:
  RRef<T> rref_;
  Duration limit_;
};

/// A remote reference to a T. Only to_here needs a codec of T. With make_rref and remote, T need not be
/// copyable or movable.
template <class T> class RRef : public RRefBase {
 public:
  using value_type = T;

  /// The empty reference.
  RRef() = default;
  /// A reference to a value that is moved in; this worker is the owner. Throws: RpcError "RPC has
  /// not been initialized".
  template <class U = T>
  requires(std::is_same_v<U, T> && !std::is_void_v<U> && std::is_move_constructible_v<U>) explicit RRef(
      U value, std::source_location at = std::source_location::current())
      : RRef(std::make_shared<U>(std::move(value)), at) {}
  /// The same for a shared value; `value` must not be null.
  explicit RRef(std::shared_ptr<T> value, std::source_location at = std::source_location::current())
      : RRefBase(detail::own(std::move(value), &value_type_of(), {"RRef", at.file_name(), at.line()})) {}
  explicit RRef(detail::StatePtr state) : RRefBase(std::move(state)) {}

  /// A copy of the value. Blocks until the value is made and one round trip is done, at most for `timeout`;
  /// unset: the agent's default. On the owner it copies without a message. Throws: the error of the creation,
  /// Timeout, OwnerLost.
  T to_here(std::optional<Duration> timeout = {}) const;
  /// The same without waiting; the future has the value or the error.
  Future<T> to_here_async(std::optional<Duration> timeout = {}) const;

  /// The value, on its owner; blocks until it is made. Throws: RpcError on another worker ("cannot call
  /// local_value() ..."); the error of the creation; Timeout.
  std::add_lvalue_reference_t<T> local_value() const { return *local_ptr(); }
  /// The same as a shared pointer.
  std::shared_ptr<T> local_ptr() const {
    return std::static_pointer_cast<T>(detail::owned_value(state(), &value_type_of(), {}));
  }

  /// Calls a method on the owner, `r.rpc_sync<&C::m>(args...)`, and blocks until its reply or the
  /// default timeout. One round trip, like a plain call. Throws: as rpc::rpc_sync; the error of the
  /// value's creation; OwnerLost.
  template <auto M, class... A> auto rpc_sync(A&&... args) const {
    return rpc_async_within<M>({}, std::forward<A>(args)...).take();
  }
  /// The same without waiting; returns a Future, which a WaitAll of this thread collects.
  template <auto M, class... A> auto rpc_async(A&&... args) const {
    return detail::noted(rpc_async_within<M>({}, std::forward<A>(args)...));
  }
  /// The same for a value on `device` of its worker. All tensor arguments arrive on that device, independent
  /// of the device maps. Results on a device without an entry in the map return on the CPU.
  template <auto M, class... A> auto rpc_async_on(Device device, A&&... args) const;
  /// Calls a method on the owner and leaves the result there; returns a reference to the result at once.
  template <auto M, class... A> auto remote(A&&... args) const {
    return remote_within<M>({}, std::forward<A>(args)...);
  }
  /// The same calls, and to_here, with a timeout.
  RRefProxy<T> within(Duration limit) const { return RRefProxy<T>(*this, limit); }

  /// Runs the backward pass from this value, a scalar tensor, on its owner, and blocks until it is done. With
  /// the id of an autograd context it runs dist_autograd::backward; any worker may call it. Gradients go into
  /// the context, on every worker that the graph reaches. Without a context it runs Tensor::backward on the
  /// owner: gradients go into grad(), and only the option retain_graph counts. Throws: AutogradError without
  /// a context off the owner, and for a context unknown to the owner. AutogradError for a value that is not a
  /// scalar, is a leaf or does not require grad. The error of the value's creation; OwnerLost; as
  /// dist_autograd::backward.
  void backward(std::optional<int64_t> context_id = {},
                const dist_autograd::BackwardOptions& options = {}) const;

 private:
  friend class RRefProxy<T>;
  template <auto M, class... A> auto rpc_async_within(std::optional<Duration> limit, A&&... args) const {
    return send_method<M>(limit, {}, std::forward<A>(args)...);
  }
  template <auto M, class... A>
  auto send_method(std::optional<Duration> limit, std::optional<Device> device, A&&... args) const;
  template <auto M, class... A> auto remote_within(std::optional<Duration> limit, A&&... args) const;
  static const ValueType& value_type_of() { return rpc::value_type<T>; }
};
template <class T> RRef(T) -> RRef<T>;
template <class T> RRef(std::shared_ptr<T>) -> RRef<T>;

/// Constructs a T on this worker and returns a reference to it. T need not be copyable or movable. Throws:
/// RpcError without an agent; the constructor's error.
template <class T, class... A> RRef<T> make_rref(A&&... args) {
  return RRef<T>(std::make_shared<T>(std::forward<A>(args)...));
}

/// A To that records its source location for leak reports. It accepts the same values: "ps",
/// 0, {"ps", 500ms}.
class Destination : public To {
 public:
  template <class Where>
  requires std::is_constructible_v<To, const Where&> Destination(
      const Where& where, std::source_location at = std::source_location::current())
      : To(where), at_(at) {}
  template <class Where>
  requires std::is_constructible_v<To, const Where&> Destination(
      const Where& where, Duration timeout, std::source_location at = std::source_location::current())
      : To(where, timeout), at_(at) {}
  const std::source_location& at() const { return at_; }

 private:
  std::source_location at_;
};

/// Runs F(args...) on `to`, leaves the result there and returns a reference to it at once. The destination's
/// timeout limits the creation, the run of F included; without one the agent's default applies. After that
/// time every use throws Timeout "RRef creation via rpc.remote() timed out". Throws: ValueError for an
/// unknown worker; RpcError without an agent. All other errors are thrown at the use of the reference.
template <auto F, class... A>
auto remote(const Destination& to, A&&... args) -> RRef<typename detail::FunctionTraits<F>::Answer>;

/// Constructs a T(args...) on `to`; otherwise as above. Integers are sent as int64_t, floating numbers as
/// double, text as std::string.
template <class T, class... A>
requires std::is_class_v<T> RRef<T> remote(const Destination& to, A&&... args);

// ---- leaks

/// Treatment of leaks: references that other workers still hold when a graceful shutdown begins. Shutdown
/// deletes them in any case.
enum class LeakPolicy : uint8_t {
  kReport,  ///< leaked_rrefs() lists them
  kThrow,   ///< and shutdown throws RpcError with their texts, after it has left
};
/// A leaked reference.
struct LeakedRRef {
  RRefId rref;
  ForkId fork;
  WorkerInfo owner, user;
  /// origin of the user's reference: "remote 'make_table' at train.cpp:42", "received from worker 'a' (1)"
  std::string site;
};
WEFT_API std::string to_string(const LeakedRRef& leak);
/// Sets the policy for the graceful shutdown of this agent; the default is kReport.
/// Thread safety (this and below): any thread.
WEFT_API void set_leak_policy(Agent& agent, LeakPolicy policy);
/// On the owner: the leaks that the graceful shutdown found.
WEFT_API std::vector<LeakedRRef> leaked_rrefs(Agent& agent);

/// Empty references can be sent too. The type is part of signatures.
template <class T> struct Codec<RRef<T>> {
  static std::string name() { return "RRef<" + detail::type_name<T>() + ">"; }
  static void encode(Encoder& out, const RRef<T>& v) { detail::encode_reference(out, v.state_ptr()); }
  static RRef<T> decode(Decoder& in) { return RRef<T>(detail::decode_reference(in, &value_type<T>)); }
};

/// The body of RRef<Tensor>::backward; defined in autograd/dist_rref.cpp.
WEFT_API void backward_from(const RRef<Tensor>& root, std::optional<int64_t> context_id,
                            const dist_autograd::BackwardOptions& options);

}  // namespace weft::rpc

template <class T> struct std::hash<weft::rpc::RRef<T>> {
  size_t operator()(const weft::rpc::RRef<T>& r) const {
    return r ? std::hash<weft::rpc::RRefId>()(r.id()) : 0;
  }
};

#include <weft/distributed/rref/rref_inl.h>
