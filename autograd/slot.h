// What the tape keeps in a tensor body (library internal): the edge that produced it, its gradient, and, for a view, the tensor whose
// history it follows. A leaf that requires grad owns an AccumulateGrad; recorded graphs hold that node, and the node knows the leaf
// through a pointer that the leaf clears when it dies, so neither keeps the other alive.
#pragma once

#include <mutex>

#include <weft/autograd/node.h>

namespace weft {

class AccumulateGrad;

struct Slot final : AutogradSlot {
  static void* operator new(size_t bytes);
  static void operator delete(void* p) noexcept;
  ~Slot() override;

  Edge edge;                   ///< producer; a leaf's AccumulateGrad; null when no gradient flows
  Tensor grad;                 ///< guarded by grad_mutex(); written by the local sink and by retain_grad
  Tensor base;                 ///< a view: the tensor it was taken from, itself no view
  uint32_t base_rewrites = 0;  ///< a view: base's `rewrites` when `edge` was made
  uint32_t rewrites = 0;       ///< in-place writes that replaced the history
  bool owns_accumulator =
      false;  ///< edge.node is this body's own AccumulateGrad (a snapshot shares its leaf's)
  bool retains_grad = false;

  std::mutex& grad_mutex();
};

/// The end of a path: adds what arrives to a leaf.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(TensorBody* leaf);
  GradList apply(GradList grads, Pass& pass) override;
  bool is_accumulate() const override { return true; }
  /// The leaf, undefined when it is gone.
  Tensor leaf();
  /// The leaf is being destroyed or stops requiring grad.
  void forget();
  std::mutex mutex;  ///< guards the leaf's grad and the pointer below

 private:
  TensorBody* leaf_;
};

namespace detail {
inline Slot* slot_of(const Tensor& x) { return static_cast<Slot*>(x.body().slot); }
Slot& make_slot(const Tensor& x);
/// Makes the edge of a view that follows its base current again after the base's history was rewritten.
void refresh_view(const Tensor& x);
/// A view whose base nobody else holds (`zeros({6}).view({2, 3})`) is a tensor of its own.
void forget_dead_base(const Tensor& x);
/// Replaces the history of a body that has a slot; retain_grad moves along.
void set_edge(TensorBody& b, Edge edge);
/// Makes `x` (without history) a leaf that requires grad.
void make_leaf(const Tensor& x);
}  // namespace detail

}  // namespace weft
