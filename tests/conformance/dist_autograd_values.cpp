#include "conformance/dist_autograd_values.h"

#include <algorithm>

#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/hooks.h>

namespace weft::test {

using namespace std::chrono_literals;

Tensor da_add(const Tensor& a, const Tensor& b) { return a + b; }
Tensor da_mul(const Tensor& a, const Tensor& b) { return a * b; }
Tensor da_list(const std::vector<Tensor>& all) {
  Tensor sum = all[0];
  for (size_t i = 1; i < all.size(); ++i) sum = sum + all[i];
  return sum;
}
std::vector<Tensor> da_split(const Tensor& x) { return x.split(1); }
bool da_flags(const Tensor& a, const Tensor& b) { return a.requires_grad() && !b.requires_grad(); }
Tensor da_own_leaf() { return full({3, 3}, 3.0).requires_grad_(); }
Tensor da_nested(int64_t to, const Tensor& a, const Tensor& b) {
  return rpc::rpc_sync<da_add>(static_cast<int>(to), a, b) * 2.0;
}

namespace {
/// The rest of a way: the call made there.
template <auto F> Tensor go_on(const Tensor& x, const std::vector<int64_t>& way) {
  return rpc::rpc_sync<F>(static_cast<int>(way[0]), x, std::vector<int64_t>(way.begin() + 1, way.end()));
}
}  // namespace

Tensor da_way(const Tensor& x, const std::vector<int64_t>& way) {
  return way.empty() ? x * 2.0 : go_on<da_way>(x * 2.0, way);
}
Tensor da_way_switched(const Tensor& x, const std::vector<int64_t>& way) {
  return way.empty() ? da_switched(x) : go_on<da_way_switched>(x * 2.0, way);
}
Tensor da_way_gated(const Tensor& x, const std::vector<int64_t>& way) {
  return way.empty() ? da_gated(x) : go_on<da_way_gated>(da_gated(x), way);
}

Tensor da_complex(const Tensor& a, const Tensor& b) {
  Tensor x = a.matmul(b);
  for (int i = 0; i < 3; ++i) x = tanh(x + a) * b - x;
  return x.matmul(x.transpose(0, 1));
}

int64_t da_context() { return dist_autograd::current_context_id(); }
bool da_has(int64_t context_id) { return dist_autograd::has_context(context_id); }
std::vector<std::string> da_graph(int64_t context_id) {
  std::vector<std::string> out;
  for (const auto& node : dist_autograd::graph(context_id))
    out.push_back(node.is_send ? str("send to ", node.peer.value, ": ",
                                     static_cast<int64_t>(node.node->edges().size()), " edges")
                               : str("recv from ", node.peer.value));
  std::sort(out.begin(), out.end());
  return out;
}

namespace {
Tensor shared_leaf() {
  static const Tensor w = full({2}, 3.0, {.dtype = kFloat64}).requires_grad_();
  return w;
}
}  // namespace
Tensor da_use_shared(const Tensor& x) { return x * shared_leaf(); }
double da_shared_gradient(int64_t context_id) {
  return dist_autograd::get_gradient(context_id, shared_leaf()).to_vector<double>()[0];
}

void da_raise() { throw ValueError("raised in a context"); }
Tensor da_raise_tensor() { throw ValueError("raised at the creation"); }

std::atomic<bool>& da_switch() {
  static std::atomic<bool> on{false};
  return on;
}
namespace {
struct Switched {
  static Tensor forward(FunctionContext&, const Tensor& x) { return x * 1.0; }
  static GradList backward(FunctionContext&, const GradList& g) {
    if (da_switch()) throw ValueError("simulated error of a backward pass");
    return {g[0]};
  }
};
}  // namespace
Tensor da_switched(const Tensor& x) { return apply_function<Switched>(x); }

Gate& da_gate() {
  static Gate gate;
  return gate;
}
Tensor da_gated(const Tensor& x) {
  const Tensor y = x * 2.0;
  register_hook(y, [](const Tensor&) {
    da_gate().pass();
    return Tensor();  // leave it as it is
  });
  return y;
}

Tensor da_add_rref(const RRef<Tensor>& a, const Tensor& b) { return a.local_value() + b; }
Tensor da_nested_add_rref(int64_t to, const RRef<Tensor>& a, const Tensor& b) {
  return rpc::rpc_sync<da_add_rref>(static_cast<int>(to), a, b);
}
std::optional<Tensor> da_gradient_of(int64_t context_id, const RRef<Tensor>& r) {
  const Tensor g = dist_autograd::get_gradient(context_id, r.local_value());
  return g.defined() ? std::optional<Tensor>(g) : std::nullopt;
}
Tensor da_loss(const Tensor& a, const Tensor& b) { return (a * b).sum(); }
void da_backward_from(int64_t context_id, const RRef<Tensor>& root) { root.backward(context_id); }

}  // namespace weft::test
