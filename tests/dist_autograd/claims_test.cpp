// Messages of contexts and passes from a member that takes no part in them: each is refused with a typed
// error and changes nothing. The sender writes them by hand, as a faulty worker would.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using test::Cluster;

Tensor claimed_leaf(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }

Tensor& claimed_weight() {
  static Tensor w = claimed_leaf(3);
  return w;
}
Tensor claimed_forward(const Tensor& x) { return x * claimed_weight(); }
WEFT_RPC(claimed_forward);
/// Goes through all workers with higher ids than the first.
Tensor claimed_chain(const Tensor& x, int64_t last) {
  const int64_t here = current_agent()->self().id.value;
  return here == last ? x * 2.0 : rpc_sync<claimed_chain>(static_cast<int>(here + 1), x, last);
}
WEFT_RPC(claimed_chain);
double claimed_gradient(int64_t context) {
  const Tensor g = dist_autograd::get_gradient(context, claimed_weight());
  return g.defined() ? g.to_vector<double>()[0] : 0;
}
WEFT_RPC(claimed_gradient);
RRef<Tensor> claimed_param() { return RRef<Tensor>(claimed_weight()); }
WEFT_RPC(claimed_param);

int64_t claimed_counter(Cluster& c, int rank, const char* key) {
  return c.agent(rank)->debug_info().at(str("dist_autograd.num_", key));
}
int64_t contexts_at(Cluster& c, int rank) { return claimed_counter(c, rank, "autograd_contexts"); }

/// An id that worker `maker` made, as messages have it.
void put_made(Cluster& c, Encoder& out, int maker, int64_t id) {
  out.number(id), out.number(c.agent(maker)->life().incarnation.value);
}

/// Sends a message as `from` and waits for the answer.
void send_claim(Cluster& c, int from, int to, Kind kind, const std::function<void(Encoder&)>& write) {
  Message m;
  {
    Encoder out(m);
    write(out);
  }
  c.agent(from)->call(WorkerId{to}, kind, std::move(m), {Duration(5s), nullptr}).wait();
}

void send_release(Cluster& c, int from, int to, int64_t context) {
  send_claim(c, from, to, Kind::kRelease, [&](Encoder& out) { put_made(c, out, 0, context); });
}

/// The sends of a worker in a context, by number.
std::vector<int64_t> sends_at(Cluster& c, int rank, int64_t context) {
  std::vector<int64_t> out;
  c.run(rank, [&] {
    for (const auto& node : dist_autograd::graph(context))
      if (node.is_send) out.push_back(node.message);
  });
  return out;
}

TEST(DistClaims, a_context_is_released_by_its_maker_and_its_callers_only) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    const Tensor x = claimed_leaf(5);
    Context context;
    const Tensor loss = rpc_sync<claimed_forward>("worker1", x).sum();
    EXPECT_THROW(send_release(c, 2, 1, context.id()), NotAllowed);
    EXPECT_THROW(send_release(c, 2, 0, context.id()), NotAllowed);
    EXPECT_THROW(send_release(c, 1, 0, context.id()), NotAllowed);
    EXPECT_EQ(contexts_at(c, 0), 1);
    EXPECT_EQ(contexts_at(c, 1), 1);
    context.backward({loss});
    EXPECT_EQ(rpc_sync<claimed_gradient>("worker1", context.id()), 5);
  });
  EXPECT_TRUE(test::eventually(c, [&] { return contexts_at(c, 1) == 0; }));
}

TEST(DistClaims, a_release_before_the_first_call_ends_no_context) {
  Cluster c({.size = 3});
  for (int64_t id = 0; id < 4; ++id) EXPECT_THROW(send_release(c, 2, 1, id), NotAllowed);
  c.run(0, [&] {
    for (int i = 0; i < 4; ++i) {
      const Tensor x = claimed_leaf(5);
      Context context;
      context.backward({rpc_sync<claimed_forward>("worker1", x).sum()});
      EXPECT_EQ(rpc_sync<claimed_gradient>("worker1", context.id()), 5);
    }
  });
}

TEST(DistClaims, a_context_behind_a_lost_worker_ends_with_its_maker_alive) {
  Cluster c({.size = 5});
  c.run(0, [&] {
    {
      Context context;
      rpc_sync<claimed_chain>("worker1", claimed_leaf(1), 4);
      for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(contexts_at(c, rank), 1);
      c.kill(3);
      current_runtime()->sleep_for(1s);
    }
    EXPECT_TRUE(test::eventually(c, [&] { return contexts_at(c, 4) == 0 && contexts_at(c, 2) == 0; }));
  });
}

class DistPassClaims : public ::testing::TestWithParam<Backward> {};
INSTANTIATE_TEST_SUITE_P(Modes, DistPassClaims, ::testing::Values(Backward::kFast, Backward::kSmart),
                         [](const auto& info) { return info.param == Backward::kFast ? "fast" : "smart"; });

