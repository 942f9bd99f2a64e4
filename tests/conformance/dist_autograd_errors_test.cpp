// The claims of docs/conformance.md on distributed autograd: failures. Passes fail, workers die, contexts end
// too early and gradients do not fit; nothing of them is left.
#include "conformance/dist_autograd_values.h"
#include "conformance/fixture.h"

#include <atomic>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using weft::testing::same_bits;

constexpr Backward kModes[] = {Backward::kFast, Backward::kSmart};

class DistAutogradErrors : public Conformance {
 protected:
  ~DistAutogradErrors() override {
    da_switch() = false;
    da_gate().open = true;
  }
  /// A death is soon known.
  ClusterOptions mortal() const {
    ClusterOptions o = options();
    o.net.connect_timeout = 500ms;
    return o;
  }
  static int64_t passes(Cluster& c, int but = -1) {
    return counted(c, "dist_autograd.num_current_backward_passes", but);
  }
  static int64_t contexts(Cluster& c, int but = -1) {
    return counted(c, "dist_autograd.num_autograd_contexts", but);
  }
};
INSTANTIATE_TEST_SUITE_P(Over, DistAutogradErrors, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

// test_backward_autograd_engine_error, test_backward_python_udf_error
TEST_P(DistAutogradErrors, an_error_deep_in_a_pass_arrives_with_its_type_and_the_name_of_its_worker) {
  Cluster c(options());
  for (const Backward mode : kModes)
    for (int end = 1; end < 4; ++end)
      c.run(0, [&] {
        std::vector<int64_t> way;
        for (int next = 2; next <= end; ++next) way.push_back(next);
        const Tensor a = leaf({2}), b = leaf({2});
        Context context;
        const Tensor x = rpc_sync<da_mul>("worker3", rpc_sync<da_add>("worker1", a, b), b);
        const Tensor y = rpc_sync<da_add>("worker2", rpc_sync<da_way_switched>("worker1", x, way), b).sum();
        da_switch() = true;
        const std::string text = text_of<ValueError>([&] { context.backward({y}, {.mode = mode}); });
        EXPECT_TRUE(has(text, str("On worker 'worker", end, "': simulated error of a backward pass")));
        da_switch() = false;
        EXPECT_TRUE(eventually(c, [&] { return passes(c) == 0; }));
      });
  EXPECT_TRUE(eventually(c, [&] { return contexts(c) == 0; }));
}

// test_multiple_backward_with_errors
TEST_P(DistAutogradErrors, fifty_failures_leave_room_for_a_good_pass_in_the_same_context) {
  Cluster c(options());
  for (const Backward mode : kModes)
    c.run(0, [&] {
      const Tensor a = leaf({2});
      Context context;
      const Tensor loss = rpc_sync<da_way_switched>("worker1", a, std::vector<int64_t>{2}).sum();
      da_switch() = true;
      for (int i = 0; i < 50; ++i)
        EXPECT_TRUE(
            has(text_of<ValueError>([&] { context.backward({loss}, {.retain_graph = true, .mode = mode}); }),
                "On worker 'worker2'"));
      da_switch() = false;
      EXPECT_FALSE(context.gradient(a).defined());
      context.backward({loss}, {.mode = mode});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
      EXPECT_TRUE(eventually(c, [&] { return passes(c) == 0; }));
    });
}

// test_backward_node_failure: every odd worker dies, and every even one has a pass of its own through both
TEST_P(DistAutogradErrors, all_odd_workers_dead_end_the_passes_of_all_even_ones_with_an_error) {
  for (const Backward mode : kModes) {
    Cluster c(mortal());
    std::atomic<int> ready{0}, failed{0};
    const auto until = [](const std::atomic<int>& count, int value) {
      for (int i = 0; count < value && i < 60000; ++i) current_runtime()->sleep_for(1ms);
      ASSERT_EQ(count, value);
    };
    std::atomic<int> killed{0};
    c.run_all([&](int rank) {
      if (rank % 2 == 1) {
        ++ready;
        return;
      }
      const Tensor a = leaf({2});
      Context context;
      const Tensor y = rpc_sync<da_add>((rank + 3) % 4, rpc_sync<da_add>(rank + 1, a, a), a).sum();
      ++ready;
      until(ready, 4);
      if (rank == 0) {
        c.kill(1);
        c.kill(3);
        ++killed;
      }
      until(killed, 1);
      try {
        context.backward({y}, {.mode = mode});
      } catch (const PeerLost& e) {
        failed += e.peer == "worker1" || e.peer == "worker3";
      }
      EXPECT_FALSE(context.gradient(a).defined());
    });
    EXPECT_EQ(failed, 2);
    const auto left = [&](const char* key) {
      return c.agent(0)->debug_info().at(key) + c.agent(2)->debug_info().at(key);
    };
    EXPECT_TRUE(eventually(c, [&] {
      return left("dist_autograd.num_current_backward_passes") +
                 left("dist_autograd.num_autograd_contexts") ==
             0;
    }));
  }
}

// test_backward_node_failure: the dead worker is named
TEST_P(DistAutogradErrors, a_dead_worker_ends_the_pass_with_an_error_that_names_it) {
  for (const Backward mode : kModes) {
    Cluster c(mortal());
    c.run(0, [&] {
      const Tensor a = leaf({2});
      Context context;
      const Tensor y = rpc_sync<da_add>("worker2", rpc_sync<da_add>("worker1", a, a), a).sum();
      c.kill(1);
      try {
        context.backward({y}, {.mode = mode});
        FAIL() << "no error";
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker1");
        EXPECT_TRUE(has(e.what(), "worker 'worker1'"));
      }
      EXPECT_TRUE(eventually(c, [&] { return passes(c, 1) == 0; }));
    });
    EXPECT_TRUE(eventually(c, [&] { return contexts(c, 1) == 0; }));
  }
}

// test_backward_node_failure_python_udf
TEST_P(DistAutogradErrors, a_dead_last_hop_of_a_nested_chain_is_named_to_who_began_the_pass) {
  for (const Backward mode : kModes) {
    Cluster c(mortal());
    c.run(0, [&] {
      const Tensor a = leaf({2});
      Context context;
      const Tensor y = rpc_sync<da_way>("worker1", a, std::vector<int64_t>{2, 3}).sum();
      c.kill(3);
      try {
        context.backward({y}, {.mode = mode});
        FAIL() << "no error";
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker3");
        EXPECT_TRUE(has(e.what(), "On worker 'worker2'"));  // who found out
        EXPECT_TRUE(has(e.what(), "worker 'worker3'"));
      }
      EXPECT_TRUE(eventually(c, [&] { return passes(c, 3) == 0; }));
    });
    EXPECT_TRUE(eventually(c, [&] { return contexts(c, 3) == 0; }));
  }
}

/// A pass begun on a thread of the pool.
Future<void> begin_pass(int64_t context_id, const Tensor& root, Backward mode) {
  Future<void> done;
  current_runtime()->post([done, agent = current_agent(), context_id, root, mode] {
    const AgentScope scope(agent);
    try {
      dist_autograd::backward(context_id, {root}, {.mode = mode});
      done.set_result();
    } catch (...) {
      done.set_error(std::current_exception());
    }
  });
  return done;
}

// test_clean_context_during_backward: released while the pass is in the middle of the chain, held there by a
// gate
TEST_P(DistAutogradErrors, a_context_released_in_the_middle_of_its_pass_ends_it_everywhere_without_harm) {
  for (const Backward mode : kModes)
    for (int round = 0; round < 3; ++round) {
      Cluster c(options());
      da_gate().close();
      c.run(0, [&] {
        const Tensor a = leaf({2});
        auto context = std::make_unique<Context>();
        const int64_t id = context->id();
        // the pass comes to the gate of worker 3 first
        const Tensor y = rpc_sync<da_way_gated>("worker1", a, std::vector<int64_t>{2, 3}).sum();
        const Future<void> done = begin_pass(id, y, mode);
        ASSERT_TRUE(eventually(c, [] { return da_gate().reached > 0; }));
        EXPECT_GE(passes(c), 4);
        context.reset();
        EXPECT_TRUE(has(text_of<AutogradError>([&] { done.wait(); }), "was released during a backward pass"));
        EXPECT_TRUE(eventually(c, [&] { return contexts(c) == 0; }));
        da_gate().open = true;  // only now does the node of worker 3 return, into a pass that has ended
        text_of<AutogradError>([&] { dist_autograd::backward(id, {y}); });
        EXPECT_TRUE(same_bits(rpc_sync<da_add>("worker3", a, a).detach(), full({2}, 2.0)));
      });
      EXPECT_TRUE(eventually(c, [&] { return passes(c) == 0 && contexts(c) == 0; }));
    }
}

// test_debug_info (autograd)
TEST_P(DistAutogradErrors, counters_rise_during_a_pass_and_return_to_zero) {
  for (const Backward mode : kModes) {
    Cluster c(options());
    EXPECT_EQ(passes(c) + contexts(c), 0);
    da_gate().close();
    c.run(0, [&] {
      const Tensor a = leaf({2});
      Context context;
      EXPECT_EQ(contexts(c), 1);
      const Tensor y = rpc_sync<da_way_gated>("worker1", a, std::vector<int64_t>{2}).sum();
      EXPECT_EQ(contexts(c), 3);
      EXPECT_EQ(passes(c), 0);
      const Future<void> done = begin_pass(context.id(), y, mode);
      ASSERT_TRUE(eventually(c, [] { return da_gate().reached > 0; }));
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ(c.agent(rank)->debug_info().at("dist_autograd.num_current_backward_passes"), 1) << rank;
      EXPECT_EQ(passes(c), 3);
      da_gate().open = true;
      done.wait();
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
      EXPECT_TRUE(eventually(c, [&] { return passes(c) == 0; }));
      EXPECT_EQ(contexts(c), 3);
    });
    EXPECT_TRUE(eventually(c, [&] { return contexts(c) == 0; }));
  }
}

// test_backward_without_context, test_backward_invalid_args (six errors)
TEST_P(DistAutogradErrors, bad_arguments_are_named) {
  Cluster c(options());
  c.run(0, [&] {
    EXPECT_TRUE(has(text_of<AutogradError>([] { dist_autograd::backward(99, {leaf({1}).sum()}); }),
                    "could not find autograd context with id 99"));
    Context context;
    const Tensor a = leaf({2});
    const Tensor fine = (a * 2.0).sum();
    const auto refused = [&](const std::vector<Tensor>& roots) {
      return text_of<AutogradError>([&] { context.backward(roots); });
    };
    EXPECT_TRUE(has(refused({}), "no roots were given"));
    EXPECT_TRUE(has(refused({fine, Tensor()}), "root 1 is undefined"));
    EXPECT_TRUE(has(refused({fine, ones({1})}), "root 1 does not require grad"));
    EXPECT_TRUE(has(refused({a * 2.0}), "root 0 is not a scalar, its sizes are [2]"));
    EXPECT_TRUE(has(refused({fine, leaf({1})}), "root 1 is a leaf and has no gradient function"));
    EXPECT_TRUE(dist_autograd::get_gradients(context.id()).empty());
    context.backward({fine});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
  });
}

TEST_P(DistAutogradErrors, a_local_backward_over_a_remote_graph_says_what_to_call_instead) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const Tensor y = rpc_sync<da_add>("worker1", leaf({1}), leaf({1}));
    EXPECT_TRUE(has(text_of<AutogradError>([&] { y.sum().backward(); }), "dist_autograd::backward"));
  });
}

