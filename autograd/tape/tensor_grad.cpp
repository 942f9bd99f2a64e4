// The gradient methods of Tensor, the slot that holds their data, and AccumulateGrad with the sink of local
// backward passes.
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/tensor/inner/free_list.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

// ---- slot

void* Slot::operator new(size_t bytes) { return pool_allocate(bytes); }
void Slot::operator delete(void* p) noexcept { pool_free(p, sizeof(Slot)); }

Slot::~Slot() {
  if (owns_accumulator) static_cast<AccumulateGrad*>(edge.node.get())->forget();
  if (paused) static_cast<AccumulateGrad*>(paused.get())->forget();
  if (retains_grad) detail::drop_retain(*edge.node, this);
}

std::mutex& Slot::grad_mutex() {
  if (owns_accumulator) return static_cast<AccumulateGrad*>(edge.node.get())->mutex;
  static std::mutex stripes[16];
  return stripes[reinterpret_cast<uintptr_t>(this) / 64 % 16];
}

AccumulateGrad::AccumulateGrad(TensorBody* leaf) : Node("AccumulateGrad", UINT64_MAX), leaf_(leaf) {
  leaf->allow_weak();
  slots().push_back({leaf->sizes, leaf->dtype, leaf->device});
}

void AccumulateGrad::forget() {
  std::lock_guard lock(mutex);
  leaf_ = nullptr;
}

void AccumulateGrad::replace(const Ref<Node>& by) {
  std::lock_guard lock(mutex);
  leaf_ = nullptr;
  replaced_ = true;
  successor_ = by;
  if (by) by->extras.store(extras.exchange(nullptr, std::memory_order_acq_rel), std::memory_order_release);
}

Ref<Node> AccumulateGrad::successor() {
  std::lock_guard lock(mutex);
  return successor_;
}

Tensor AccumulateGrad::leaf() {
  std::lock_guard lock(mutex);
  if (!leaf_ || replaced_ || !leaf_->requires_grad || !leaf_->try_retain()) return Tensor();
  return Tensor(Ref<TensorBody>::adopt(leaf_));
}

bool AccumulateGrad::takes() const {
  if (replaced_)
    throw AutogradError(str("backward: a leaf of sizes ", slots()[0].sizes,
                            " was moved to another dtype or device, or written to in place, since the "
                            "forward pass"));
  return leaf_ && leaf_->requires_grad;
}

namespace {

/// Tells a recording of a gradient that goes to `leaf`.
void tell_added(TensorBody& leaf, const Tensor& grad) {
  Tracer* const t = detail::tracer();
  if (!t) [[likely]]
    return;
  if (detail::is_row_wise(grad)) t->refuse("makes a row-wise gradient");
  t->grad_added(leaf, static_cast<Slot&>(*leaf.slot).grad.defined());
}

/// Adds `grad` to the slot's. Returns the gradient that was replaced. The caller holds grad_mutex() of the
/// slot, and destroys the result without it.
Tensor add_to(Slot& slot, Tensor& grad, bool may_steal) {
  if (!slot.grad.defined()) {
    slot.grad = may_steal                                ? std::move(grad)
                : grad_enabled() && grad.requires_grad() ? detail::copy_of(grad)
                                                         : detail::copy_of(grad.detach());
  } else if (detail::is_row_wise(slot.grad) || slot.grad.requires_grad() ||
             (grad_enabled() && grad.requires_grad()) || !slot.grad.is_contiguous() ||
             slot.grad.body().storage->is_read_only()) {
    return std::exchange(slot.grad, detail::add_gradients(slot.grad, grad));
  } else {
    detail::add_into(slot.grad, grad);
  }
  return Tensor();
}

class LocalSink final : public GradSink {
 public:
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override {
    Slot& slot = *detail::slot_of(leaf);
    Tensor before;
    const std::lock_guard lock(slot.grad_mutex());
    tell_added(leaf.body(), grad);
    before = add_to(slot, grad, may_steal);
  }
  void accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal) override {
    if (!may_steal) grad.values = detail::copy_of(grad.values);
    accumulate(leaf, detail::pack_rows(grad), true);
  }
};

}  // namespace

void GradSink::accumulate_rows(const Tensor& leaf, RowGrad grad, bool) {
  accumulate(leaf, grad.to_dense(), true);
}

