// Tensors with a graph that cross outside an autograd context: an error by name, a report, or a cut. All ways
// by which they cross are alike. Tensors without a graph are let through, detached.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/builtin.h>
#include <weft/distributed/rpc/outside_context.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/module.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Context;
using rpc::OutsideContext;
using rpc::rpc_async;
using rpc::rpc_sync;
using rpc::RRef;
using test::Cluster;
using test::Over;

Tensor trained(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }
/// A tensor with a graph.
Tensor linked(double v) { return trained(v) * 1.0; }

Tensor pass_second(int64_t, const Tensor& x) { return x.detach(); }
WEFT_RPC(pass_second);
Tensor kept_parameter() {
  static const Tensor w = trained(3);
  return w;
}
WEFT_RPC(kept_parameter);
Tensor made_with_parameter(const Tensor& x) { return x * kept_parameter(); }
WEFT_RPC(made_with_parameter);
rpc::Future<Tensor> made_later(const Tensor& x) {
  auto pause = rpc_async<pass_second>(0, 1, x);
  return pause.then([](const rpc::Future<Tensor>& f) { return f.value() * kept_parameter(); });
}
WEFT_RPC(made_later);
/// Calls worker 0 with a tensor that has a graph.
Tensor calls_back(const Tensor& x) { return rpc_sync<pass_second>(0, 1, x * kept_parameter()); }
WEFT_RPC(calls_back);
std::vector<Tensor> two_of_them(const Tensor& x) { return {x.detach(), x * kept_parameter()}; }
WEFT_RPC(two_of_them);
bool wants_gradient(const Tensor& x) { return x.requires_grad(); }
WEFT_RPC(wants_gradient);

struct Scaled {
  Tensor w = trained(2);
  Scaled() = default;
  explicit Scaled(const Tensor& start) : w(start) {}
  Tensor times(const Tensor& x) const { return x * w; }
  Tensor values(const Tensor& x) const { return (x * w).detach(); }
};
WEFT_RPC_CLASS(Scaled, times, values);

struct ScaledModule : nn::Module {
  Tensor w = trained(2);
  ScaledModule() { add("w", w); }
  Tensor forward(const Tensor& x) { return x * w; }
};
WEFT_RPC_CLASS(ScaledModule, forward);

/// The text of the AutogradError of f; empty without one.
template <class F> std::string refused(const F& f) {
  try {
    f();
  } catch (const AutogradError& e) {
    return e.what();
  }
  return "";
}
void expect_text(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}
std::vector<double> numbers(const Tensor& t) { return t.to_vector<double>(); }

class OutsideContextOver : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Networks, OutsideContextOver, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return test::to_string(info.param); });

TEST_P(OutsideContextOver, an_argument_with_a_graph_is_refused_by_name_whichever_way_it_goes) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const Tensor x = linked(1);
    const std::string cure = "dist_autograd::Context, or under NoGrad, or pass it with detach()";
    expect_text(refused([&] { rpc_sync<pass_second>("worker1", 1, x); }),
                {"argument 2 of 'pass_second' to worker 'worker1'", "sizes [3]", "made by mul", cure});
    expect_text(refused([&] { rpc_async<pass_second>("worker1", 1, x).wait(); }), {"argument 2", cure});
    expect_text(refused([&] { rpc::remote<pass_second>("worker1", 1, x).to_here(); }), {"argument 2", cure});
    expect_text(refused([&] { rpc_sync<rpc::builtin::add>("worker1", ones({3}, {.dtype = kFloat64}), x); }),
                {"argument 2 of 'weft::add'", cure});
    expect_text(refused([&] { rpc_sync<pass_second>("worker0", 1, x); }), {"to worker 'worker0'", cure});
    expect_text(refused([&] { rpc::remote<Scaled>("worker1", x).rpc_sync<&Scaled::values>(trained(1)); }),
                {"argument 1 of 'Scaled::Scaled'", cure});
    const auto scaled = rpc::remote<Scaled>("worker1");
    expect_text(refused([&] { scaled.rpc_sync<&Scaled::values>(x); }),
                {"argument 1 of 'Scaled::values'", cure});
    expect_text(refused([&] { scaled.rpc_async<&Scaled::values>(x).wait(); }), {"'Scaled::values'", cure});
    expect_text(refused([&] { scaled.remote<&Scaled::values>(x).to_here(); }), {"'Scaled::values'", cure});
    const rpc::RemoteModule<ScaledModule> module("worker1");
    expect_text(refused([&] { module.forward(x); }), {"argument 1 of 'ScaledModule::forward'", cure});
    expect_text(refused([&] { rpc::all_gather<Tensor>(x, {"worker0"}); }),
                {"a tensor of 'all_gather'", "no autograd context records this"});
    EXPECT_EQ(numbers(scaled.rpc_sync<&Scaled::values>(trained(1))), numbers(trained(2)));  // and it goes on
  });
  for (const char* key : {"agent.client_active_calls", "agent.server_active_calls"})
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(test::eventually(c, [&] { return c.agent(rank)->debug_info().at(key) == 0; })) << key;
  c.shutdown();
}

