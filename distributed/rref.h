// RRef<T>: a reference to a value that lives on one worker, its owner, and is shared by all.
//
//   RRef<Tensor> y = remote<my_add>("ps", a, b);                  // made there; returns at once
//   Tensor here = y.to_here();                                    // a copy, one round trip
//   RRef<EmbeddingTable> table = remote<EmbeddingTable>("ps", ntoken, ninp);
//   Tensor e = table.rpc_sync<&EmbeddingTable::forward>(ids);     // runs where the table is
//   auto f = table.within(500ms).rpc_async<&EmbeddingTable::forward>(ids);
//   rpc_sync<train>("worker2", table);                            // travels: as argument, result, in containers and structs, nested
//   RRef<Model> mine = make_rref<Model>(args...);                 // owned here; others reach it once it is sent
//
// The value lives as long as any worker has a reference; RRef copies on one worker share one. A reference that arrives as an argument is
// confirmed by the owner before the function starts. An error of the creating function lives in the reference: to_here() and methods
// throw it. A dead user's references disappear at the owner; a dead owner makes every use throw OwnerLost at once.
// What holds and why is told at the head of references.cpp.
// Thread safety: RRef as a plain value (copies may be used from different threads); what it refers to: methods may run at once, unless
// the class says `using rpc_serialized = void;`.
#pragma once

#include <weft/distributed/backward_options.h>
#include <weft/distributed/rpc.h>
#include <weft/distributed/rref_state.h>

namespace weft::rpc {

/// The part of an RRef that does not depend on T.
class WEFT_API RRefBase {
 public:
  /// False for the empty reference, which travels and compares but cannot be used.
  explicit operator bool() const { return state_ != nullptr; }
  /// Is the value on this worker? Throws (as all below): RpcError for the empty reference.
  bool is_owner() const { return state().is_owner; }
  const WorkerInfo& owner() const { return state().owner; }
  const std::string& owner_name() const { return state().owner.name; }
  /// Does the owner know of this reference? Always true on the owner.
  bool confirmed_by_owner() const { return detail::confirmed_by_owner(state()); }
  /// Done when the creating function has returned at the owner, or with its error, or with Timeout. For references that came from
  /// elsewhere: done once confirmed.
  Future<void> created() const { return state().created; }
  RRefId id() const { return state().id; }
  /// Of this worker's hold; no number on the owner.
  ForkId fork_id() const { return detail::fork_of(state()); }
  /// "OwnerRRef(RRefId(created_on=0, local_id=1))", "UserRRef(RRefId(...), ForkId(...), owner worker 'ps' (0))".
  std::string str() const { return detail::describe(state_.get()); }

