// Hooks: functions that see, and may replace, gradients on their way. A registration gives back a handle; remove() takes the hook out,
// and a ScopedHook does so at the end of its scope. A handle may outlive the tensor or node it belongs to.
#pragma once

#include <cstdint>
#include <vector>

#include <weft/autograd/callback.h>
#include <weft/autograd/node.h>

namespace weft {

/// Names one registered hook; dropping the handle leaves the hook in place.
class WEFT_API HookHandle {
 public:
  HookHandle() = default;
  /// Takes the hook out; again is harmless. Thread safety: any thread; a call already running finishes.
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

/// Sees a gradient; returns its replacement, or an undefined Tensor to leave it as it is.
using TensorHook = Callback<Tensor(const Tensor&)>;
/// Sees all gradients that reach a node's outputs, and may change them.
using NodePreHook = Callback<void(GradList&)>;
/// Sees what a node returned for its inputs (and may change it), and what it was given.
using NodePostHook = Callback<void(GradList& inputs, const GradList& outputs)>;
/// Called after a leaf's gradient was accumulated.
using PostAccumulateHook = Callback<void(const Tensor& leaf)>;

/// Calls `hook` with the whole gradient of `x`, in order of registration, before it flows on or is accumulated. A later in-place write to
/// x does not move the hook. Throws: AutogradError when x does not require grad.
WEFT_API HookHandle register_hook(const Tensor& x, TensorHook hook);
/// Throws: AutogradError when x is not a leaf that requires grad.
WEFT_API HookHandle register_post_accumulate_hook(const Tensor& x, PostAccumulateHook hook);
WEFT_API HookHandle register_pre_hook(const Ref<Node>& node, NodePreHook hook);
WEFT_API HookHandle register_post_hook(const Ref<Node>& node, NodePostHook hook);

}  // namespace weft