TEST_P(OutsideContextOver, a_result_with_a_graph_is_refused_by_name_whichever_way_it_comes) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const Tensor x = full({3}, 1.0, {.dtype = kFloat64});
    const std::string cure = "dist_autograd::Context, or under NoGrad, or compute its result";
    expect_text(refused([&] { rpc_sync<made_with_parameter>("worker1", x); }),
                {"On worker 'worker1'", "the result of 'made_with_parameter' for worker 'worker0'", cure});
    expect_text(refused([&] { rpc_sync<made_later>("worker1", x); }), {"the result of 'made_later'", cure});
    expect_text(refused([&] { rpc_sync<two_of_them>("worker1", x); }), {"the result of 'two_of_them'", cure});
    expect_text(refused([&] { rpc_sync<made_with_parameter>("worker0", x); }), {"On worker 'worker0'", cure});
    const auto kept = rpc::remote<made_with_parameter>("worker1", x);
    expect_text(refused([&] { kept.to_here(); }), {"the result of 'to_here' for worker 'worker0'", cure});
    const auto scaled = rpc::remote<Scaled>("worker1");
    expect_text(refused([&] { scaled.rpc_sync<&Scaled::times>(x); }),
                {"the result of 'Scaled::times'", cure});
    const rpc::RemoteModule<ScaledModule> module("worker1");
    expect_text(refused([&] { module.forward(x); }), {"the result of 'ScaledModule::forward'", cure});
    {
      Context context;  // a context is the cure
      EXPECT_EQ(numbers(kept.to_here()), numbers(trained(3)));
      const Tensor y = rpc_sync<made_with_parameter>("worker1", module.forward(linked(1)));
      context.backward({y.sum()});
    }
    EXPECT_EQ(numbers(scaled.remote<&Scaled::values>(x).to_here()), numbers(trained(2)));
  });
  c.shutdown();
}

TEST_P(OutsideContextOver, what_has_no_graph_is_let_through_detached) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    EXPECT_FALSE(rpc_sync<wants_gradient>("worker1", trained(1)));
    const auto parameter = rpc::remote<kept_parameter>("worker1");
    const Tensor fetched = parameter.to_here();
    EXPECT_EQ(numbers(fetched), numbers(trained(3)));
    EXPECT_FALSE(fetched.requires_grad());
    EXPECT_FALSE(rpc_sync<kept_parameter>("worker1").requires_grad());
    EXPECT_EQ(numbers(rpc_sync<rpc::builtin::add>("worker1", trained(1), trained(2))), numbers(trained(3)));
    const Tensor x = linked(1);
    NoGrad guard;
    EXPECT_FALSE(rpc_sync<wants_gradient>("worker1", trained(1) * 2.0));
    // nobody asks for gradients, also not behind the function that is called
    EXPECT_FALSE(rpc_sync<wants_gradient>("worker1", x));
    EXPECT_FALSE(rpc_sync<made_with_parameter>("worker1", x).requires_grad());
    EXPECT_EQ(numbers(rpc_sync<calls_back>("worker1", x)), numbers(trained(3)));
    EXPECT_EQ(dist_autograd::current_context_id(), -1);
  });
  c.shutdown();
}

