// Recording an operation on the tape. The body of an operation reads:
//   Tensor tanh(In x) {
//     Tensor y = launch::unary(Unary::kTanh, x);
//     return record("tanh", y, {x},
//                   [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
//                     return {g * (1 - square(y.get()))};
//                   });
//   }
// `backward(g, needs)` returns one gradient per input, which may be undefined if needs[i] is false. It may
// take g by value, to return it without a copy of the handle. The engine accumulates the gradients, sums
// broadcast dims and casts. Formulas consist of operations of this library, so they are differentiable under
// create_graph.
#pragma once

#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/node.h>

namespace weft {

/// A tensor argument of an operation; converts from Tensor. For a parameter marked concurrent it holds a
/// snapshot of the current value. So an optimizer step on another thread changes neither the read nor the
/// tensors saved for backward.
class WEFT_API In {
 public:
  In(const Tensor& t) : t_(&t) {
    if (t.defined() && t.body_ptr()->storage->lock()) pin();
  }
  In(const In&) = delete;
  operator const Tensor&() const { return *t_; }
  const Tensor& get() const { return *t_; }
  const Tensor* operator->() const { return t_; }

 protected:
  struct Unpinned {};
  In(const Tensor& t, Unpinned) : t_(&t) {}
  void lower();
  void widen();

 private:
  void pin();
  const Tensor* t_;
  Tensor pinned_;
};

/// The argument of a view, which reads no elements. It takes no snapshot, so a view of a parameter always
/// shows the parameter's current value.
class Viewed : public In {
 public:
  Viewed(const Tensor& t) : In(t, Unpinned{}) {}
};

/// An argument that an Autocast casts to its half dtype.
class AutocastArg : public In {
 public:
  AutocastArg(const Tensor& t) : In(t) {
    if (autograd_state().autocast != kFloat32) lower();
  }
};
/// An argument that an Autocast casts from a half dtype to float32.
class Fp32Arg : public In {
 public:
  Fp32Arg(const Tensor& t) : In(t) {
    if (autograd_state().autocast != kFloat32) widen();
  }
};
/// An argument of an operation whose kernel supports half dtypes on accelerators only: AutocastArg there,
/// Fp32Arg on the CPU.
class DeviceAutocastArg : public In {
 public:
  DeviceAutocastArg(const Tensor& t) : In(t) {
    if (autograd_state().autocast == kFloat32 || !t.defined()) return;
    if (t.device().is_cpu()) widen();
    else lower();
  }
};

/// One input of record().
struct InputRef {
  const Tensor* t;
  InputRef(const Tensor& x) : t(&x) {}
  InputRef(const In& x) : t(&x.get()) {}
};
using Inputs = std::initializer_list<InputRef>;

namespace detail {
struct Packed;  // autograd/tape/saved_hooks.cpp
WEFT_API void drop_packed(Packed* p) noexcept;
}  // namespace detail

/// A tensor kept for backward: an alias without history, and separately its edge, so that no cycle can arise.
/// get() throws AutogradError that names the operation if the tensor was written in place since, by an
/// optimizer step too. For a parameter marked concurrent it keeps the current block, to which no step writes.
/// Empty while grad mode is off.
class WEFT_API Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& x);
  explicit Saved(const In& x) : Saved(x.get()) {}
  Saved(Saved&& o) noexcept
      : t_(std::move(o.t_)),
        edge_(std::move(o.edge_)),
        packed_(std::exchange(o.packed_, nullptr)),
        version_(o.version_) {}
  Saved(const Saved& o);
  Saved& operator=(const Saved&) = delete;
  ~Saved() {
    if (t_.defined()) t_.body().storage->drop_save();
    if (packed_) detail::drop_packed(packed_);
  }
  bool defined() const { return t_.defined() || packed_; }
  Tensor get() const;

 protected:
  struct Output {};
  Saved(const Tensor& y, Output);
  Tensor linked(const Edge& edge) const;

  Tensor t_;
  Edge edge_;
  detail::Packed* packed_ = nullptr;  ///< reference-counted; replaces t_ inside a SavedTensorHooks scope
  uint32_t version_ = 0;
};

/// The same for an output of the operation. It holds no reference to the node that contains it; get() links
/// the tensor to the running node.
class WEFT_API SavedOutput : public Saved {
 public:
  SavedOutput() = default;
  /// `writes_ahead`: writes still to come before the saved value is final (1 for in-place operations, which
  /// build their closure before they write).
  explicit SavedOutput(const Tensor& y, uint32_t slot = 0, uint32_t writes_ahead = 0);
  Tensor get() const;

 private:
  uint32_t slot_ = 0;
};