GradList AccumulateGrad::apply(GradList grads, Pass& pass) {
  Tensor g = std::move(grads[0]);
  const Storage& s = *g.body().storage;
  const bool own = g.ref()->use_count() == 1 && s.use_count() == 1 && !s.is_borrowed() && g.is_contiguous() &&
                   !g.requires_grad();
  const bool rows = detail::is_row_wise(g);
  GradSink* const sink = pass.options().sink;
  Extras* const hooks = extras.load(std::memory_order_acquire);
  Tensor x;
  {  // under the lock the leaf is not destroyed, so the first form needs no handle
    Tensor before;
    const std::lock_guard lock(mutex);
    if (!takes()) return {};
    if (!sink && !hooks && !rows) {
      tell_added(*leaf_, g);
      before = add_to(static_cast<Slot&>(*leaf_->slot), g, own);
      return {};
    }
    if (!leaf_->try_retain()) return {};  // it is being destroyed
    x = Tensor(Ref<TensorBody>::adopt(leaf_));
  }
  GradSink& to = sink ? *sink : local_sink();
  if (rows) to.accumulate_rows(x, detail::unpack_rows(std::exchange(g, Tensor())), own);
  else to.accumulate(x, std::move(g), own);
  if (hooks) detail::run_accumulate_hooks(*hooks, x);
  return {};
}

GradSink& local_sink() {
  static LocalSink sink;
  return sink;
}

// ---- slots and leaves

namespace detail {

Slot& make_slot(const Tensor& x) {
  TensorBody& b = x.body();
  if (!b.slot) b.slot = new Slot;
  return static_cast<Slot&>(*b.slot);
}

void forget_dead_base(const Tensor& x) {
  TensorBody& b = x.body();
  if (!b.follows_base) return;
  Slot& slot = *slot_of(x);
  if (slot.base.ref()->use_count() > 1) return;
  slot.base = Tensor();
  b.follows_base = false;
}

void make_leaf(const Tensor& x) {
  TensorBody& b = x.body();
  forget_dead_base(x);
  Slot& slot = make_slot(x);
  Ref<Node> node = std::exchange(slot.paused, nullptr);
  const auto fits = [&b](const SlotMeta& m) { return m.dtype == b.dtype && m.device == b.device; };
  if (!node || !fits(node->slots()[0])) {
    const Ref<Node> old = std::exchange(node, Ref<Node>::adopt(new AccumulateGrad(&b)));
    if (old) static_cast<AccumulateGrad*>(old.get())->replace(node);
  }
  slot.edge = {std::move(node), 0};
  slot.owns_accumulator = true;
  b.requires_grad = true;
  b.storage->set_history(&b, true);
}

void set_edge(TensorBody& b, Edge edge) {
  Slot& slot = static_cast<Slot&>(*b.slot);
  const bool moves = slot.retains_grad && slot.edge.node.get() != edge.node.get();
  if (moves) drop_retain(*slot.edge.node, &slot);
  if (slot.paused) static_cast<AccumulateGrad*>(std::exchange(slot.paused, nullptr).get())->replace(nullptr);
  const Edge old = std::exchange(slot.edge, std::move(edge));
  b.requires_grad = static_cast<bool>(slot.edge.node);
  if (moves) {
    slot.retains_grad = b.requires_grad;
    if (b.requires_grad) add_retain(*slot.edge.node, slot.edge.slot, &b, &slot);
  }
  if (b.follows_base) return;
  if (b.requires_grad) b.storage->set_history(&b, false);
  else b.storage->clear_history(&b);
}

}  // namespace detail

Edge gradient_edge(const Tensor& x) {
  if (!x.defined() || !x.body().slot) return {};
  if (x.body().follows_base) detail::refresh_view(x);
  return detail::slot_of(x)->edge;
}

bool Tensor::view_requires_grad() const {
  detail::refresh_view(*this);
  return body().requires_grad;
}

bool Tensor::is_leaf() const {
  const Edge edge = gradient_edge(*this);
  return !edge.node || edge.node->is_accumulate();
}

const char* Tensor::grad_fn_name() const {
  const Edge edge = gradient_edge(*this);
  return edge.node && !edge.node->is_accumulate() ? edge.node->name() : "";
}