/// A message of gradients as a worker would send it, with the faults.
struct Gradients {
  int64_t context = 0, send = 0;
  std::vector<bool> present{};
  std::vector<Tensor> tensors{};
};
void send_gradients(Agent& from, WorkerId to, const Gradients& g) {
  static std::atomic<int64_t> passes{1000};
  Message message;
  {
    Encoder out(message, &from, to);
    const auto id = [&](int64_t made, Incarnation life) {
      out.number(made);
      out.number(life.value);
    };
    id(g.context, from.life_of(to).incarnation);
    id(static_cast<int64_t>(from.self().id.value) << 48 | ++passes, from.life().incarnation);
    id(g.send, from.life_of(to).incarnation);
    out.number(static_cast<uint8_t>(Backward::kFast));
    out.number(uint8_t{0});           // retain_graph
    out.number(uint8_t{0});           // create_graph
    out.number(int64_t{1000000000});  // stall
    out.number(int64_t{0});           // no earlier pass has ended
    out.size(0);                      // marks
    out.size(g.present.size());
    for (const bool p : g.present) out.number(static_cast<uint8_t>(p));
    for (const Tensor& t : g.tensors) out.tensor(t);
  }
  from.call(to, Kind::kGradients, std::move(message), {Duration(60s), "gradients by hand"}).wait();
}