TEST(OutsideContext, a_nested_call_is_named_with_the_worker_that_made_it) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    expect_text(refused([&] { rpc_sync<calls_back>("worker1", trained(1)); }),
                {"On worker 'worker1'", "argument 2 of 'pass_second' to worker 'worker0'"});
    Context context;
    EXPECT_EQ(numbers(rpc_sync<calls_back>("worker1", trained(1))), numbers(trained(3)));
  });
}

TEST(OutsideContext, a_report_comes_once_for_each_function_and_the_tensor_arrives_detached) {
  Cluster c({.size = 2, .agent = {.outside_context = OutsideContext::kReport}});
  std::vector<rpc::CutGraph> heard, heard_there;
  rpc::on_cut_graph(*c.agent(0), [&](const rpc::CutGraph& cut) {
    heard.push_back(cut);
    throw std::runtime_error("dropped");
  });
  rpc::on_cut_graph(*c.agent(1), [&](const rpc::CutGraph& cut) { heard_there.push_back(cut); });
  c.run(0, [&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(rpc_sync<wants_gradient>("worker1", linked(1)));
      rpc_sync<pass_second>("worker1", 1, linked(1));
      EXPECT_FALSE(rpc_sync<made_with_parameter>("worker1", trained(1)).requires_grad());
    }
  });
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0].function, "wants_gradient");
  expect_text(heard[0].text, {"argument 1 of 'wants_gradient' to worker 'worker1'"});
  EXPECT_EQ(heard[1].function, "pass_second");
  ASSERT_EQ(heard_there.size(), 1u);
  EXPECT_EQ(heard_there[0].function, "made_with_parameter");
  expect_text(heard_there[0].text, {"the result of 'made_with_parameter' for worker 'worker0'"});
}

TEST(OutsideContext, a_report_without_a_callback_is_one_line_on_stderr_for_each_function) {
  Cluster c({.size = 2, .agent = {.outside_context = OutsideContext::kReport}});
  ::testing::internal::CaptureStderr();
  c.run(0, [&] {
    for (int i = 0; i < 3; ++i) rpc_sync<pass_second>("worker1", 1, linked(1));
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  expect_text(text, {"weft: worker 'worker0': argument 2 of 'pass_second'"});
}

TEST(OutsideContext, detach_cuts_without_a_word) {
  Cluster c({.size = 2, .agent = {.outside_context = OutsideContext::kDetach}});
  ::testing::internal::CaptureStderr();
  c.run(0, [&] {
    EXPECT_FALSE(rpc_sync<wants_gradient>("worker1", linked(1)));
    EXPECT_FALSE(rpc_sync<made_with_parameter>("worker1", linked(1)).requires_grad());
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(OutsideContext, a_call_of_a_context_that_has_ended_meanwhile_is_not_outside) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Cluster c({.size = 2, .seed = seed, .net = {.jitter = 20ms}});
    c.run(0, [&] {
      rpc::Future<Tensor> made, back;
      {
        Context context;
        made = rpc_async<made_with_parameter>("worker1", trained(1));
        back = rpc_async<calls_back>("worker1", trained(1));
      }
      EXPECT_EQ(numbers(made.wait()), numbers(trained(3))) << seed;
      EXPECT_EQ(numbers(back.wait()), numbers(trained(3))) << seed;
    });
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(test::eventually(
          c, [&] { return c.agent(rank)->debug_info().at("dist_autograd.num_autograd_contexts") == 0; }));
  }
}

}  // namespace
