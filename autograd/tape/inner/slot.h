// The tape's data in a tensor body: its edge, its gradient, and for a view the tensor whose history it
// follows. A leaf that requires grad owns an AccumulateGrad node, which recorded graphs hold too. The node
// has a pointer to the leaf that the leaf's destructor clears, so the node does not keep the leaf alive. A
// leaf whose requires_grad is switched off keeps its node for the time when it is switched on again.
#pragma once

#include <mutex>

#include <weft/autograd/tape/node.h>

namespace weft {

class AccumulateGrad;

struct Slot : AutogradSlot {
  static void* operator new(size_t bytes);
  static void operator delete(void* p) noexcept;
  ~Slot() override;

  Edge edge;                   ///< producer; a leaf's AccumulateGrad; null without gradient
  Tensor grad;                 ///< guarded by grad_mutex(); written by the local sink and by retain_grad
  Tensor base;                 ///< a view: the tensor it was taken from, itself no view
  uint32_t base_rewrites = 0;  ///< a view: base's `rewrites` when `edge` was created
  uint32_t rewrites = 0;       ///< in-place writes that replaced the history
  /// edge.node is this body's own AccumulateGrad (a snapshot shares its leaf's)
  bool owns_accumulator = false;
  bool retains_grad = false;
  Ref<Node> paused;  ///< the AccumulateGrad of a leaf whose requires_grad is switched off

  std::mutex& grad_mutex();
};

/// The last node of a path: adds the gradient to a leaf.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(TensorBody* leaf);
  GradList apply(GradList grads, Pass& pass) override;
  bool is_accumulate() const override { return true; }
  /// The leaf is being destroyed: gradients for it are dropped.
  void forget();
  /// The leaf has another node `by`, which gets the hooks, or a history (null). From now on apply throws.
  void replace(const Ref<Node>& by);
  /// The node that has the hooks of the leaf; null if it is this one.
  Ref<Node> successor();
  /// The leaf, while it lives and takes gradients; else undefined.
  Tensor leaf();
  std::mutex mutex;  ///< guards the leaf's grad and the pointer below

 private:
  /// Whether the leaf takes a gradient now. Call it with `mutex` held. Throws: AutogradError after replace().
  bool takes() const;
  TensorBody* leaf_;
  Ref<Node> successor_;
  bool replaced_ = false;
};

namespace detail {
inline Slot* slot_of(const Tensor& x) { return static_cast<Slot*>(x.body().slot); }
Slot& make_slot(const Tensor& x);
/// Rebuilds the edge of a view that follows its base, if the base's history was replaced.
void refresh_view(const Tensor& x);
/// Makes a view independent if it is the only holder of its base, as in `zeros({6}).view({2, 3})`.
void forget_dead_base(const Tensor& x);
/// Replaces the history of a body that has a slot; retain_grad applies to the new history.
void set_edge(TensorBody& b, Edge edge);
/// Makes `x` (without history) a leaf that requires grad.
void make_leaf(const Tensor& x);
}  // namespace detail

}  // namespace weft
