// The tape: a Node is one recorded operation, an Edge says which output of which node a tensor is. Nodes own what backward needs and
// point at the nodes of their inputs; leaves end in AccumulateGrad. Destruction is iterative: a chain of a million nodes is fine.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include <weft/autograd/small_vector.h>
#include <weft/tensor/tensor.h>

namespace weft {

class Node;
class Pass;
struct Slot;

/// Gradients by slot; an undefined Tensor is an absent (zero) gradient.
using GradList = SmallVector<Tensor, 3>;

/// Output `slot` of `node`; the null edge belongs to tensors that need no gradient.
struct Edge {
  Ref<Node> node;
  uint32_t slot = 0;
};
using EdgeList = SmallVector<Edge, 3>;

/// Sizes, dtype and device that a gradient arriving at a slot must have; the engine sums broadcast dims away and casts.
struct SlotMeta {
  Shape sizes;
  DType dtype = kFloat32;
  Device device;
};

/// Which inputs' gradients are wanted, by position.
class Needs {
 public:
  explicit Needs(uint64_t mask) : mask_(mask) {}
  bool operator[](int i) const { return i >= 64 || (mask_ >> i & 1u); }

 private:
  uint64_t mask_;
};

class WEFT_API Node : public RefCounted {
 public:
  explicit Node(const char* name) : name_(name), sequence_(next_sequence()) {}
  static void* operator new(size_t bytes);  // thread-local free lists by size
  static void operator delete(void* p, size_t bytes) noexcept;
  static void destroy(Node* n) noexcept;  // iterative

  /// Gradients of the outputs in, gradients of the inputs out, one per edge. Called by the engine alone.
  virtual GradList apply(GradList grads, Pass& pass) = 0;
  /// Frees saved tensors once a pass without retain_graph is through; a later apply throws.
  virtual void release_saved() noexcept {}
  /// True where the graph goes on elsewhere (a recv node): marking reports the slots reached, and nothing is executed past it here.
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
  struct Extras;                         ///< hooks, anomaly text: rare, made on demand (autograd/extras.h)
  std::atomic<Extras*> extras{nullptr};  ///< owned
};

/// The edge of a tensor: its node and slot, its AccumulateGrad when it is a leaf that requires grad, else null.
WEFT_API Edge gradient_edge(const Tensor& x);

}  // namespace weft