// C++ TestSendFunctionInvalidInputs, TestInitializedContextCleanup,
// TestInitializedContextCleanupSendFunction. An undefined gradient, which upstream refuses, is an absent one
// here.
TEST_P(DistAutogradErrors, gradients_that_do_not_fit_their_send_are_refused_and_no_pass_is_left) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2}), one = ones({2});
    Context context;
    rpc_sync<da_add>("worker1", a, b);
    const int64_t id = context.id(), send = dist_autograd::graph(id).at(0).message;
    const auto refused = [&](const Gradients& g) {
      std::string text;
      try {
        send_gradients(*c.agent(1), WorkerId{0}, g);
        ADD_FAILURE() << "taken";
      } catch (const Error& e) {
        text = e.what();
      }
      EXPECT_TRUE(eventually(c, [&] { return passes(c) == 0; }));
      return text;
    };
    EXPECT_TRUE(has(refused({id, send, {true, true, true}, {one, one, one}}),
                    "has 2 slots; 3 came with 3 gradients"));
    EXPECT_TRUE(has(refused({id, send, {true, true}, {one, ones({3})}}),
                    "slot 1 takes a gradient of sizes [2], got [3]"));
    EXPECT_TRUE(has(refused({id, send + 40, {true, true}, {one, one}}), "could not find send #"));
    EXPECT_TRUE(
        has(refused({id + 40, send, {true, true}, {one, one}}), "could not find autograd context with id"));
    EXPECT_FALSE(refused({id, send, {true, true}, {one}}).empty());            // fewer tensors than it says
    EXPECT_FALSE(refused({id, send, {true, true}, {one, one, one}}).empty());  // more
    EXPECT_TRUE(dist_autograd::get_gradients(id).empty());

    send_gradients(*c.agent(1), WorkerId{0}, {id, send, {true, false}, {one}});
    EXPECT_TRUE(same_bits(context.gradient(a), one));
    EXPECT_FALSE(context.gradient(b).defined());
    send_gradients(*c.agent(1), WorkerId{0}, {id, send, {true, true}, {one, one}});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
    EXPECT_TRUE(same_bits(context.gradient(b), one));
    EXPECT_EQ(passes(c), 0);
  });
}

}  // namespace