  /// Equal: they refer to one value.
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

/// A reference with a time limit for what is done through it; may be kept and used again.
template <class T> class Within {
 public:
  Within(RRef<T> rref, Duration limit) : rref_(std::move(rref)), limit_(limit) {}
  template <auto M, class... A> auto rpc_sync(A&&... args) const;
  template <auto M, class... A> auto rpc_async(A&&... args) const;
  template <auto M, class... A> auto remote(A&&... args) const;
  T to_here() const { return rref_.to_here(limit_); }

 private:
  RRef<T> rref_;
  Duration limit_;
};

/// T: any type; it needs a codec for to_here alone, and need be neither copyable nor movable when made by make_rref or remote.
template <class T> class RRef : public RRefBase {
 public:
  using value_type = T;

  /// The empty reference.
  RRef() = default;
  /// A reference, owned by this worker, to a value that moves in. Throws: RpcError "RPC has not been initialized".
  template <class U = T>
  requires(std::is_same_v<U, T> && !std::is_void_v<U> && std::is_move_constructible_v<U>) explicit RRef(
      U value, std::source_location at = std::source_location::current())
      : RRef(std::make_shared<U>(std::move(value)), at) {}
  /// To a value that others here may hold as well; not null.
  explicit RRef(std::shared_ptr<T> value, std::source_location at = std::source_location::current())
      : RRefBase(detail::own(std::move(value), &value_type_of(), {"RRef", at.file_name(), at.line()})) {}
  explicit RRef(detail::StatePtr state) : RRefBase(std::move(state)) {}

  /// A copy of the value, brought here (on the owner: of the value itself, without a message). One round trip; may be asked for before
  /// the value is made, and then waits. Throws: the error of its creation, Timeout, OwnerLost.
  T to_here(std::optional<Duration> timeout = {}) const;
  Future<T> to_here_async(std::optional<Duration> timeout = {}) const;

  /// The value on its owner; waits until it is made. Throws: RpcError elsewhere ("cannot call local_value() ..."); the error of creation.
  std::add_lvalue_reference_t<T> local_value() const { return *local_ptr(); }
  /// The same as a pointer that keeps the value.
  std::shared_ptr<T> local_ptr() const {
    return std::static_pointer_cast<T>(detail::owned_value(state(), &value_type_of(), {}));
  }

  /// Runs a method where the value is: `r.rpc_sync<&C::m>(args...)`. Costs what a plain call costs. Throws: as rpc::rpc_sync; the error of
  /// the value's creation; OwnerLost.
  template <auto M, class... A> auto rpc_sync(A&&... args) const {
    return rpc_async_within<M>({}, std::forward<A>(args)...).take();
  }
  template <auto M, class... A> auto rpc_async(A&&... args) const {
    return noted(rpc_async_within<M>({}, std::forward<A>(args)...));
  }
  /// The same for a value that works on `device` of its worker, whatever the device maps say of arguments: tensors among them arrive on that device,
  /// and results on a device that the map does not name come back on the cpu.
  template <auto M, class... A> auto rpc_async_on(Device device, A&&... args) const;
  /// The same with the result staying there.
  template <auto M, class... A> auto remote(A&&... args) const {
    return remote_within<M>({}, std::forward<A>(args)...);
  }
  /// All of these, and to_here, with a time limit.
  Within<T> within(Duration limit) const { return Within<T>(*this, limit); }

  /// The backward pass from this value, a scalar tensor, where it lives. With the id of an autograd context it is dist_autograd::backward on the
  /// owner, asked for from any worker: gradients go into the context on every worker that the graph leads to. Without one it is
  /// Tensor::backward, on the owner alone: gradients go into grad(), and of the options only retain_graph counts.
  /// Throws: AutogradError for a user's reference without a context, for a context the owner has not heard of, and for a value that is no root
  /// (no scalar, does not require grad, a leaf); the error of the value's creation; OwnerLost; as dist_autograd::backward.
  void backward(std::optional<int64_t> context_id = {},
                const dist_autograd::BackwardOptions& options = {}) const;

 private:
  friend class Within<T>;
  template <auto M, class... A> auto rpc_async_within(std::optional<Duration> limit, A&&... args) const {
    return send_method<M>(limit, {}, std::forward<A>(args)...);
  }
  template <auto M, class... A>
  auto send_method(std::optional<Duration> limit, std::optional<Device> device, A&&... args) const;
  template <auto M, class... A> auto remote_within(std::optional<Duration> limit, A&&... args) const;
  template <class R> static Future<R> noted(Future<R> future);
  static const ValueType& value_type_of() { return rpc::value_type<T>; }
};
template <class T> RRef(T) -> RRef<T>;
template <class T> RRef(std::shared_ptr<T>) -> RRef<T>;

/// Makes a T here and a reference to it; T need be neither copyable nor movable.
template <class T, class... A> RRef<T> make_rref(A&&... args) {
  return RRef<T>(std::make_shared<T>(std::forward<A>(args)...));
}

/// A destination that knows where it was written, for leak reports. Converts from whatever To does: "ps", 0, {"ps", 500ms}.
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

/// Runs F(args...) on `to` and leaves the result there. Returns at once. A time given with the destination bounds the creation, the
/// function included: after it every use throws Timeout "RRef creation via rpc.remote() timed out". Without one the agent's default holds.
/// Throws: ValueError for an unknown worker; RpcError without an agent. All else shows when the reference is used.
template <auto F, class... A>
auto remote(const Destination& to, A&&... args) -> RRef<typename detail::FunctionTraits<F>::Answer>;

/// Makes a T(args...) on `to`. Integers arrive as int64_t, floating numbers as double, text as std::string.
template <class T, class... A>
requires std::is_class_v<T> RRef<T> remote(const Destination& to, A&&... args);

// ---- leaks

/// What a graceful shutdown does about references that other workers still held when it began. They are deleted in any case.
enum class LeakPolicy : uint8_t {
  kReport,  ///< leaked_rrefs() tells of them
  kThrow,   ///< and shutdown throws RpcError with the same text, after having left
};
struct LeakedRRef {
  RRefId rref;
  ForkId fork;
  WorkerInfo owner, user;
  std::string
      site;  ///< where the user got it: "remote 'make_table' at train.cpp:42", "received from worker 'a' (1)"
};
WEFT_API std::string to_string(const LeakedRRef& leak);
WEFT_API void set_leak_policy(Agent& agent, LeakPolicy policy);
/// On the owner: what the graceful shutdown found.
WEFT_API std::vector<LeakedRRef> leaked_rrefs(Agent& agent);

/// Empty references travel too; the type is part of signatures.
template <class T> struct Codec<RRef<T>> {
  static std::string name() { return "RRef<" + detail::type_name<T>() + ">"; }
  static void encode(Encoder& out, const RRef<T>& v) { detail::encode_reference(out, v.state_ptr()); }
  static RRef<T> decode(Decoder& in) { return RRef<T>(detail::decode_reference(in, &value_type<T>)); }
};

/// What RRef<Tensor>::backward calls; a function of distributed autograd.
WEFT_API void backward_from(const RRef<Tensor>& root, std::optional<int64_t> context_id,
                            const dist_autograd::BackwardOptions& options);

}  // namespace weft::rpc

template <class T> struct std::hash<weft::rpc::RRef<T>> {
  size_t operator()(const weft::rpc::RRef<T>& r) const {
    return r ? std::hash<weft::rpc::RRefId>()(r.id()) : 0;
  }
};

#include <weft/distributed/rref_inl.h>
