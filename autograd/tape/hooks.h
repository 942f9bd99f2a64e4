// Hooks: functions that get gradients during backward, and may replace them. Registration returns a handle;
// remove() removes the hook, and a ScopedHook does so at the end of its scope. A handle may outlive its
// tensor or node.
#pragma once

#include <cstdint>
#include <vector>

#include <weft/autograd/tape/callback.h>
#include <weft/autograd/tape/node.h>

namespace weft {

/// Identifies a registered hook; destroying the handle leaves the hook in place.
class WEFT_API HookHandle {
 public:
  HookHandle() = default;
  /// Removes the hook; idempotent. Thread safety: any thread; a running call of the hook finishes.
  void remove();
  /// Library internal: hook `id` of `node`.
  HookHandle(Ref<Node> node, uint64_t id) : node_(std::move(node)), id_(id) {}

 private:
  Ref<Node> node_;
  uint64_t id_ = 0;
};

/// Removes the hook when it goes out of scope.
class ScopedHook {
 public:
  explicit ScopedHook(HookHandle handle) : handle_(std::move(handle)) {}
  ScopedHook(const ScopedHook&) = delete;
  ~ScopedHook() { handle_.remove(); }

 private:
  HookHandle handle_;
};

// With a hook of another kind than PostAccumulateHook, a row-wise gradient (row_grad.h) is an AutogradError
// of the backward.

/// Gets a gradient; returns its replacement, or an undefined Tensor to leave it unchanged.
using TensorHook = Callback<Tensor(const Tensor&)>;
/// Gets the gradients of a node's outputs, and may change them.
using NodePreHook = Callback<void(GradList&)>;
/// Gets the gradients of a node's inputs, which it may change, and the gradients of its outputs.
using NodePostHook = Callback<void(GradList& inputs, const GradList& outputs)>;
/// Called after a gradient was accumulated in a leaf.
using PostAccumulateHook = Callback<void(const Tensor& leaf)>;

/// Calls `hook` with the complete gradient of `x`, in order of registration, before the gradient is
/// propagated or accumulated. After an in-place write to x, the hook still belongs to the value before the
/// write. Throws: AutogradError if x does not require grad.
WEFT_API HookHandle register_hook(const Tensor& x, TensorHook hook);
/// Calls `hook` after each accumulation into grad() of the leaf x. Throws: AutogradError unless x is a leaf
/// that requires grad.
WEFT_API HookHandle register_post_accumulate_hook(const Tensor& x, PostAccumulateHook hook);
/// Calls `hook` in each backward before the node computes, after the tensor hooks of its outputs.
WEFT_API HookHandle register_pre_hook(const Ref<Node>& node, NodePreHook hook);
/// Calls `hook` in each backward after the node has computed the gradients of its inputs.
WEFT_API HookHandle register_post_hook(const Ref<Node>& node, NodePostHook hook);

}  // namespace weft
