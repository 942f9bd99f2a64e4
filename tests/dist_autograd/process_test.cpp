// Training between real processes: this program starts itself again, and a variable tells a child its task.
// The numbers are computed by hand.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Backward;

using Numbers = std::vector<double>;

/// The weights of the scale that lives in this process.
Tensor& weights_here() {
  static Tensor w;
  return w;
}

/// y = x w
class Scale {
 public:
  Scale(double a, double b) : w_(tensor({a, b}, {.dtype = kFloat64}).requires_grad_()) {
    weights_here() = w_;
  }
  Tensor forward(const Tensor& x) const { return x * w_; }
  /// The same, and on through another, which is elsewhere.
  Tensor forward_through(const Tensor& x, const RRef<Scale>& next) const;
  RRef<Tensor> parameter() const { return RRef<Tensor>(w_); }
  Tensor gradient(int64_t context_id) const { return dist_autograd::get_gradient(context_id, w_); }

 private:
  Tensor w_;
};
WEFT_RPC_CONSTRUCTOR(Scale, double, double);
WEFT_RPC_CLASS(Scale, forward, forward_through, parameter, gradient);
Tensor Scale::forward_through(const Tensor& x, const RRef<Scale>& next) const {
  return next.rpc_sync<&Scale::forward>(x * w_);
}

Numbers values(const Tensor& t) { return t.defined() ? t.detach().to_vector<double>() : Numbers(); }
Numbers weights_of_worker() { return values(weights_here()); }
WEFT_RPC(weights_of_worker);

/// Worker 0 trains the parameters on workers 1 and 2. The loss is the sum of x w1 w2, so dw1 = x w2, dw2 = x
/// w1, dx = w1 w2.
int train() {
  const auto first = remote<Scale>("worker1", 2, 3), second = remote<Scale>("worker2", 5, 7);
  auto optimizer = dist_optim::make<optim::SGDRule>(
      {first.rpc_sync<&Scale::parameter>(), second.rpc_sync<&Scale::parameter>()},
      {.lr = 0.5, .momentum = 0.5});
  const auto step = [&](Backward mode, double loss_before, const Numbers& dw1, const Numbers& dw2,
                        const Numbers& dx) {
    const Tensor x = tensor({1, 10}, {.dtype = kFloat64}).requires_grad_();
    dist_autograd::Context context;
    const Tensor loss = first.rpc_sync<&Scale::forward_through>(x, second).sum();  // 0 -> 1 -> 2 and back
    if (loss.item<double>() != loss_before) return false;
    context.backward({loss}, {.mode = mode});
    if (values(first.rpc_sync<&Scale::gradient>(context.id())) != dw1) return false;
    if (values(second.rpc_sync<&Scale::gradient>(context.id())) != dw2) return false;
    if (values(context.gradient(x)) != dx || x.grad().defined()) return false;
    optimizer.step(context.id());
    return true;
  };
  if (!step(Backward::kFast, 220, {5, 70}, {2, 30}, {10, 21})) return 2;
  // w -= 0.5 g
  if (rpc_sync<weights_of_worker>(1) != Numbers{-0.5, -32} ||
      rpc_sync<weights_of_worker>(2) != Numbers{4, -8})
    return 3;
  if (!step(Backward::kSmart, 2558, {4, -80}, {-0.5, -320}, {-2, 256})) return 4;
  // w -= 0.5 (g + 0.5 of the gradient before)
  if (rpc_sync<weights_of_worker>(1) != Numbers{-3.75, -9.5} ||
      rpc_sync<weights_of_worker>(2) != Numbers{3.75, 144.5})
    return 5;
  return 0;
}

/// Exit status of a child; 0 is success.
int child(const std::string&, int rank) {
  init_rpc(str("worker", rank));
  const int status = rank == 0 ? train() : 0;
  barrier();
  // The owners look for themselves: nobody else has their memory.
  if (rank == 0 && weights_here().defined()) return 6;
  if (rank == 1 && weights_of_worker() != Numbers{-3.75, -9.5}) return 7;
  if (rank == 2 && weights_of_worker() != Numbers{3.75, 144.5}) return 8;
  rpc::shutdown();
  return status;
}

constexpr const char* kChild = "DistTrainingProcess.a_process_started_by_these_tests_does_its_job";
TEST(DistTrainingProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(DistTrainingProcess,
     a_pass_over_three_processes_and_a_distributed_step_give_the_weights_computed_by_hand) {
  expect_ended(start_job(kChild, "train"));
}

}  // namespace
