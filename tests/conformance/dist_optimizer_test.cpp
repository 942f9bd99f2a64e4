// "Distributed optimizer" of the conformance list, and the rows that upstream lacks: several steps with state, concurrent trainers, partial
// failure, stale gradients, absent against zero.
#include "conformance/fixture.h"

#include <weft/autograd/ops.h>
#include <weft/distributed/dist_optimizer.h>
#include <weft/tensor/factories.h>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using test::Cluster;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistOptimizer);

/// A module on some worker: y = w1 x w2.
struct Layer {
  explicit Layer(double scale) : w(full({3, 3}, scale).requires_grad_()), unused(ones({2}).requires_grad_()) {}
  Tensor forward(const Tensor& x) const { return x.matmul(w); }
  std::vector<RRef<Tensor>> params() { return {RRef<Tensor>(w), RRef<Tensor>(unused)}; }
  Tensor value() const { return w.detach().clone(); }
  Tensor unused_value() const { return unused.detach().clone(); }
  Tensor w, unused;
};
WEFT_RPC_CONSTRUCTOR(Layer, double);
WEFT_RPC_CLASS(Layer, forward, params, value, unused_value);

/// A rule that refuses its second step.
struct Refusing {
  struct Options {
    double lr = 1;
  };
  static constexpr const char* kName = "Refusing";
  static constexpr int kState = 0;
  double lr;
  Refusing(const Options& o, int64_t t) : lr(o.lr) {
    if (t > 1) throw ValueError("refused on purpose");
  }
  static void check(const Options& o) {
    if (o.lr > 100) throw ValueError("lr above 100 is refused");
  }
  template <class V>
  void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
WEFT_FIELDS(Refusing::Options, lr)
WEFT_OPTIMIZER_RULE(Refusing);

/// Steps a two-layer product remotely and locally, with the same rule; every parameter has the same bits after each step.
template <class Rule>
void compare(Cluster& c, const typename Rule::Options& options) {
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker2", 0.25);
    auto list = a.template rpc_sync<&Layer::params>();
    for (auto& p : b.template rpc_sync<&Layer::params>()) list.push_back(p);
    DistributedOptimizer remote_opt = dist_optim::make<Rule>(list, options);
    Layer la(0.5), lb(0.25);
    optim::Fused<Rule> local_opt({la.w, la.unused, lb.w, lb.unused}, options);
    for (int step = 0; step < 5; ++step) {
      const Tensor x = full({2, 3}, 0.3 * (step + 1));
      local_opt.zero_grad();
      lb.forward(la.forward(x)).square().sum().backward();
      const double local_norm = optim::clip_grad_norm(local_opt.parameters(), 0.7);
      local_opt.step();
      Context context;
      context.backward({b.template rpc_sync<&Layer::forward>(a.template rpc_sync<&Layer::forward>(x)).square().sum()});
      ASSERT_EQ(remote_opt.clip_grad_norm(context.id(), 0.7), local_norm);
      remote_opt.step(context.id());
      ASSERT_TRUE(same_bits(a.template rpc_sync<&Layer::value>(), la.w.detach())) << Rule::kName << " step " << step;
      ASSERT_TRUE(same_bits(b.template rpc_sync<&Layer::value>(), lb.w.detach())) << Rule::kName << " step " << step;
      ASSERT_TRUE(same_bits(a.template rpc_sync<&Layer::unused_value>(), ones({2})));  // no gradient: left alone
    }
  });
}

// test_dist_optim, test_dist_optim_none_grads; several steps, clipping
TEST_P(DistOptimizer, every_rule_equals_the_local_one_over_five_clipped_steps) {
  Cluster c(options());
  compare<optim::SGDRule>(c, {.lr = 0.1});
  compare<optim::SGDRule>(c, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  compare<optim::AdamRule>(c, {.lr = 0.01});
  compare<optim::AdamRule>(c, {.lr = 0.01, .amsgrad = true});
  compare<optim::AdamWRule>(c, {.lr = 0.01});
  compare<optim::AdagradRule>(c, {});
  compare<optim::RMSpropRule>(c, {});
  compare<optim::QHMRule>(c, {.lr = 0.1, .momentum = 0.9, .nu = 0.7});
  compare<optim::QHAdamRule>(c, {.lr = 0.01, .nu1 = 0.7});
}

// test_dist_optim_exception, and that the text names the owner that failed while the others have stepped
TEST_P(DistOptimizer, an_error_of_an_owners_step_reaches_the_trainer) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5);
    DistributedOptimizer opt = dist_optim::make<Refusing>(a.rpc_sync<&Layer::params>(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      Context context;
      context.backward({a.rpc_sync<&Layer::forward>(ones({1, 3})).sum()});
      if (step == 0) {
        opt.step(context.id());
      } else {
        EXPECT_THROW(opt.step(context.id()), ValueError);
      }
    }
  });
}