Tensor& Tensor::requires_grad_(bool on) {
  TensorBody& b = body("requires_grad_");
  if (on == requires_grad()) return *this;
  if (!is_leaf())
    throw AutogradError(str("requires_grad_: the tensor is the result of ", grad_fn_name(),
                            "; only a leaf can change (use detach())"));
  if (!on) {
    Slot& slot = *detail::slot_of(*this);
    if (slot.owns_accumulator) {
      slot.paused = std::exchange(slot.edge, {}).node;
      slot.owns_accumulator = false;
    }
    b.requires_grad = false;
    b.storage->clear_history(&b);
    return *this;
  }
  if (!is_floating_point())
    throw AutogradError(
        str("requires_grad_: only floating tensors have gradients, this one holds ", b.dtype));
  detail::make_leaf(*this);
  return *this;
}

Tensor detail::kept_grad(const Tensor& x) {
  if (!x.body().slot) return Tensor();
  if (Tracer* const t = detail::tracer()) [[unlikely]]
    t->grad_read(x);
  Slot& slot = *detail::slot_of(x);
  std::lock_guard lock(slot.grad_mutex());
  return slot.grad;
}

Tensor Tensor::grad() const {
  body("grad");
  Tensor g = detail::kept_grad(*this);
  return detail::is_row_wise(g) ? detail::read_only(detail::dense(g)) : g;
}

RowGrad Tensor::row_grad() const {
  body("row_grad");
  return detail::shown_rows(detail::kept_grad(*this));
}

namespace {

void replace_grad(const char* name, const Tensor& x, Tensor g) {
  if (!x.body(name).slot && !g.defined()) return;
  if (Tracer* const t = detail::tracer()) [[unlikely]] {
    if (g.defined()) t->refuse("sets a grad()");
    else t->grad_cleared(x);
  }
  if (g.defined()) {
    if (detail::grad_sizes(g) != x.sizes())
      throw ShapeError(
          str(name, ": a gradient of sizes ", detail::grad_sizes(g), " for a tensor of sizes ", x.sizes()));
    if (g.dtype() != x.dtype())
      throw DTypeError(str(name, ": a gradient of ", g.dtype(), " for a tensor of ", x.dtype()));
    if (g.device() != x.device())
      throw DeviceError(str(name, ": a gradient on ", g.device(), " for a tensor on ", x.device()));
  }
  Slot& slot = detail::make_slot(x);
  std::lock_guard lock(slot.grad_mutex());
  std::swap(slot.grad, g);  // the old one goes after the lock
}

}  // namespace

void Tensor::set_grad(const Tensor& g) const { replace_grad("set_grad", *this, g); }

void Tensor::set_row_grad(const RowGrad& g) const {
  if (!g.defined()) return replace_grad("set_row_grad", *this, Tensor());
  detail::check_rows("set_row_grad", g);
  replace_grad("set_row_grad", *this, detail::pack_rows({g.sizes, detail::copy_of(g.rows), g.values}));
}

void Tensor::retain_grad() const {
  body("retain_grad");
  if (!requires_grad()) throw AutogradError("retain_grad: the tensor does not require grad");
  const Edge edge = gradient_edge(*this);
  Slot& slot = *detail::slot_of(*this);
  if (edge.node->is_accumulate() || slot.retains_grad) return;
  detail::add_retain(*edge.node, edge.slot, &body(), &slot);
  slot.retains_grad = true;
}

Tensor Tensor::detach() const {
  const TensorBody& b = body("detach");
  return alias(*this, b.sizes, b.strides, b.offset);
}

Tensor& Tensor::detach_() {
  TensorBody& b = body("detach_");
  if (b.follows_base) throw AutogradError("detach_: the tensor is a view; use detach()");
  if (!b.slot) return *this;
  if (is_leaf()) return requires_grad_(false);
  detail::set_edge(b, {});
  return *this;
}

HookHandle Tensor::register_hook(TensorHook hook) const {
  return weft::register_hook(*this, std::move(hook));
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  launch::check_defined("backward", *this);
  weft::backward({this, 1},
                 gradient.defined() ? std::span<const Tensor>(&gradient, 1) : std::span<const Tensor>(),
                 retain_graph, create_graph);
}

}  // namespace weft
