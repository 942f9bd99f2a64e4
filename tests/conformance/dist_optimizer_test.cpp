// The claims of docs/conformance.md on distributed optimizers. PyTorch lacks some: several steps with state,
// concurrent trainers, partial failure, stale gradients, absent against zero.
#include "conformance/fixture.h"

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/tensor/factories.h>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using test::Cluster;
using test::counted;
using test::eventually;
using test::has;
using test::text_of;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistOptimizer);

/// A module on some worker: y = w1 x w2.
struct Layer {
  explicit Layer(double scale)
      : w(full({3, 3}, scale).requires_grad_()), unused(ones({2}).requires_grad_()) {}
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
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
WEFT_FIELDS(Refusing::Options, lr)
WEFT_OPTIMIZER_RULE(Refusing);

/// Two rules of one name, and one that has the name of a rule of weft's.
template <int kNumber> struct Twin {
  struct Options {
    double lr = 1;
  };
  static constexpr const char* kName = "Twin";
  static constexpr int kState = 0;
  double lr;
  Twin(const Options& o, int64_t) : lr(o.lr) {}
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
using FirstTwin = Twin<1>;
using SecondTwin = Twin<2>;
WEFT_FIELDS(FirstTwin::Options, lr)
WEFT_OPTIMIZER_RULE(FirstTwin);
WEFT_FIELDS(SecondTwin::Options, lr)
WEFT_OPTIMIZER_RULE(SecondTwin);
struct OtherAdam : Twin<3> {
  using Twin<3>::Twin;
  static constexpr const char* kName = "Adam";
};
WEFT_FIELDS(Twin<3>::Options, lr)

/// Steps a two-layer product remotely and locally, with the same rule; every parameter has the same bits
/// after each step.
template <class Rule> void compare(Cluster& c, const typename Rule::Options& options) {
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
      context.backward(
          {b.template rpc_sync<&Layer::forward>(a.template rpc_sync<&Layer::forward>(x)).square().sum()});
      ASSERT_EQ(remote_opt.clip_grad_norm(context.id(), 0.7), local_norm);
      remote_opt.step(context.id());
      ASSERT_TRUE(same_bits(a.template rpc_sync<&Layer::value>(), la.w.detach()))
          << Rule::kName << " step " << step;
      ASSERT_TRUE(same_bits(b.template rpc_sync<&Layer::value>(), lb.w.detach()))
          << Rule::kName << " step " << step;
      // no gradient: left alone
      ASSERT_TRUE(same_bits(a.template rpc_sync<&Layer::unused_value>(), ones({2})));
    }
  });
}

// test_dist_optim, test_dist_optim_none_grads; several steps, clipping
TEST_P(DistOptimizer, every_rule_equals_the_local_one_over_five_clipped_steps) {
  Cluster c(options());
#define WEFT_COMPARE(Name, ...) compare<optim::Name##Rule>(c, {});
  WEFT_OPTIMIZER_RULES(WEFT_COMPARE)
#undef WEFT_COMPARE
  compare<optim::SGDRule>(c, {.lr = 0.1});
  compare<optim::SGDRule>(c, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  compare<optim::SGDRule>(c, {.lr = 0.001, .momentum = 1, .weight_decay = 1, .nesterov = true});
  compare<optim::AdamRule>(c, {.lr = 0.01});
  compare<optim::AdamRule>(c, {.lr = 0.01, .amsgrad = true});
  compare<optim::AdamWRule>(c, {.lr = 0.01});
  compare<optim::AdamWRule>(c, {.lr = 0.05, .amsgrad = true});
  compare<optim::RpropRule>(c, {.lr = 0.05});
  compare<optim::QHMRule>(c, {.lr = 0.1, .momentum = 0.9, .nu = 0.7});
  compare<optim::QHAdamRule>(c, {.lr = 0.01, .nu1 = 0.7});
}

/// The sum of the layers' results for ones, and its backward pass.
void run_layers(const Context& context, const std::vector<RRef<Layer>>& layers) {
  std::vector<Tensor> roots;
  for (const auto& layer : layers) roots.push_back(layer.rpc_sync<&Layer::forward>(ones({1, 3})).sum());
  context.backward(roots);
}

// test_dist_optim_exception
TEST_P(DistOptimizer, an_error_of_the_only_owners_step_reaches_the_trainer_as_it_is) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5);
    DistributedOptimizer opt = dist_optim::make<Refusing>(a.rpc_sync<&Layer::params>(), {.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      Context context;
      run_layers(context, {a});
      if (step == 0) {
        opt.step(context.id());
      } else {
        EXPECT_EQ(text_of<ValueError>([&] { opt.step(context.id()); }),
                  "On worker 'worker1': refused on purpose");
      }
    }
  });
}

