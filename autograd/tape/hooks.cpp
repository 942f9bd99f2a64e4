// Registration and execution of hooks. The list is copied under the node's lock and the hooks are called
// outside it, so a hook may add or remove hooks.
#include <weft/autograd/tape/hooks.h>

#include <algorithm>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/extras.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/slot.h>

namespace weft {
namespace {

template <class List, class F>
HookHandle add(const Ref<Node>& node, List Node::Extras::*list, uint32_t slot, F&& hook) {
  if (!hook) throw ValueError("register_hook: empty hook");
  Node::Extras& extras = detail::make_extras(*node);
  std::lock_guard lock(extras.mutex);
  const uint64_t id = extras.next_id++;
  (extras.*list).push_back({id, slot, std::forward<F>(hook)});
  return HookHandle(node, id);
}

template <class List> void remove_id(List& list, uint64_t id) {
  std::erase_if(list, [id](const auto& entry) { return entry.id == id; });
}

void check(const char* what, const Tensor& x) {
  x.body(what);
  if (!x.requires_grad()) throw AutogradError(str(what, ": the tensor does not require grad"));
}

/// Hooks take and return dense gradients.
void refuse_rows(const GradList& grads) {
  for (const Tensor& g : grads)
    if (detail::is_row_wise(g))
      throw AutogradError(str("hook: the gradient of sizes ", detail::grad_sizes(g),
                              " is row-wise, and this hook takes dense ones; register_post_accumulate_hook "
                              "finds it in row_grad(), and without sparse = true it is dense"));
}

}  // namespace

void HookHandle::remove() {
  Ref<Node> node = std::exchange(node_, nullptr);
  if (!node) return;
  while (node->is_accumulate()) {  // the hooks of a leaf move with it to another dtype or device
    Ref<Node> next = static_cast<AccumulateGrad&>(*node).successor();
    if (!next) break;
    node = std::move(next);
  }
  Node::Extras& extras = detail::make_extras(*node);
  std::lock_guard lock(extras.mutex);
  remove_id(extras.tensor_hooks, id_);
  remove_id(extras.pre_hooks, id_);
  remove_id(extras.post_hooks, id_);
  remove_id(extras.accumulate_hooks, id_);
}

HookHandle register_hook(const Tensor& x, TensorHook hook) {
  check("register_hook", x);
  const Edge edge = gradient_edge(x);
  return add(edge.node, &Node::Extras::tensor_hooks, edge.slot, std::move(hook));
}

HookHandle register_post_accumulate_hook(const Tensor& x, PostAccumulateHook hook) {
  check("register_post_accumulate_hook", x);
  const Edge edge = gradient_edge(x);
  if (!edge.node->is_accumulate())
    throw AutogradError(str("register_post_accumulate_hook: the tensor is the result of ", edge.node->name(),
                            ", not a leaf"));
  return add(edge.node, &Node::Extras::accumulate_hooks, edge.slot, std::move(hook));
}

HookHandle register_pre_hook(const Ref<Node>& node, NodePreHook hook) {
  return add(node, &Node::Extras::pre_hooks, 0, std::move(hook));
}
HookHandle register_post_hook(const Ref<Node>& node, NodePostHook hook) {
  return add(node, &Node::Extras::post_hooks, 0, std::move(hook));
}

namespace detail {

Node::Extras& make_extras(Node& node) {
  Node::Extras* found = node.extras.load(std::memory_order_acquire);
  if (found) return *found;
  auto* fresh = new Node::Extras;
  if (node.extras.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *found;
}

void run_pre_hooks(Node::Extras& extras, GradList& grads) {
  std::vector<Node::Extras::Entry<TensorHook>> tensor_hooks;
  std::vector<Node::Extras::Entry<NodePreHook>> pre_hooks;
  std::vector<std::pair<uint32_t, Tensor>> retained;
  {
    std::lock_guard lock(extras.mutex);
    tensor_hooks = extras.tensor_hooks;
    pre_hooks = extras.pre_hooks;
    for (const auto& r : extras.retains)
      if (r.body->try_retain()) retained.emplace_back(r.slot, Tensor(Ref<TensorBody>::adopt(r.body)));
  }
  if (!tensor_hooks.empty() || !pre_hooks.empty()) refuse_rows(grads);
  for (const auto& entry : tensor_hooks) {
    if (entry.slot >= grads.size() || !grads[entry.slot].defined()) continue;
    const Tensor before = grads[entry.slot];
    Tensor after = entry.call(before);
    if (!after.defined()) continue;
    if (after.sizes() != before.sizes() || after.dtype() != before.dtype())
      throw AutogradError(str("hook: returned a gradient of sizes ", after.sizes(), " and ", after.dtype(),
                              " for one of ", before.sizes(), " and ", before.dtype()));
    grads[entry.slot] = std::move(after);
  }
  for (const auto& [slot, x] : retained)
    if (slot < grads.size() && grads[slot].defined())
      x.set_grad(grad_enabled() ? dense(grads[slot]) : dense(grads[slot]).detach());
  for (const auto& entry : pre_hooks) entry.call(grads);
}

void run_post_hooks(Node::Extras& extras, GradList& inputs, const GradList& outputs) {
  std::vector<Node::Extras::Entry<NodePostHook>> hooks;
  {
    std::lock_guard lock(extras.mutex);
    hooks = extras.post_hooks;
  }
  if (!hooks.empty()) refuse_rows(inputs), refuse_rows(outputs);
  for (const auto& entry : hooks) entry.call(inputs, outputs);
}

void run_accumulate_hooks(Node::Extras& extras, const Tensor& leaf) {
  std::vector<Node::Extras::Entry<PostAccumulateHook>> hooks;
  {
    std::lock_guard lock(extras.mutex);
    hooks = extras.accumulate_hooks;
  }
  for (const auto& entry : hooks) entry.call(leaf);
}

void add_retain(Node& node, uint32_t slot, TensorBody* body, Slot* owner) {
  Node::Extras& extras = make_extras(node);
  body->allow_weak();
  std::lock_guard lock(extras.mutex);
  extras.retains.push_back({slot, owner, body});
}

void drop_retain(Node& node, const Slot* owner) noexcept {
  Node::Extras* extras = node.extras.load(std::memory_order_acquire);
  if (!extras) return;
  std::lock_guard lock(extras->mutex);
  std::erase_if(extras->retains, [owner](const auto& r) { return r.owner == owner; });
}

}  // namespace detail
}  // namespace weft
