// The tape. A Node is one recorded operation; an Edge identifies an output of a node. Nodes own the data that
// backward needs and point at the nodes of their inputs; leaves have an AccumulateGrad node. Destruction is
// iterative, so a long chain of nodes does not overflow the stack.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include <weft/autograd/tape/small_vector.h>
#include <weft/tensor/tensor.h>

namespace weft {

class Node;
class Pass;
struct Slot;

/// Gradients by slot; an undefined Tensor is an absent (zero) gradient.
using GradList = SmallVector<Tensor, 3>;

/// Output `slot` of `node`. Tensors that need no gradient have a null edge.
struct Edge {
  Ref<Node> node;
  uint32_t slot = 0;
};
using EdgeList = SmallVector<Edge, 3>;

/// Sizes, dtype and device of the gradients of a slot. The engine sums broadcast dims and casts to match
/// them.
struct SlotMeta {
  Shape sizes;
  DType dtype = kFloat32;
  Device device;
};

/// Whether the gradient of input i is wanted.
class Needs {
 public:
  explicit Needs(uint64_t mask) : mask_(mask) {}
  bool operator[](int i) const { return i >= 64 || (mask_ >> i & 1u); }

 private:
  uint64_t mask_;
};

/// One recorded operation: its backward, the data saved for it, and the edges to its inputs.
class WEFT_API Node : public RefCounted {
 public:
  explicit Node(const char* name) : name_(name), sequence_(next_sequence()) {}
  static void* operator new(size_t bytes);  // thread-local free lists by size
  static void operator delete(void* p, size_t bytes) noexcept;
  static void destroy(Node* n) noexcept;  // iterative

  /// Computes the gradients of the inputs, one per edge, from the gradients of the outputs. Called by the
  /// engine only.
  virtual GradList apply(GradList grads, Pass& pass) = 0;
  /// Frees saved tensors after a pass without retain_graph; a later apply throws.
  virtual void release_saved() noexcept {}
  /// True for a recv node, whose graph continues in another process. Marking reports the slots that it
  /// reaches, and the pass executes nothing beyond the node.
  virtual bool is_boundary() const { return false; }
  virtual bool is_accumulate() const { return false; }

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  const EdgeList& edges() const { return edges_; }
  EdgeList& edges() { return edges_; }
  const SmallVector<SlotMeta, 1>& slots() const { return slots_; }
  SmallVector<SlotMeta, 1>& slots() { return slots_; }
  Device device() const { return slots_.empty() ? Device() : slots_[0].device; }

 protected:
  Node(const char* name, uint64_t sequence) : name_(name), sequence_(sequence) {}
  virtual ~Node();

 private:
  static uint64_t next_sequence();
  const char* name_;
  uint64_t sequence_;
  EdgeList edges_;
  SmallVector<SlotMeta, 1> slots_;

 public:
  /// hooks and anomaly text, allocated on demand (autograd/tape/inner/extras.h)
  struct Extras;
  std::atomic<Extras*> extras{nullptr};  ///< owned
};

/// The edge of a tensor: its node and slot; for a leaf that requires grad its AccumulateGrad node; else null.
WEFT_API Edge gradient_edge(const Tensor& x);

}  // namespace weft
