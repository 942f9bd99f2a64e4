// Requests of a member that claim the property of others, and the access lists of requests that run no
// function. Each is refused with a typed error and changes nothing. The sender writes them by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/inner/access.h>
#include <weft/distributed/rpc/inner/gather_messages.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>
#include <weft/distributed/wire/inner/wire_format.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

Gate claims_gate;
int64_t claims_wait(int64_t n) {
  claims_gate.pass();
  return n;
}
WEFT_RPC(claims_wait);
int64_t claims_same(int64_t n) { return n; }
WEFT_RPC(claims_same);
Tensor claims_forward(const Tensor& x) { return x * full({1}, 2.0).requires_grad_(); }
WEFT_RPC(claims_forward);

/// The body of a gather of these lives, as the worker that asks for it writes it.
Message gather_of(const std::vector<Life>& lives, bool whole, const std::string& dead = "",
                  uint64_t set = 0) {
  Message m;
  Encoder out(m);
  std::vector<int32_t> ids;
  std::vector<uint64_t> incarnations;
  for (const Life& life : lives) ids.push_back(life.id.value), incarnations.push_back(life.incarnation.value);
  out.put(whole), out.number(set), out.put(ids), out.put(incarnations);
  out.number(uint64_t{0}), out.number(int64_t{0});
  out.put(true), out.put(false), out.put(dead), out.put(std::string("it is said"));
  out.put(std::string()), out.put(std::vector<Tensor>());
  return m;
}

void send_gather(Cluster& c, int from, int to, Message m) {
  c.agent(from)->call(WorkerId{to}, Kind::kGather, std::move(m), {Duration(5s), nullptr}).wait();
}

TEST(RpcClaims, sets_of_lives_have_numbers_by_SipHash) {
  // the reference vector of the bytes 0 to 7
  const uint64_t words[] = {0x0706050403020100U, uint64_t{8} << 56};
  EXPECT_EQ(sip_hash(words, 0x0706050403020100U, 0x0f0e0d0c0b0a0908U), 0x93f5f5799a932462U);
  std::set<uint64_t> numbers;
  for (int32_t id = 0; id < 4; ++id)
    for (uint64_t life = 0; life < 4; ++life) {
      numbers.insert(set_of({{WorkerId{id}, {life}}}));
      numbers.insert(set_of({{WorkerId{0}, {1}}, {WorkerId{id}, {life}}}));
    }
  EXPECT_EQ(numbers.size(), 32U);
}

TEST(RpcClaims, a_gather_by_the_hash_of_its_lives_has_these_only_and_is_asked_for_unknown_ones) {
  Cluster c({.size = 3});
  std::vector<Life> lives{c.agent(0)->life(), c.agent(1)->life()};
  std::sort(lives.begin(), lives.end());
  const auto attach = [&](int from, uint64_t set) {
    return c.agent(from)
        ->call(WorkerId{0}, Kind::kGather, gather_of({}, false, "", set), {Duration(5s), nullptr})
        .wait();
  };
  c.run_all([&](int rank) {
    if (rank != 2) barrier({"worker0", "worker1"});
  });
  c.run(2, [&] { EXPECT_THROW(attach(2, set_of(lives)), NotAllowed); });
  c.run(1, [&] {
    const Message answer = attach(1, set_of(lives) + 1);
    Decoder in(answer, c.agent(1).get(), WorkerId{0}, true);
    EXPECT_TRUE(in.get<bool>());
  });
}

TEST(RpcClaims, a_gather_of_named_workers_has_these_only_and_its_own_leader) {
  Cluster c({.size = 4});
  c.run_all([&](int rank) {
    const std::vector<Life> lives{c.agent(0)->life(), c.agent(1)->life()};
    if (rank == 2) {
      current_runtime()->sleep_for(100ms);  // worker 1 is in the round
      EXPECT_THROW(send_gather(c, 2, 0, gather_of(lives, false)), NotAllowed);
      EXPECT_THROW(send_gather(c, 2, 1, gather_of({lives[0], c.agent(2)->life()}, false)), NotAllowed);
      EXPECT_THROW(send_gather(c, 2, 0, gather_of({lives[0], {WorkerId{2}, {77}}}, false)), NotAllowed);
      EXPECT_THROW(send_gather(c, 2, 0, gather_of({{WorkerId{-5}}, c.agent(2)->life()}, false)), WireError);
    }
    if (rank == 0) current_runtime()->sleep_for(1s);
    if (rank > 1) return;
    const auto all = all_gather<int64_t>(rank, {"worker0", "worker1"});
    EXPECT_EQ(all, (std::map<std::string, int64_t>{{"worker0", 0}, {"worker1", 1}}));
  });
}

TEST(RpcClaims, a_gather_of_all_is_not_ended_by_a_loss_of_one_that_did_not_lead) {
  Cluster c({.size = 3});
  c.run_all([&](int rank) {
    if (rank == 2) {
      current_runtime()->sleep_for(100ms);
      EXPECT_THROW(send_gather(c, 2, 0, gather_of({}, true, "worker1")), NotAllowed);
    }
    if (rank == 0) current_runtime()->sleep_for(1s);
    EXPECT_EQ(all_gather<int64_t>(rank).size(), 3u);
  });
}

/// Sends a message with a handwritten envelope.
void send_raw(Cluster& c, int from, int to, uint8_t kind, Message m, const Envelope& e) {
  seal(m);
  stamp(m, e);
  c.agent(from)->transport().send(WorkerId{to}, kind, std::move(m.bytes));
}