// partial failure: an owner refuses
TEST_P(DistOptimizer, an_owner_that_fails_is_named_and_the_others_have_stepped) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker2", 0.25),
               d = remote<Layer>("worker3", 0.25);
    std::vector<RRef<Tensor>> list;
    for (const auto& layer : {b, a, d})
      for (auto& p : layer.rpc_sync<&Layer::params>()) list.push_back(p);
    DistributedOptimizer opt = dist_optim::make<Refusing>(list, {.lr = 0.1});
    {
      Context context;
      run_layers(context, {b});
      opt.step(context.id());  // the first step of b alone
    }
    const Tensor a_before = a.rpc_sync<&Layer::value>(), b_before = b.rpc_sync<&Layer::value>(),
                 d_before = d.rpc_sync<&Layer::value>();
    {
      Context context;
      run_layers(context, {a, b, d});
      const std::string text = text_of<ValueError>([&] { opt.step(context.id()); });
      EXPECT_TRUE(has(text,
                      "step failed on 'worker2': On worker 'worker2': refused on purpose (the other owners "
                      "have done it)"));
      EXPECT_FALSE(has(text, "worker1"));
      EXPECT_FALSE(has(text, "worker3"));
    }
    EXPECT_TRUE(same_bits(b.rpc_sync<&Layer::value>(), b_before));
    EXPECT_FALSE(same_bits(a.rpc_sync<&Layer::value>(), a_before));
    EXPECT_FALSE(same_bits(d.rpc_sync<&Layer::value>(), d_before));
    Context context;
    run_layers(context, {a, b, d});
    // now it is the second step of all
    const std::string text = text_of<ValueError>([&] { opt.step(context.id()); });
    EXPECT_TRUE(has(text, "step failed on every owner, 'worker2': "));
    EXPECT_TRUE(has(text, "; 'worker1': On worker 'worker1': refused on purpose; 'worker3': "));
  });
}