namespace detail {
/// Whether grad mode is on and an input requires grad.
inline bool wants_record(Inputs inputs) {
  if (!grad_enabled()) return false;
  for (const InputRef& in : inputs)
    if (in.t->defined() && in.t->requires_grad()) return true;
  return false;
}
WEFT_API bool wants_record(std::span<const Tensor> inputs);
[[noreturn]] WEFT_API void throw_released(const char* name);

/// A node whose backward is a callable stored inside it.
template <class F> class OpNode final : public Node {
 public:
  template <class G> OpNode(const char* name, G&& f) : Node(name) { new (&f_) F(std::forward<G>(f)); }
  ~OpNode() override { release_saved(); }
  GradList apply(GradList grads, Pass&) override {
    if (released_) throw_released(name());
    const Needs needs(needs_mask());
    if constexpr (std::is_invocable_v<F&, const GradList&, Needs>) return f()(std::as_const(grads), needs);
    else return f()(std::move(grads[0]), needs);
  }
  void release_saved() noexcept override {
    if constexpr (!std::is_trivially_destructible_v<F>)  // without captures it can run again
      if (!std::exchange(released_, true)) f().~F();
  }

 private:
  F& f() { return *std::launder(reinterpret_cast<F*>(&f_)); }
  uint64_t needs_mask() const {
    uint64_t mask = 0;
    for (size_t i = 0; i < edges().size() && i < 64; ++i)
      mask |= static_cast<uint64_t>(static_cast<bool>(edges()[i].node)) << i;
    return mask;
  }
  bool released_ = false;
  alignas(F) unsigned char f_[sizeof(F)];
};

/// Gives the node edges to its inputs, and makes it the history of the outputs.
WEFT_API void link(Ref<Node> node, std::span<Tensor> outputs, Inputs inputs);
WEFT_API void link(Ref<Node> node, std::span<Tensor> outputs, std::span<const Tensor> inputs);
/// link() for a view of `base`. A later recorded write to either changes the history of both.
WEFT_API void link_view(Ref<Node> node, Tensor& view, const Tensor& base);
/// The same for a view without history, taken while nothing is recorded.
WEFT_API void note_view(Tensor& view, const Tensor& base);
/// Throws: AutogradError for a write that is not allowed. `wanted`: the write will be recorded.
WEFT_API void check_in_place(const char* name, const Tensor& x, bool wanted);
/// Makes the node, a write to x, the new history of x and of the base that x is a view of.
WEFT_API void link_in_place(Ref<Node> node, const Tensor& x, Inputs others);
}  // namespace detail

/// Records an operation with one output. F: GradList(const Tensor& g, Needs).
template <class F> Tensor record(const char* name, Tensor y, Inputs inputs, F&& backward) {
  if (detail::wants_record(inputs)) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), {&y, 1}, inputs);
  }
  return y;
}
/// The same with a list of inputs (cat, stack).
template <class F> Tensor record(const char* name, Tensor y, std::span<const Tensor> inputs, F&& backward) {
  if (detail::wants_record(inputs)) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), {&y, 1}, inputs);
  }
  return y;
}
/// Several outputs. F: GradList(const GradList& gs, Needs); undefined entries are absent.
template <class F> void record(const char* name, std::span<Tensor> outputs, Inputs inputs, F&& backward) {
  if (detail::wants_record(inputs)) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), outputs, inputs);
  }
}
/// The same with a list of inputs.
template <class F>
void record(const char* name, std::span<Tensor> outputs, std::span<const Tensor> inputs, F&& backward) {
  if (detail::wants_record(inputs)) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), outputs, inputs);
  }
}
/// Records `y` as a view of `x`, whose storage it shares. A later in-place write through the view updates the
/// history of its base.
template <class F> Tensor record_view(const char* name, Tensor y, const Tensor& x, F&& backward) {
  if (detail::wants_record({x})) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link_view(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), y, x);
  } else if (!autograd_state().inference) {
    detail::note_view(y, x);
  }
  return y;
}
/// Records an operation that overwrites `x`. `write` launches the kernel; `backward` returns the gradients of
/// {old x, others...}. It checks first, then writes, increments the version and links the node. Throws,
/// before the write: AutogradError for a leaf that requires grad or a view whose history cannot be changed.
template <class W, class F>
void record_in_place(const char* name, const Tensor& x, Inputs others, W&& write, F&& backward) {
  const bool wanted = grad_enabled() && (x.requires_grad() || detail::wants_record(others));
  detail::check_in_place(name, x, wanted);
  {
    struct Partial {  // a write that ends in an error does not count, but may have begun
      Storage* storage;
      ~Partial() {
        if (storage) storage->forget_packs();
      }
    } partial{x.body().storage.get()};
    write();
    partial.storage = nullptr;
  }
  x.body().storage->bump_version();
  if (wanted) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link_in_place(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), x, others);
  }
}

}  // namespace weft
