// Optional data of a node, allocated on demand: hooks, tensors with retain_grad, and the forward call that
// created the node.
#pragma once

#include <mutex>
#include <string>

#include <weft/autograd/tape/hooks.h>

namespace weft {

struct Node::Extras {
  template <class F> struct Entry {
    uint64_t id;
    uint32_t slot;
    F call;
  };
  struct Retain {
    uint32_t slot;
    Slot* owner;  ///< removes this entry in its destructor
    TensorBody* body;
  };

  std::mutex mutex;
  uint64_t next_id = 1;
  std::vector<Entry<TensorHook>> tensor_hooks;
  std::vector<Entry<NodePreHook>> pre_hooks;
  std::vector<Entry<NodePostHook>> post_hooks;
  std::vector<Entry<PostAccumulateHook>> accumulate_hooks;
  std::vector<Retain> retains;
  std::string origin;  ///< anomaly mode: description of the forward call
};

namespace detail {
/// The node's extras, allocated at the first call.
Node::Extras& make_extras(Node& node);
/// Runs the tensor hooks in order, stores retained gradients, then runs the node's pre-hooks.
void run_pre_hooks(Node::Extras& extras, GradList& grads);
void run_post_hooks(Node::Extras& extras, GradList& inputs, const GradList& outputs);
void run_accumulate_hooks(Node::Extras& extras, const Tensor& leaf);
void add_retain(Node& node, uint32_t slot, TensorBody* body, Slot* owner);
void drop_retain(Node& node, const Slot* owner) noexcept;
}  // namespace detail

}  // namespace weft
