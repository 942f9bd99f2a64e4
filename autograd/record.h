// How an op is put on the tape. An op body reads:
//   Tensor tanh(In x) {
//     Tensor y = launch::unary(Unary::kTanh, x);
//     return record("tanh", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList { return {tanh_grad(g, y.get())}; });
//   }
// `backward(g, needs)` returns one gradient per input (undefined where needs[i] is false is welcome); the engine accumulates, sums
// broadcast dims and casts. Formulas use our own ops, so they are differentiable under create_graph.
#pragma once

#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <weft/autograd/grad_mode.h>
#include <weft/autograd/node.h>

namespace weft {

/// An op's tensor argument: converts from Tensor. For a parameter marked concurrent it holds a snapshot of the current value, so
/// that an optimizer step on another thread neither tears the read nor changes what is saved for backward.
class WEFT_API In {
 public:
  In(const Tensor& t) : t_(&t) {
    if (t.defined() && t.body_ptr()->lock.load(std::memory_order_acquire)) pin();
  }
  In(const In&) = delete;
  operator const Tensor&() const { return *t_; }
  const Tensor& get() const { return *t_; }
  const Tensor* operator->() const { return t_; }

 protected:
  void lower();
  void widen();

 private:
  void pin();
  const Tensor* t_;
  Tensor pinned_;
};

/// An argument that an Autocast brings to its half type.
class Lower : public In {
 public:
  Lower(const Tensor& t) : In(t) {
    if (autograd_state().autocast != kFloat32) lower();
  }
};
/// An argument that an Autocast brings from a half type to float32.
class Wide : public In {
 public:
  Wide(const Tensor& t) : In(t) {
    if (autograd_state().autocast != kFloat32) widen();
  }
};
/// An argument of an op whose kernel takes half types on an accelerator alone.
class LowerOnDevice : public In {
 public:
  LowerOnDevice(const Tensor& t) : In(t) {
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
struct Packed;  // autograd/saved_hooks.cpp
WEFT_API void drop_packed(Packed* p) noexcept;
}  // namespace detail

/// A tensor kept for backward: an alias without history and, apart from it, the edge it had, so that no cycle can arise. get() throws
/// AutogradError, naming the op, when it was written in place since. Empty while grad mode is off.
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
  detail::Packed* packed_ = nullptr;  ///< counted; instead of t_ while SavedTensorHooks are in force
  uint32_t version_ = 0;
};

/// The same for an op's own output: holds no reference to the node it lives in; get() links it to the node that runs.
class WEFT_API SavedOutput : public Saved {
 public:
  SavedOutput() = default;
  /// `writes_ahead`: in-place ops build their closure before they write; 1 says that the value saved is the one after that write.
  explicit SavedOutput(const Tensor& y, uint32_t slot = 0, uint32_t writes_ahead = 0);
  Tensor get() const;

 private:
  uint32_t slot_ = 0;
};

namespace detail {
/// True when grad mode is on and an input requires grad.
WEFT_API bool wants_record(Inputs inputs);
WEFT_API bool wants_record(std::span<const Tensor> inputs);
[[noreturn]] WEFT_API void throw_released(const char* name);

/// A node whose backward is a callable held inside it.
template <class F> class OpNode final : public Node {
 public:
  template <class G> OpNode(const char* name, G&& f) : Node(name) { new (&f_) F(std::forward<G>(f)); }
  ~OpNode() override { release_saved(); }
  GradList apply(GradList grads, Pass&) override {
    if (released_) throw_released(name());
    const Needs needs(needs_mask());
    if constexpr (std::is_invocable_v<F&, const Tensor&, Needs>) return f()(grads[0], needs);
    else return f()(std::as_const(grads), needs);
  }
  void release_saved() noexcept override {
    if constexpr (!std::is_trivially_destructible_v<F>)  // one that holds nothing can run again
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

WEFT_API void link(Ref<Node> node, std::span<Tensor> outputs, Inputs inputs);
WEFT_API void link(Ref<Node> node, std::span<Tensor> outputs, std::span<const Tensor> inputs);
WEFT_API void link_view(Ref<Node> node, Tensor& view, const Tensor& base);
WEFT_API void note_view(Tensor& view, const Tensor& base);
/// `wanted`: the write will be recorded.
WEFT_API void check_in_place(const char* name, const Tensor& x, bool wanted);
WEFT_API void link_in_place(Ref<Node> node, const Tensor& x, Inputs others);
}  // namespace detail

/// One output. F: GradList(const Tensor& g, Needs).
template <class F> Tensor record(const char* name, Tensor y, Inputs inputs, F&& backward) {
  if (detail::wants_record(inputs)) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), {&y, 1}, inputs);
  }
  return y;
}
/// One output of a list of inputs (cat, stack).
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
/// `y` is a view of `x` (shares its storage). An in-place write through it later reaches the base's history.
template <class F> Tensor record_view(const char* name, Tensor y, const Tensor& x, F&& backward) {
  if (detail::wants_record({x})) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link_view(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), y, x);
  } else {
    detail::note_view(y, x);
  }
  return y;
}
/// An op that overwrites `x`. `write` launches the kernel; `backward` returns the gradients of {old x, others...}. Checks first (a leaf that
/// requires grad, a view that cannot be rewritten: AutogradError, nothing written), then writes, bumps the version and links.
template <class W, class F>
void record_in_place(const char* name, const Tensor& x, Inputs others, W&& write, F&& backward) {
  const bool wanted = grad_enabled() && (x.requires_grad() || detail::wants_record(others));
  detail::check_in_place(name, x, wanted);
  write();
  x.body().storage->bump_version();
  if (wanted) {
    using Op = detail::OpNode<std::decay_t<F>>;
    detail::link_in_place(Ref<Node>::adopt(new Op(name, std::forward<F>(backward))), x, others);
  }
}

}  // namespace weft
