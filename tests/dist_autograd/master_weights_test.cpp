// Parameters of a half type with float32 masters on remote owners: steps, in one phase and in two, and saved
// states have the bits of one process.
#include <gtest/gtest.h>

#include <map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using dist_optim::StepOptions;
using weft::testing::same_bits;

const std::vector<int> kHalfOwners{1, 2};
constexpr optim::AdamOptions kMasters{.lr = 1e-4, .master_weights = true};

Tensor half_of(int rank) { return full({5}, 0.1 * rank + 0.3, kBFloat16).requires_grad_(); }
/// The parameter of each owner of the test.
std::map<int, Tensor>& halves() {
  static std::map<int, Tensor> all;
  return all;
}
Tensor& half_here() { return halves().at(static_cast<int>(current_agent()->self().id.value)); }
Tensor half_forward(const Tensor& x) { return tanh(x * half_here()); }
RRef<Tensor> half_param() { return RRef<Tensor>(half_here()); }
WEFT_RPC(half_forward);
WEFT_RPC(half_param);

template <class Forward> Tensor half_loss(int step, Forward&& forward) {
  Tensor x = full({5}, 0.2 * (step % 4 + 1), kBFloat16);
  for (const int rank : kHalfOwners) x = forward(rank, x);
  return x.to(kFloat32).square().sum();
}

Tensor master_in(const optim::StateDict& state, size_t i) {
  for (const auto& [name, tensor] : state)
    if (name == std::to_string(i) + ".master_param") return tensor;
  return {};
}

/// `moved`: parameters of float32 are moved to bfloat16 after two steps.
void train_halves(const StepOptions& how, bool moved = false) {
  std::map<int, Tensor> own;
  std::vector<Tensor> list;
  for (const int rank : kHalfOwners) {
    const auto leaf = [&] {
      return half_of(rank).detach().to(moved ? kFloat32 : kBFloat16).requires_grad_();
    };
    halves()[rank] = leaf();
    list.push_back(own[rank] = leaf());
  }
  optim::Adam local(list, kMasters);
  Cluster c({.size = 3});
  c.run(0, [&] {
    std::vector<RRef<Tensor>> params;
    for (const int rank : kHalfOwners) params.push_back(rpc_sync<half_param>(rank));
    const auto step = [&](DistributedOptimizer& opt, int number) {
      local.zero_grad();
      half_loss(number, [&](int rank, const Tensor& x) { return tanh(x * own[rank]); }).backward();
      optim::clip_grad_norm(list, 0.5);
      local.step();
      Context context;
      context.backward(
          {half_loss(number, [](int rank, const Tensor& x) { return rpc_sync<half_forward>(rank, x); })});
      opt.clip_grad_norm(context.id(), 0.5);
      opt.step(context.id());
      for (const int rank : kHalfOwners)
        ASSERT_TRUE(same_bits(halves()[rank].detach(), own[rank].detach()))
            << "step " << number << " owner " << rank;
    };
    DistributedOptimizer opt = dist_optim::make<optim::AdamRule>(params, kMasters, how);
    for (int number = 0; number < 5; ++number) {
      if (moved && number == 2)
        for (const auto* const all : {&halves(), &own})
          for (const auto& [rank, p] : *all) set_data(p, p.detach().to(kBFloat16));
      step(opt, number);
    }
    const std::vector<optim::StateDict> state = opt.state_dict();
    ASSERT_EQ(state.size(), list.size());
    for (size_t i = 0; i < state.size(); ++i) {
      const Tensor master = master_in(state[i], 0);
      ASSERT_TRUE(same_bits(master, master_in(local.state_dict(), i)));
      EXPECT_FALSE(equal(master, master.to(kBFloat16).to(kFloat32))) << "else the test shows nothing";
    }
    DistributedOptimizer next = dist_optim::make<optim::AdamRule>(params, kMasters, how);
    next.load_state_dict(state);
    for (int number = 5; number < 8; ++number) step(next, number);
  });
}

TEST(DistMasterWeights, steps_and_saved_states_have_the_bits_of_one_process) { train_halves({}); }
TEST(DistMasterWeights, steps_in_two_phases_have_the_bits_of_one_process) {
  train_halves({.two_phase = true, .lease_ms = 50});
}
TEST(DistMasterWeights, parameters_that_are_moved_to_a_half_type_are_stepped_on) {
  train_halves({}, true);
  train_halves({.two_phase = true, .lease_ms = 50}, true);
}

}  // namespace