TEST(RpcClaims, a_request_whose_floor_is_beyond_it_is_refused_and_finishes_nothing) {
  Cluster c({.size = 2});
  claims_gate.close();
  c.run(1, [&] {
    const auto open = rpc_async<claims_wait>("worker0", 7);
    ASSERT_TRUE(eventually(c, [] { return claims_gate.reached == 1; }));
    const int64_t before = c.agent(0)->debug_info().at("agent.malformed");
    Message m;
    {
      Encoder out(m);
      put_function(out, function_entry<claims_same>());
      out.put(int64_t{1});
    }
    send_raw(c, 1, 0, static_cast<uint8_t>(Kind::kCall), std::move(m),
             {.sequence = uint64_t{1} << 40, .floor = uint64_t{1} << 61});
    EXPECT_TRUE(eventually(c, [&] { return c.agent(0)->debug_info().at("agent.malformed") == before + 1; }));
    claims_gate.open = true;
    EXPECT_EQ(open.wait(), 7);
    EXPECT_EQ(rpc_sync<claims_same>("worker0", 8), 8);
  });
}

TEST(RpcClaims, a_status_that_lists_more_calls_than_a_caller_lists_is_malformed_and_finishes_nothing) {
  Cluster c({.size = 2});
  c.run(1, [&] {
    const int64_t before = c.agent(0)->debug_info().at("agent.malformed");
    std::vector<uint64_t> open(4097);
    std::iota(open.begin(), open.end(), uint64_t{1} << 20);
    Message m;
    {
      Encoder out(m);
      out.number(uint8_t{0}), out.number(uint64_t{1} << 40);
      out.put(open);
    }
    send_raw(c, 1, 0, static_cast<uint8_t>(Kind::kStatus), std::move(m), {});
    EXPECT_TRUE(eventually(c, [&] { return c.agent(0)->debug_info().at("agent.malformed") == before + 1; }));
    EXPECT_EQ(rpc_sync<claims_same>("worker0", 8), 8);
  });
}

TEST(RpcClaims, a_reply_of_another_kind_than_its_request_is_no_answer) {
  Cluster c({.size = 2});
  claims_gate.close();
  c.run(1, [&] {
    const auto open = rpc_async<claims_wait>("worker0", 7);
    ASSERT_TRUE(eventually(c, [] { return claims_gate.reached == 1; }));
    const uint64_t sequence = c.agent(1)->calls().at(0).sequence;
    for (const Kind kind : {Kind::kGather, Kind::kFetch})
      send_raw(c, 0, 1, static_cast<uint8_t>(static_cast<uint8_t>(kind) | kReplyBit), {},
               {.sequence = sequence});
    EXPECT_TRUE(eventually(c, [&] { return c.agent(1)->debug_info().at("agent.malformed") == 2; }));
    EXPECT_FALSE(open.done());
    claims_gate.open = true;
    EXPECT_EQ(open.wait(), 7);
    EXPECT_EQ(c.agent(1)->debug_info().at("agent.client_active_calls"), 0);
  });
}

TEST(RpcClaims, access_lists_cover_requests_that_run_no_function) {
  EXPECT_EQ(access_name(Kind::kFetch), "weft::fetch");
  EXPECT_EQ(access_name(Kind::kUser), "weft::kind 64");
  EXPECT_EQ(access_name(Kind::kDelete), "");
  Cluster c({.size = 3, .each = [](int rank, AgentOptions& o) {
               if (rank != 1) return;
               for (const char* what : {"weft::fetch", "weft::gather", "weft::backward", "weft::kind 64"})
                 o.allow[what] = {"worker0"};
             }});
  c.agent(1)->handle(Kind::kUser, RunOn::kPool, [](Request, Responder r) { r.reply({}); });
  for (const int rank : {0, 2})
    c.run(rank, [&] {
      const auto there = remote<claims_same>("worker1", 5);
      const auto user = [&] { c.agent(rank)->call(WorkerId{1}, Kind::kUser, {}).wait(); };
      const auto pass = [&] {
        dist_autograd::Context context;
        context.backward({rpc_sync<claims_forward>("worker1", full({1}, 1.0).requires_grad_()).sum()});
      };
      const auto gather = [&] {
        send_gather(c, rank, 1, gather_of({c.agent(1)->life(), c.agent(2)->life()}, false));
      };
      if (rank == 0) {
        EXPECT_EQ(there.to_here(), 5);
        EXPECT_NO_THROW(user());
        EXPECT_NO_THROW(pass());
        return;
      }
      EXPECT_THROW(there.to_here(), NotAllowed);
      EXPECT_THROW(user(), NotAllowed);
      EXPECT_THROW(pass(), NotAllowed);
      EXPECT_THROW(gather(), NotAllowed);
    });
}

TEST(RpcClaims, what_is_not_listed_is_closed_on_request_but_the_groups_own_messages_are_not) {
  Cluster c({.size = 3, .each = [](int rank, AgentOptions& o) {
               if (rank != 1) return;
               o.allow["claims_same"] = o.allow["claims_forward"] = {"worker2"};
               o.deny_unlisted = true;
             }});
  c.agent(1)->handle(Kind::kUser, RunOn::kPool, [](Request, Responder r) { r.reply({}); });
  c.run_all([](int) { barrier(); });
  c.run(2, [&] {
    const auto there = remote<claims_same>("worker1", 5);
    there.created().wait();
    EXPECT_THROW(there.to_here(), NotAllowed);
    EXPECT_THROW(c.agent(2)->call(WorkerId{1}, Kind::kUser, {}).wait(), NotAllowed);
    dist_autograd::Context context;
    context.backward({rpc_sync<claims_forward>("worker1", full({1}, 1.0).requires_grad_()).sum()});
  });
  c.shutdown();
}

}  // namespace