TEST_P(DistPassClaims, gradients_and_marks_of_a_send_come_from_its_receiver_only) {
  for (const bool takes_part : {false, true}) {
    Cluster c({.size = 3});
    claimed_weight() = claimed_leaf(3);
    c.run(0, [&] {
      const Tensor x = claimed_leaf(5);
      Context context;
      const Tensor loss = rpc_sync<claimed_forward>("worker1", x).sum();
      const std::vector<int64_t> sends = sends_at(c, 1, context.id());
      ASSERT_EQ(sends.size(), 1u);
      // worker 2 has a part in the context at worker 1, and none in this send
      if (takes_part) rpc_sync<claimed_chain>("worker2", rpc_sync<claimed_chain>("worker1", x, 2), 2);
      for (const int64_t send : {sends[0], int64_t{1} << 48 | 1000000}) {
        if (takes_part && send != sends[0]) continue;
        EXPECT_THROW(send_claim(c, 2, 1, Kind::kGradients,
                                [&](Encoder& out) {
                                  put_made(c, out, 0, context.id());
                                  put_made(c, out, 0, 0);  // the next pass of worker 0
                                  put_made(c, out, 1, send);
                                  out.number(static_cast<uint8_t>(GetParam()));
                                  out.number(uint8_t{0}), out.number(uint8_t{0});
                                  out.number(int64_t{0}), out.number(int64_t{0});
                                  out.size(0);  // no marks
                                  out.size(1), out.number(uint8_t{1});
                                  out.tensor(full({3}, 1000, {.dtype = kFloat64}));
                                }),
                     NotAllowed);
        EXPECT_THROW(send_claim(c, 2, 1, Kind::kMark,
                                [&](Encoder& out) {
                                  put_made(c, out, 0, context.id());
                                  put_made(c, out, 0, 0);
                                  out.number(c.agent(1)->life().incarnation.value);
                                  out.number(uint8_t{0}), out.number(uint8_t{0}), out.number(int64_t{0});
                                  out.size(1), out.number(send), out.put(std::vector<bool>{true});
                                }),
                     NotAllowed);
      }
      EXPECT_EQ(claimed_counter(c, 1, "current_backward_passes"), 0);
      if (takes_part && GetParam() == Backward::kFast) return;  // its own calls have no gradients
      context.backward({loss}, {.mode = GetParam()});
      EXPECT_EQ(rpc_sync<claimed_gradient>("worker1", context.id()), 5);
      EXPECT_EQ(context.gradient(x).to_vector<double>()[0], 3);
    });
  }
}

TEST_P(DistPassClaims, a_pass_is_ended_by_those_that_take_part_only) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const Tensor x = claimed_leaf(5);
    Context context;
    const Tensor loss = rpc_sync<claimed_forward>("worker1", x).sum();
    for (const int at : {0, 1}) {
      for (const uint8_t taking_back : {0, 1})
        EXPECT_THROW(send_claim(c, 2, at, Kind::kPassAbort,
                                [&](Encoder& out) {
                                  put_made(c, out, 0, context.id());
                                  put_made(c, out, 0, 0);
                                  out.number(taking_back);
                                  put_error(out, std::make_exception_ptr(RpcError("forged")));
                                }),
                     NotAllowed);
      EXPECT_THROW(send_claim(c, 2, at, Kind::kPassDone,
                              [&](Encoder& out) {
                                put_made(c, out, 0, context.id());
                                put_made(c, out, 0, 0);
                              }),
                   NotAllowed);
    }
    context.backward({loss}, {.mode = GetParam()});
    EXPECT_EQ(rpc_sync<claimed_gradient>("worker1", context.id()), 5);
  });
}

/// Worker 2 calls a method of the part that worker 0 has made on worker 1.
template <auto M, class... A>
void claim_method(Cluster& c, const RRef<dist_optim::OwnerOptimizer>& part, A... args) {
  EXPECT_THROW(send_claim(c, 2, 1, Kind::kMethod,
                          [&](Encoder& out) {
                            const RRefId id = part.id();
                            out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
                            out.number(uint8_t{1});
                            put_function(out, method_entry<dist_optim::OwnerOptimizer, M>());
                            put_arguments<M>(out, args...);
                          }),
               NotAllowed);
}

TEST(DistClaims, a_part_of_an_optimizer_is_used_by_the_worker_that_made_it_only) {
  for (const bool two_phase : {false, true}) {
    Cluster c({.size = 3});
    claimed_weight() = claimed_leaf(3);
    c.run(0, [&] {
      auto opt =
          dist_optim::make<optim::SGDRule>(std::vector<RRef<Tensor>>{rpc_sync<claimed_param>("worker1")},
                                           {.lr = 0.5}, {.two_phase = two_phase});
      Context context;
      context.backward({rpc_sync<claimed_forward>("worker1", claimed_leaf(2)).sum()});
      const auto& part = opt.owners()[0].optimizer;
      using dist_optim::OwnerOptimizer;
      claim_method<&OwnerOptimizer::mark>(c, part);
      claim_method<&OwnerOptimizer::step>(c, part, context.id());
      claim_method<&OwnerOptimizer::prepare>(c, part, context.id(), 0, std::string());
      claim_method<&OwnerOptimizer::decide>(c, part, 0, true);
      claim_method<&OwnerOptimizer::end_doubt>(c, part);
      claim_method<&OwnerOptimizer::set_lr>(c, part, 0, 100.0);
      claim_method<&OwnerOptimizer::scale>(c, part, context.id(), 100.0);
      claim_method<&OwnerOptimizer::hold_shard>(c, part, dist_optim::ShardTerms{});
      claim_method<&OwnerOptimizer::end_shard>(c, part, true);
      claim_method<&OwnerOptimizer::state>(c, part);
      EXPECT_EQ(claimed_weight().to_vector<double>()[0], 3);
      EXPECT_EQ(part.rpc_sync<&dist_optim::OwnerOptimizer::lrs>(), std::vector<double>{0.5});
      opt.step(context.id());
      EXPECT_EQ(claimed_weight().to_vector<double>()[0], 2);
    });
  }
}

}  // namespace