// partial failure: an owner is lost, and known to be
TEST_P(DistOptimizer, an_owner_that_is_lost_is_named_and_the_others_have_stepped) {
  test::ClusterOptions mortal = options();
  mortal.net.connect_timeout = std::chrono::milliseconds(500);
  for (const bool known : {false, true}) {
    Cluster c(mortal);
    c.run(0, [&] {
      const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker2", 0.25),
                 d = remote<Layer>("worker3", 0.25);
      std::vector<RRef<Tensor>> list;
      for (const auto& layer : {b, a, d})
        for (auto& p : layer.rpc_sync<&Layer::params>()) list.push_back(p);
      DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(list, {.lr = 0.1});
      const Tensor a_before = a.rpc_sync<&Layer::value>(), d_before = d.rpc_sync<&Layer::value>();
      Context context;
      run_layers(context, {a, b, d});
      c.kill(2);
      if (known) {
        ASSERT_TRUE(eventually(c, [&] { return c.agent(0)->is_lost(WorkerId{2}); }));
      }
      try {
        opt.step(context.id());
        FAIL() << "no error";
      } catch (const OwnerLost& e) {
        EXPECT_EQ(e.peer, "worker2");
        EXPECT_TRUE(has(e.what(), "step failed on 'worker2': "));
        EXPECT_TRUE(has(e.what(), "(the other owners have done it)"));
      }
      EXPECT_FALSE(same_bits(a.rpc_sync<&Layer::value>(), a_before));
      EXPECT_FALSE(same_bits(d.rpc_sync<&Layer::value>(), d_before));
      EXPECT_THROW(dist_optim::make<optim::SGDRule>(list, {.lr = 0.1}), OwnerLost);
    });
  }
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

// the owners find a rule by its name: one that two rules have must not give one the other's options
TEST_P(DistOptimizer, two_rules_of_one_name_are_refused_by_trainer_and_owner) {
  Cluster c(options());
  const std::string twins =
      "distributed optimizer: two rules are called 'Twin' on this worker; each needs a name (kName) of its "
      "own";
  c.run(0, [&] {
    const auto params = remote<Layer>("worker1", 0.5).rpc_sync<&Layer::params>();
    EXPECT_EQ(text_of<ValueError>([&] { dist_optim::make<FirstTwin>(params); }), twins);
    EXPECT_EQ(text_of<ValueError>([&] { dist_optim::make<SecondTwin>(params); }), twins);
    // a trainer of another program
    EXPECT_EQ(text_of<ValueError>([&] { DistributedOptimizer("Twin", "", 1, params); }),
              "On worker 'worker1': " + twins);
    EXPECT_TRUE(has(text_of<ValueError>([&] { dist_optim::make<OtherAdam>(params); }),
                    "two rules are called 'Adam'"));
    dist_optim::make<optim::AdamRule>(params);  // stays the same
  });
}

TEST_P(DistOptimizer, a_rule_registered_again_stays_usable) {
  EXPECT_TRUE(
      dist_optim::register_rule(Refusing::kName, typeid(Refusing), &dist_optim::detail::make_rule<Refusing>));
  EXPECT_FALSE(dist_optim::register_rule(FirstTwin::kName, typeid(FirstTwin),
                                         &dist_optim::detail::make_rule<FirstTwin>));
  Cluster c(options());
  c.run(0, [&] {
    const auto layer = remote<Layer>("worker1", 0.5);
    DistributedOptimizer opt = dist_optim::make<Refusing>(layer.rpc_sync<&Layer::params>(), {.lr = 0.25});
    Context context;
    run_layers(context, {layer});
    opt.step(context.id());
    EXPECT_TRUE(same_bits(layer.rpc_sync<&Layer::value>(), full({3, 3}, 0.25)));
  });
}

TEST_P(DistOptimizer, clipping_refuses_what_the_local_one_refuses_with_its_text) {
  Cluster c(options());
  c.run(0, [&] {
    const auto layer = remote<Layer>("worker1", 0.5);
    DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(layer.rpc_sync<&Layer::params>(), {.lr = 1});
    Context context;
    run_layers(context, {layer});
    for (const auto& [max_norm, p] : std::vector<std::pair<double, double>>{
             {-1, 2}, {std::nan(""), 2}, {0.5, 0}, {0.5, -1}, {0.5, std::nan("")}}) {
      const auto what =
          text_of<ValueError>([&, m = max_norm, q = p] { opt.clip_grad_norm(context.id(), m, q); });
      EXPECT_EQ(what, text_of<ValueError>([m = max_norm, q = p] { optim::clip_grad_norm({}, m, q); }));
    }
    EXPECT_EQ(opt.clip_grad_norm(context.id(), 100), 3.0);  // nine ones, not scaled by the refused
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
    DistributedOptimizer second =
        dist_optim::make<optim::AdamRule>(b.rpc_sync<&Layer::params>(), {.lr = 0.5});
    const auto step = [&](const RRef<Layer>& layer, DistributedOptimizer& opt) {
      Context context;
      context.backward({layer.rpc_sync<&Layer::forward>(ones({1, 3})).sum()});
      opt.step(context.id());
    };
    EXPECT_THROW(first.set_lr(-1), ValueError);
    EXPECT_THROW(first.set_lr(INFINITY), ValueError);
    EXPECT_THROW(first.set_lr(1, 0.1), IndexError);
    EXPECT_THROW(first.lr(1), IndexError);
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

/// The effect of one step of a layer's owner on w and `unused`, whose gradient is zero or absent.
template <class Rule> std::pair<Tensor, Tensor> step_once(const typename Rule::Options& options, bool zero) {
  const auto layer = remote<Layer>("worker1", 0.5);
  const auto params = layer.template rpc_sync<&Layer::params>();
  DistributedOptimizer opt = dist_optim::make<Rule>(params, options);
  Context context;
  Tensor loss = layer.template rpc_sync<&Layer::forward>(ones({1, 3})).sum();
  if (zero) loss = loss + params[1].to_here().sum() * 0.0;
  context.backward({loss});
  opt.step(context.id());
  return {layer.template rpc_sync<&Layer::value>(), layer.template rpc_sync<&Layer::unused_value>()};
}

// a gradient of zeros steps, by the rule's weight decay; an absent one does not
TEST_P(DistOptimizer, a_gradient_of_zeros_is_a_step_and_an_absent_one_is_none) {
  Cluster c(options());
  c.run(0, [&] {
    const optim::SGDRule::Options decays{.lr = 0.5, .weight_decay = 0.5};
    const auto [w, absent] = step_once<optim::SGDRule>(decays, false);
    EXPECT_TRUE(same_bits(absent, ones({2})));
    const auto [same, zero] = step_once<optim::SGDRule>(decays, true);
    EXPECT_TRUE(same_bits(same, w));
    EXPECT_TRUE(same_bits(zero, full({2}, 0.75)));
  });
}

// C++ TestE2ETensorPipe.TestTrainingLoop
TEST_P(DistOptimizer, a_training_loop_leaves_no_call_no_timeout_and_no_context_behind) {
  Cluster c(options());
  c.run(0, [&] {
    const auto a = remote<Layer>("worker1", 0.5), b = remote<Layer>("worker2", 0.25);
    auto list = a.rpc_sync<&Layer::params>();
    for (auto& p : b.rpc_sync<&Layer::params>()) list.push_back(p);
    DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(list, {.lr = 0.01});
    double first = 0, last = 0;
    for (int step = 0; step < 100; ++step) {
      Context context;
      const Tensor loss =
          b.rpc_sync<&Layer::forward>(a.rpc_sync<&Layer::forward>(ones({2, 3}))).square().sum();
      context.backward({loss});
      opt.step(context.id());
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, first);
    EXPECT_EQ(c.agent(0)->debug_info().at("agent.timeouts"), 0);
  });
  const auto quiet = [&] {
    for (int rank = 0; rank < c.size(); ++rank)
      if (!c.agent(rank)->calls().empty() || !c.agent(rank)->dump().empty()) return false;
    return counted(c, "dist_autograd.num_autograd_contexts") == 0;
  };
  EXPECT_TRUE(eventually(c, quiet)) << c.agent(0)->dump() << c.agent(1)->dump();
  for (const char* key : {"agent.client_active_calls", "agent.server_active_calls",
                          "agent.server_active_async_calls", "dist_autograd.num_current_backward_passes",
                          "num_owner_rrefs", "num_pending_users", "num_pending_futures", "num_shares"})
    EXPECT_TRUE(eventually(c, [&] { return counted(c, key) == 0; })) << key;
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
    DistributedOptimizer opt = dist_optim::make<optim::QHMRule>(layer.rpc_sync<&Layer::params>(),
                                                                {.lr = 0.001, .momentum = 0.9, .nu = 0.7});
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
