// Linking outputs to nodes (record, record_view), and tensors saved for backward (Saved, SavedOutput). A
// saved tensor remembers the version of its storage; get() compares the two to detect in-place writes.
#include <weft/autograd/tape/record.h>

#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/kernels/accelerator.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft {
namespace {

const char* current_name() {
  const Node* node = autograd_state().current;
  return node ? node->name() : "a saved tensor";
}

}  // namespace

// ---- saved tensors

Saved::Saved(const Tensor& x, Output) {
  if (!grad_enabled() || !x.defined()) return;
  if (autograd_state().saved_hooks) {
    packed_ = detail::pack(x);
    return;
  }
  const TensorBody& b = x.body();
  t_ = b.storage->lock() ? detail::held(x) : Tensor(Ref<TensorBody>::adopt(new TensorBody(b.storage, b)));
  Storage& kept = *t_.body().storage;
  version_ = kept.version();
  kept.add_save();
}

Saved::Saved(const Tensor& x) : Saved(x, Output{}) {
  if (defined() && x.requires_grad()) edge_ = gradient_edge(x);
}

Saved::Saved(const Saved& o) : t_(o.t_), edge_(o.edge_), packed_(o.packed_), version_(o.version_) {
  if (t_.defined()) t_.body().storage->add_save();
  if (packed_) detail::share_packed(packed_);
}

Tensor Saved::linked(const Edge& edge) const {
  if (!defined()) return Tensor();
  const Tensor t = packed_ ? detail::unpack(*packed_) : t_;
  if (!t.device().is_cpu()) {  // forward may have run on another stream than this pass
    Accelerator& device = accelerator(t.device());
    device.record_stream(t.body().storage->allocation(), device.current_stream());
  }
  const uint32_t found = t.version();
  if (!packed_ && found != version_)
    throw AutogradError(str(current_name(), ": a tensor of sizes ", t_.sizes(),
                            " that backward needs was written in place: found version ", found, ", expected ",
                            version_,
                            "; clone() it before the write, or call backward before the optimizer's step"));
  if (!grad_enabled() || !edge.node) return t;
  const TensorBody& b = t.body();
  Tensor y(Ref<TensorBody>::adopt(new TensorBody(b.storage, b)));
  detail::make_slot(y).edge = edge;
  y.body().requires_grad = true;
  return y;
}

Tensor Saved::get() const { return linked(edge_); }

SavedOutput::SavedOutput(const Tensor& y, uint32_t slot, uint32_t writes_ahead)
    : Saved(y, Output{}), slot_(slot) {
  version_ += writes_ahead;
}

Tensor SavedOutput::get() const {
  Node* self = autograd_state().current;
  return linked({grad_enabled() ? Ref<Node>::share(self) : Ref<Node>(), slot_});
}

// ---- linking

namespace detail {

bool wants_record(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& x : inputs)
    if (x.defined() && x.requires_grad()) return true;
  return false;
}

void throw_released(const char* name) {
  throw AutogradError(str(name,
                          ": backward through the graph a second time, after its saved tensors were freed; "
                          "pass retain_graph = true the first time (a pass that failed has freed them too)"));
}

namespace {

template <class List, class Get> void add_edges(Node& node, const List& inputs, Get&& get) {
  EdgeList& edges = node.edges();
  edges.reserve(edges.size() + inputs.size());
  for (const auto& in : inputs) {
    const Tensor& x = get(in);
    edges.push_back(x.defined() && x.requires_grad() ? gradient_edge(x) : Edge());
  }
}

void note_origin(Node& node, std::span<Tensor> outputs) {
  std::string text = str(node.name(), " -> ");
  for (const Tensor& y : outputs) text += str(y.defined() ? to_string(y.sizes()) : std::string("none"), " ");
  text += "from";
  for (const Edge& e : node.edges())
    text += e.node ? str(" ", e.node->name(),
                         e.slot < e.node->slots().size() ? to_string(e.node->slots()[e.slot].sizes)
                                                         : std::string())
                   : std::string(" constant");
  Node::Extras& extras = make_extras(node);
  extras.origin = str(text, ", operation ", node.sequence());
}

void set_outputs(Ref<Node> node, std::span<Tensor> outputs) {
  Node& n = *node;
  n.slots().clear();
  for (const Tensor& y : outputs) {
    if (y.defined() && is_floating(y.dtype())) n.slots().emplace_back(y.sizes(), y.dtype(), y.device());
    else n.slots().emplace_back();
  }
  if (autograd_state().anomaly) note_origin(n, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    TensorBody& b = outputs[i].body();
    // NOLINTNEXTLINE(bugprone-use-after-move): only the last one moves it
    make_slot(outputs[i]).edge = {i + 1 < outputs.size() ? node : std::move(node), static_cast<uint32_t>(i)};
    b.requires_grad = true;
    if (b.follows_base && slot_of(outputs[i])->base.requires_grad()) continue;
    forget_dead_base(outputs[i]);  // it was made as a view, unrecorded: a write would take the base's history
    b.storage->set_history(&b, false);
  }
}

/// Makes the view follow x's base, or x if x is not a view.
void follow(const Tensor& view, const Tensor& x) {
  Slot& slot = make_slot(view);
  const Slot* from = slot_of(x);
  slot.base = from && from->base.defined() ? from->base : x;
  const Slot* base = slot_of(slot.base);
  slot.base_rewrites = base ? base->rewrites : 0;
  view.body().follows_base = true;
}

}  // namespace

void link(Ref<Node> node, std::span<Tensor> outputs, Inputs inputs) {
  add_edges(*node, inputs, [](const InputRef& in) -> const Tensor& { return *in.t; });
  set_outputs(std::move(node), outputs);
}

void link(Ref<Node> node, std::span<Tensor> outputs, std::span<const Tensor> inputs) {
  add_edges(*node, inputs, [](const Tensor& x) -> const Tensor& { return x; });
  set_outputs(std::move(node), outputs);
}

void link_view(Ref<Node> node, Tensor& view, const Tensor& base) {
  node->edges().push_back(gradient_edge(base));
  follow(view, base);
  set_outputs(std::move(node), {&view, 1});
}

void note_view(Tensor& view, const Tensor& base) {
  // A view taken under NoGrad of a tensor with history is like detach(). Without history, a later recorded
  // write to either must change the history of both.
  if (view.is_same(base) || base.requires_grad()) return;
  follow(view, base);
}

}  // namespace detail
}  // namespace weft
