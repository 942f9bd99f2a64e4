// Functions that the conformance rows of distributed autograd call, and the ways to call them.
// Registered once, in dist_autograd_values.cpp.
#pragma once

#include <atomic>
#include <optional>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace weft::test {

using rpc::RRef;

inline Tensor leaf(const Shape& sizes, double v = 1) { return full(sizes, v).requires_grad_(); }

/// The three ways to get a result from another worker.
enum class Way { kSync, kAsync, kRemote };
inline constexpr Way kWays[] = {Way::kSync, Way::kAsync, Way::kRemote};
template <auto F, class... A> auto call(Way way, int to, const A&... arguments) {
  if (way == Way::kSync) return rpc::rpc_sync<F>(to, arguments...);
  if (way == Way::kAsync) return rpc::rpc_async<F>(to, arguments...).wait();
  return rpc::remote<F>(to, arguments...).to_here();
}

Tensor da_add(const Tensor& a, const Tensor& b);
WEFT_RPC(da_add);
Tensor da_mul(const Tensor& a, const Tensor& b);
WEFT_RPC(da_mul);
Tensor da_list(const std::vector<Tensor>& all);
WEFT_RPC(da_list);
std::vector<Tensor> da_split(const Tensor& x);
WEFT_RPC(da_split);
bool da_flags(const Tensor& a, const Tensor& b);
WEFT_RPC(da_flags);
/// A new leaf of the callee, all threes.
Tensor da_own_leaf();
WEFT_RPC(da_own_leaf);
/// Twice the sum, added on worker `to`.
Tensor da_nested(int64_t to, const Tensor& a, const Tensor& b);
WEFT_RPC(da_nested);
/// Doubles x here and on every worker of the way.
Tensor da_way(const Tensor& x, const std::vector<int64_t>& way);
WEFT_RPC(da_way);
/// Some arithmetic with loops and reuse.
Tensor da_complex(const Tensor& a, const Tensor& b);
WEFT_RPC(da_complex);
int64_t da_context();
WEFT_RPC(da_context);
bool da_has(int64_t context_id);
WEFT_RPC(da_has);
/// The nodes of a context here, sorted: "recv from 0", "send to 2: 1 edges".
std::vector<std::string> da_graph(int64_t context_id);
WEFT_RPC(da_graph);

/// A tensor that lives on worker 0 (one per process).
Tensor da_use_shared(const Tensor& x);
WEFT_RPC(da_use_shared);
double da_shared_gradient(int64_t context_id);
WEFT_RPC(da_shared_gradient);

void da_raise();
WEFT_RPC(da_raise);
Tensor da_raise_tensor();
WEFT_RPC(da_raise_tensor);
/// x, whose backward throws ValueError while the switch is on.
Tensor da_switched(const Tensor& x);
WEFT_RPC(da_switched);
std::atomic<bool>& da_switch();
/// da_switched at the end of the way.
Tensor da_way_switched(const Tensor& x, const std::vector<int64_t>& way);
WEFT_RPC(da_way_switched);
/// 2 x, whose backward says that it is there and waits until the gate opens.
Gate& da_gate();
Tensor da_gated(const Tensor& x);
WEFT_RPC(da_gated);
/// da_gated here, then on along the way.
Tensor da_way_gated(const Tensor& x, const std::vector<int64_t>& way);
WEFT_RPC(da_way_gated);

Tensor da_add_rref(const RRef<Tensor>& a, const Tensor& b);
WEFT_RPC(da_add_rref);
Tensor da_nested_add_rref(int64_t to, const RRef<Tensor>& a, const Tensor& b);
WEFT_RPC(da_nested_add_rref);
/// The gradient of a reference's value in a context, on its owner.
std::optional<Tensor> da_gradient_of(int64_t context_id, const RRef<Tensor>& r);
WEFT_RPC(da_gradient_of);
/// A loss: the sum of a b.
Tensor da_loss(const Tensor& a, const Tensor& b);
WEFT_RPC(da_loss);
/// The backward pass from a reference, begun by a third worker.
void da_backward_from(int64_t context_id, const RRef<Tensor>& root);
WEFT_RPC(da_backward_from);

}  // namespace weft::test
