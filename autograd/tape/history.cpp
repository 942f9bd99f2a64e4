// In-place writes and the history of views. A write to x replaces x's history by the new node. If x is a
// view, its base gets the new history instead. That is a CopySlices node, which runs the write's backward on
// the written part of the base's gradient. x and all other views of the base rebuild their history at their
// next use, as strided views of the base. A write whose history cannot be recorded is refused before anything
// is written. An output that an unrecorded function made as a view has a history that its base lacks. It
// becomes independent once nothing else holds the base, and refuses writes before.
#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/tracer.h>

namespace weft::detail {
namespace {

/// History of a base after a write to one of its views. Edges: the base's old edge, then the write's other
/// inputs.
class CopySlices final : public Node {
 public:
  CopySlices(Ref<Node> write, Geometry base, Geometry view)
      : Node(write->name()), write_(std::move(write)), base_(base), view_(view) {}
  ~CopySlices() override = default;

  GradList apply(GradList grads, Pass& pass) override {
    const Tensor g = grads[0];
    // Under create_graph a saved output of the write must have this node as its history, through the view.
    AutogradState& state = autograd_state();
    Ref<Node> shown;
    if (grad_enabled()) shown = strided_view_edge({Ref<Node>::share(this), 0}, slots()[0], base_, view_).node;
    GradList part;
    part.push_back(strided_view(g, base_, view_));
    Node* before = std::exchange(state.current, shown ? shown.get() : this);
    GradList given;
    try {
      given = write_->apply(std::move(part), pass);
    } catch (...) {
      state.current = before;
      throw;
    }
    state.current = before;
    GradList out(edges().size());
    if (edges()[0].node) {
      Tensor old = !given.empty() ? given[0] : Tensor();
      if (old.defined()) old = sum_to(cast_to(old, g.dtype()), view_.sizes);
      else old = zeros(view_.sizes, {.dtype = g.dtype(), .device = g.device()});
      out[0] = strided_place(g, old, base_, view_);
    }
    for (size_t i = 1; i < out.size() && i < given.size(); ++i) out[i] = given[i];
    return out;
  }
  void release_saved() noexcept override { write_->release_saved(); }

 private:
  Ref<Node> write_;
  Geometry base_, view_;
};

}  // namespace

void refresh_view(const Tensor& x) {
  TensorBody& b = x.body();
  if (!b.slot) return;
  Slot& slot = static_cast<Slot&>(*b.slot);
  if (!slot.base.defined()) return;
  const Slot* base = slot_of(slot.base);
  if (!base) return;
  static std::mutex mutex;  // rarely taken: once per view after a write to its base
  if (base->rewrites == std::atomic_ref(slot.base_rewrites).load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex);
  if (base->rewrites == slot.base_rewrites) return;
  if (slot.owns_accumulator)
    throw AutogradError(str("a view of sizes ", b.sizes,
                            " that is itself a leaf shares memory with a tensor whose history was rewritten "
                            "by an in-place write"));
  if (slot.base.requires_grad()) {
    set_edge(b, strided_view_edge(gradient_edge(slot.base), {b.sizes, b.dtype, b.device},
                                  geometry_of(slot.base), geometry_of(x)));
  }
  std::atomic_ref(slot.base_rewrites).store(base->rewrites, std::memory_order_release);
}

void check_in_place(const char* name, const Tensor& x, bool wanted) {
  const TensorBody& b = x.body();
  if (overlaps_itself(b.sizes, b.strides))
    throw ShapeError(str(name, ": in-place write to a tensor that shows elements twice: sizes ", b.sizes,
                         ", strides ", b.strides, "; clone() it first"));
  if (b.storage->is_read_only())
    throw ValueError(str(name, ": in-place write of sizes ", b.sizes, ": the tensor ",
                         b.storage->read_only_reason(), "; clone() it first"));
  if (!grad_enabled()) return;
  if (x.requires_grad() && x.is_leaf())
    throw AutogradError(str(name, ": in-place write to a leaf of sizes ", b.sizes,
                            " that requires grad; do it under NoGrad"));
  if (b.follows_base && x.requires_grad() && !slot_of(x)->base.requires_grad()) {
    forget_dead_base(x);
    if (b.follows_base)
      throw AutogradError(
          str(name, ": in-place write of sizes ", b.sizes, " to an output of ", slot_of(x)->edge.node->name(),
              " that was made as a view and shares its memory: the gradient would be lost. clone() it first, "
              "or write under NoGrad"));
  }
  const Tensor& root = b.follows_base ? slot_of(x)->base : x;
  if (b.follows_base && root.requires_grad() && root.is_leaf())
    throw AutogradError(str(name, ": in-place write to a view of a leaf of sizes ", root.sizes(),
                            " that requires grad; do it under NoGrad"));
  const void* recorded = b.storage->history();
  if (recorded && recorded != &root.body() && (wanted || !b.storage->history_is_leaf()))
    throw AutogradError(
        str(name, ": in-place write of sizes ", b.sizes,
            " to memory of another tensor that is part of a graph, through a detached alias: its gradient "
            "would be wrong. clone() first, or write under NoGrad"));
  if (wanted && b.follows_base && overlaps_itself(root.sizes(), root.strides()))
    throw AutogradError(str(name, ": in-place write to a view of a tensor that shows elements twice: sizes ",
                            root.sizes(), ", strides ", root.strides()));
  if (wanted && !is_floating(b.dtype))
    throw AutogradError(str(name, ": the tensor written to holds ", b.dtype, " and cannot carry a gradient"));
}

void link_in_place(Ref<Node> node, const Tensor& x, Inputs others) {
  TensorBody& b = x.body();
  if (tracer()) [[unlikely]]
    refuse_trace_outside(*b.storage, "changes the history of a tensor from outside");
  const Edge old = x.requires_grad() ? gradient_edge(x) : Edge();
  EdgeList edges;
  edges.push_back(old);
  for (const InputRef& in : others)
    edges.push_back(in.t->defined() && in.t->requires_grad() ? gradient_edge(*in.t) : Edge());
  node->slots().push_back({b.sizes, b.dtype, b.device});
  if (!b.follows_base) {
    node->edges() = std::move(edges);
    ++make_slot(x).rewrites;
    set_edge(b, {std::move(node), 0});
    return;
  }
  const Tensor base = slot_of(x)->base;
  TensorBody& root = base.body();
  Ref<Node> slices = Ref<Node>::adopt(new CopySlices(node, geometry_of(base), geometry_of(x)));
  slices->slots().push_back({root.sizes, root.dtype, root.device});
  slices->edges() = edges;
  slices->edges()[0] = base.requires_grad() ? gradient_edge(base) : Edge();
  node->edges() = std::move(edges);  // the edges determine which gradients the write computes
  ++make_slot(base).rewrites;
  set_edge(root, {std::move(slices), 0});
  refresh_view(x);
}

}  // namespace weft::detail