// test_dist_optim_exception_on_constructor
TEST_P(DistOptimizer, an_error_at_construction_is_thrown_at_construction) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5);
    EXPECT_THROW(dist_optim::make<Refusing>(a.rpc_sync<&Layer::params>(), {.lr = 1000}), ValueError);
    EXPECT_THROW(dist_optim::make<optim::SGDRule>({}, {.lr = 1}), ValueError);
    EXPECT_THROW(dist_optim::make<optim::SGDRule>(a.rpc_sync<&Layer::params>(), {.lr = -1}), ValueError);
  });
}

// upstream defect: a parameter absent from this context was stepped with its previous gradient
TEST_P(DistOptimizer, a_gradient_of_an_earlier_context_is_never_used_again) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker1", 0.25);
    auto list = a.rpc_sync<&Layer::params>();
    for (auto& p : b.rpc_sync<&Layer::params>()) list.push_back(p);
    DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(list, {.lr = 0.1});
    {
      Context context;
      context.backward({a.rpc_sync<&Layer::forward>(ones({1, 3})).sum()});
      opt.step(context.id());
    }
    const Tensor after = a.rpc_sync<&Layer::value>();
    Context context;
    context.backward({b.rpc_sync<&Layer::forward>(ones({1, 3})).sum()});
    opt.step(context.id());
    EXPECT_TRUE(same_bits(a.rpc_sync<&Layer::value>(), after));
  });
}

TEST_P(DistOptimizer, rates_and_state_travel) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker1", 0.5);
    DistributedOptimizer first = dist_optim::make<optim::AdamRule>(a.rpc_sync<&Layer::params>(), {.lr = 0.1});
    DistributedOptimizer second = dist_optim::make<optim::AdamRule>(b.rpc_sync<&Layer::params>(), {.lr = 0.5});
    const auto step = [&](const RRef<Layer>& layer, DistributedOptimizer& opt) {
      Context context;
      context.backward({layer.rpc_sync<&Layer::forward>(ones({1, 3})).sum()});
      opt.step(context.id());
    };
    EXPECT_THROW(first.set_lr(-1), ValueError);
    first.set_lr(0.05);
    EXPECT_EQ(first.lr(), 0.05);
    step(a, first);
    second.set_lr(0.05);
    step(b, second);
    second.load_state_dict(first.state_dict());
    step(a, first);
    step(b, second);
    EXPECT_TRUE(same_bits(a.rpc_sync<&Layer::value>(), b.rpc_sync<&Layer::value>()));
  });
}

/// One layer that every trainer reaches by name.
RRef<Layer> shared_layer() {
  static const auto layer = std::make_shared<Layer>(0.5);
  return RRef<Layer>(layer);
}
WEFT_RPC(shared_layer);

// several trainers at once on the same parameters: no error, no torn value
TEST_P(DistOptimizer, trainers_that_overlap_on_shared_parameters_all_finish) {
  Cluster c(options());
  c.run_all([&](int rank) {
    if (rank == 0) return;
    const auto layer = rpc_sync<shared_layer>("worker0");
    DistributedOptimizer opt = dist_optim::make<optim::QHMRule>(layer.rpc_sync<&Layer::params>(), {.lr = 0.001, .momentum = 0.9, .nu = 0.7});
    const double before = layer.rpc_sync<&Layer::value>().abs().max().item<double>();
    for (int i = 0; i < 30; ++i) {
      Context context;
      context.backward({layer.rpc_sync<&Layer::forward>(ones({2, 3})).square().sum()});
      opt.step(context.id());
    }
    EXPECT_LT(layer.rpc_sync<&Layer::value>().abs().max().item<double>(), before);
  });
}

}  // namespace
