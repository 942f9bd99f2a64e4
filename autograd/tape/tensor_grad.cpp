// The gradient methods of Tensor, the slot that holds their data, and AccumulateGrad with the sink of local
// backward passes.
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/tensor/inner/free_list.h>

namespace weft {

// ---- slot

void* Slot::operator new(size_t bytes) { return pool_allocate(bytes); }
void Slot::operator delete(void* p) noexcept { pool_free(p, sizeof(Slot)); }

Slot::~Slot() {
  if (owns_accumulator) static_cast<AccumulateGrad*>(edge.node.get())->forget();
  if (retains_grad) detail::drop_retain(*edge.node, this);
}

std::mutex& Slot::grad_mutex() {
  if (owns_accumulator) return static_cast<AccumulateGrad*>(edge.node.get())->mutex;
  static std::mutex stripes[16];
  return stripes[reinterpret_cast<uintptr_t>(this) / 64 % 16];
}

AccumulateGrad::AccumulateGrad(TensorBody* leaf) : Node("AccumulateGrad", UINT64_MAX), leaf_(leaf) {
  slots().push_back({leaf->sizes, leaf->dtype, leaf->device});
}

Tensor AccumulateGrad::leaf() {
  std::lock_guard lock(mutex);
  if (!leaf_ || !leaf_->try_retain()) return Tensor();
  return Tensor(Ref<TensorBody>::adopt(leaf_));
}

void AccumulateGrad::forget() {
  std::lock_guard lock(mutex);
  leaf_ = nullptr;
}

GradList AccumulateGrad::apply(GradList grads, Pass& pass) {
  const Tensor x = leaf();
  if (!x.defined()) return {};
  Tensor g = std::move(grads[0]);
  const Storage& s = *g.body().storage;
  const bool own = g.ref()->use_count() == 1 && s.use_count() == 1 && !s.is_borrowed() && g.is_contiguous() &&
                   !g.requires_grad();
  GradSink* sink = pass.options().sink;
  (sink ? *sink : local_sink()).accumulate(x, std::move(g), own);
  if (Extras* e = extras.load(std::memory_order_acquire)) detail::run_accumulate_hooks(*e, x);
  return {};
}

namespace {

class LocalSink final : public GradSink {
 public:
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override {
    Slot& slot = *detail::slot_of(leaf);
    Tensor before;  // dropped after the lock
    std::lock_guard lock(slot.grad_mutex());
    if (!slot.grad.defined()) {
      slot.grad = may_steal                                ? std::move(grad)
                  : grad_enabled() && grad.requires_grad() ? detail::copy_of(grad)
                                                           : detail::copy_of(grad.detach());
    } else if (slot.grad.requires_grad() || (grad_enabled() && grad.requires_grad()) ||
               !slot.grad.is_contiguous() || slot.grad.body().storage->is_read_only()) {
      before = std::exchange(slot.grad, detail::add_gradients(slot.grad, grad));
    } else {
      detail::add_into(slot.grad, grad);
    }
  }
};

}  // namespace

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
  slot.edge = {Ref<Node>::adopt(new AccumulateGrad(&b)), 0};
  slot.owns_accumulator = true;
  b.requires_grad = true;
  b.storage->set_history(&b, true);
}

void set_edge(TensorBody& b, Edge edge) {
  Slot& slot = static_cast<Slot&>(*b.slot);
  const bool moves = slot.retains_grad && slot.edge.node.get() != edge.node.get();
  if (moves) drop_retain(*slot.edge.node, &slot);
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
  TensorBody& b = body();
  if (on == requires_grad()) return *this;
  if (!is_leaf())
    throw AutogradError(str("requires_grad_: the tensor is the result of ", grad_fn_name(),
                            "; only a leaf can change (use detach())"));
  if (!on) {
    Slot& slot = *detail::slot_of(*this);
    if (slot.owns_accumulator) {
      const Edge edge = std::exchange(slot.edge, {});
      slot.owns_accumulator = false;
      static_cast<AccumulateGrad*>(edge.node.get())->forget();
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

Tensor Tensor::grad() const {
  if (!body().slot) return Tensor();
  Slot& slot = *detail::slot_of(*this);
  std::lock_guard lock(slot.grad_mutex());
  return slot.grad;
}

void Tensor::set_grad(const Tensor& g) const {
  if (!body().slot && !g.defined()) return;
  if (g.defined()) {
    if (g.sizes() != sizes())
      throw ShapeError(str("set_grad: a gradient of sizes ", g.sizes(), " for a tensor of sizes ", sizes()));
    if (g.dtype() != dtype())
      throw DTypeError(str("set_grad: a gradient of ", g.dtype(), " for a tensor of ", dtype()));
    if (g.device() != device())
      throw DeviceError(str("set_grad: a gradient on ", g.device(), " for a tensor on ", device()));
  }
  Slot& slot = detail::make_slot(*this);
  Tensor before = g;
  std::lock_guard lock(slot.grad_mutex());
  std::swap(slot.grad, before);
}

void Tensor::retain_grad() const {
  if (!requires_grad()) throw AutogradError("retain_grad: the tensor does not require grad");
  const Edge edge = gradient_edge(*this);
  Slot& slot = *detail::slot_of(*this);
  if (edge.node->is_accumulate() || slot.retains_grad) return;
  detail::add_retain(*edge.node, edge.slot, &body(), &slot);
  slot.retains_grad = true;
}

Tensor Tensor::detach() const { return alias(*this, sizes(), strides(), storage_offset()); }

Tensor& Tensor::detach_() {
  TensorBody& b = body();
  if (b.follows_base) throw AutogradError("detach_: the tensor is a view; use detach()");
  if (!b.slot) return *this;
  if (is_leaf()) return requires_grad_(false);
  detail::set_edge(b, {});
  return *this;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  weft::backward({this, 1},
                 gradient.defined() ? std::span<const Tensor>(&gradient, 1) : std::span<const Tensor>(),
                 retain_graph, create_graph);
}

}  // namespace weft
