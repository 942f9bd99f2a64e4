// Messages of references that claim the property of another worker: each is refused with a typed error and
// changes nothing. The sender writes them by hand, as a faulty worker would.
#include "rref/world.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

ForkId held_fork;  ///< of the reference that hold_cell has
Gate holding;
void hold_cell(const RRef<Cell>& cell) {
  held_fork = cell.fork_id();
  holding.pass();
}
WEFT_RPC(hold_cell);

template <class Number> void put_id(Encoder& out, const Number& id) {
  out.number(id.created_on.value), out.number(id.life.value), out.number(id.local);
}

/// Sends a message as `from` and waits for the answer.
void send(Cluster& c, int from, int to, Kind kind, const std::function<void(Encoder&)>& write) {
  Message m;
  {
    Encoder out(m);
    write(out);
  }
  c.agent(from)->call(WorkerId{to}, kind, std::move(m), {Duration(1s), nullptr}).wait();
}

/// `refused`: as after a creation that was answered by an error.
void send_delete(Cluster& c, int from, const std::vector<std::pair<RRefId, ForkId>>& all,
                 bool refused = false) {
  send(c, from, 0, Kind::kDelete, [&](Encoder& out) {
    out.size(all.size());
    for (const auto& [id, fork] : all)
      put_id(out, id), put_id(out, fork), out.put(std::string()), out.number(static_cast<uint8_t>(refused));
  });
}

int64_t counter(Cluster& c, int rank, const std::string& key) { return c.agent(rank)->debug_info().at(key); }

void expect_clean(Cluster& c) {
  std::vector<int> ranks;
  for (int rank = 0; rank < c.size(); ++rank) ranks.push_back(rank);
  settle(c);
  clear_bags();
  settle(c);
  EXPECT_EQ(left_over(c, ranks), "");
  EXPECT_EQ(Cell::living, 0);
}

TEST(RRefClaims, a_delete_of_another_workers_fork_is_refused_and_deletes_nothing) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto mine = make_rref<Cell>(5);
    for (const int to : {1, 2}) rpc_sync<keep_cell>(to, Known{5, mine});
  });
  const RRefId id = bag(1).at(0).cell.id();
  const ForkId of_1 = bag(1).at(0).cell.fork_id(), of_2 = bag(2).at(0).cell.fork_id();
  c.run(2, [&] {
    EXPECT_THROW(send_delete(c, 2, {{id, of_1}}), NotAllowed);
    EXPECT_EQ(counter(c, 0, "num_forks"), 2);
    EXPECT_THROW(send_delete(c, 2, {{id, of_2}, {id, of_1}}), NotAllowed);
    EXPECT_EQ(counter(c, 0, "num_forks"), 2);
  });
  for (const int rank : {1, 2})
    c.run(rank, [&] { EXPECT_EQ(bag(rank).at(0).cell.rpc_sync<&Cell::get>(), 5); });
  expect_clean(c);
}

TEST(RRefClaims, an_accept_of_a_share_with_another_worker_is_refused_and_keeps_the_parent) {
  Cluster c({.size = 4});
  holding.close();
  c.run(0, [&] {
    auto there = remote<Cell>("worker1", 5);
    there.created().wait();
    auto held = rpc_async<hold_cell>("worker2", there);
    ASSERT_TRUE(eventually(c, [] { return holding.reached == 1; }));
    there = {};
    EXPECT_EQ(counter(c, 0, "num_pending_children"), 1);
    const auto accept = [](Encoder& out) { out.number(uint8_t{0}), put_id(out, held_fork); };
    EXPECT_THROW(send(c, 3, 0, Kind::kAccept, accept), NotAllowed);
    EXPECT_EQ(counter(c, 0, "num_pending_children"), 1);
    holding.open = true;
    held.wait();
  });
  expect_clean(c);
}

TEST(RRefClaims, a_probe_of_a_fork_that_the_sender_did_not_draw_refuses_no_child) {
  Cluster c({.size = 3});
  const Incarnation life = c.agent(0)->life().incarnation;
  for (uint64_t local = 1; local < 50; ++local)
    EXPECT_THROW(send(c, 2, 1, Kind::kAccept,
                      [&](Encoder& out) {
                        out.number(uint8_t{1});
                        put_id(out, ForkId{WorkerId{0}, life, local});
                      }),
                 NotAllowed);
  c.run(0, [&] { EXPECT_EQ(rpc_sync<read_cell>("worker1", make_rref<Cell>(5)), 5); });
  expect_clean(c);
}

TEST(RRefClaims, a_fork_that_the_owner_drew_cannot_be_added_by_a_user) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto mine = make_rref<Cell>(5);
    rpc_sync<keep_cell>("worker1", Known{5, mine});
    const ForkId of_1 = bag(1).at(0).cell.fork_id();
    for (const uint64_t later : {0, 1, 1000}) {
      const ForkId claimed{of_1.created_on, of_1.life, of_1.local + later};
      EXPECT_THROW(
          send(c, 2, 0, Kind::kFork,
               [&](Encoder& out) { put_id(out, mine.id()), put_id(out, claimed), out.number(uint8_t{1}); }),
          NotAllowed);
      EXPECT_EQ(counter(c, 0, "num_forks"), 1);
    }
    EXPECT_EQ(rpc_sync<read_cell>("worker1", mine), 5);
  });
  expect_clean(c);
}

TEST(RRefClaims, a_fork_of_a_value_that_is_never_created_leaves_nothing_once_it_is_deleted) {
  Cluster c({.size = 3});
  const Incarnation life = c.agent(1)->life().incarnation;
  const RRefId gone{WorkerId{1}, life, 1000};
  const ForkId fork{WorkerId{1}, life, 1001};
  send(c, 2, 0, Kind::kFork,
       [&](Encoder& out) { put_id(out, gone), put_id(out, fork), out.number(uint8_t{0}); });
  EXPECT_EQ(counter(c, 0, "num_owner_rrefs"), 1);
  EXPECT_EQ(counter(c, 0, "agent.watches"), 2);  // of its maker and of its holder
  send_delete(c, 2, {{gone, fork}});
  expect_clean(c);
  EXPECT_EQ(counter(c, 0, "agent.watches"), 0);
}

TEST(RRefClaims, a_value_lives_though_another_worker_let_go_of_it_before_it_was_created) {
  Cluster c({.size = 3});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kRemote),
                    .from = WorkerId{0},
                    .to = WorkerId{1},
                    .count = 1,
                    .action = FaultRule::Action::kDelay,
                    .delay = 200ms});
  c.run(0, [&] {
    auto late = remote<Cell>("worker1", 5);
    rpc_sync<hold_cell>("worker2", late);
    c.sim().sleep_for(50ms);
    EXPECT_EQ(counter(c, 1, "num_owner_rrefs"), 0);
    EXPECT_EQ(late.rpc_sync<&Cell::get>(), 5);
    EXPECT_EQ(rpc_sync<read_cell>("worker2", late), 5);
  });
  expect_clean(c);
}

TEST(RRefClaims, requests_for_a_value_whose_creation_was_refused_fail_and_leave_nothing) {
  Cluster c({.size = 3});
  const Incarnation life = c.agent(1)->life().incarnation;
  const RRefId id{WorkerId{1}, life, 1000};
  const ForkId creators{WorkerId{1}, life, 1001}, others{WorkerId{1}, life, 1002};
  const auto fetch = [&](int from) {
    Message m;
    {
      Encoder out(m);
      put_id(out, id), out.number(uint8_t{0});
    }
    return c.agent(from)->call(WorkerId{0}, Kind::kFetch, std::move(m), {Duration(60s), nullptr});
  };
  const auto waiting = fetch(1);
  send(c, 2, 0, Kind::kFork,
       [&](Encoder& out) { put_id(out, id), put_id(out, others), out.number(uint8_t{0}); });
  send_delete(c, 2, {{id, creators}}, true);  // another worker does not decide
  send_delete(c, 1, {{id, creators}});        // nor does an end of another kind
  EXPECT_FALSE(waiting.done());
  send_delete(c, 1, {{id, creators}}, true);
  const std::string text = "its creation was answered by an error";
  EXPECT_TRUE(has(error_of<RpcError>([&] { waiting.wait(); }), text));
  EXPECT_TRUE(has(error_of<RpcError>([&] { fetch(2).wait(); }), text));
  send_delete(c, 2, {{id, others}});
  EXPECT_TRUE(has(error_of<RpcError>([&] { fetch(1).wait(); }), text));  // one that came late
  expect_clean(c);
  EXPECT_EQ(counter(c, 0, "agent.watches"), 0);
}

TEST(RRefClaims, an_id_of_another_life_cannot_be_created) {
  Cluster c({.size = 3});
  const Incarnation life = c.agent(1)->life().incarnation;
  for (const RRefId id : {RRefId{WorkerId{2}, c.agent(2)->life().incarnation, 1000},
                          RRefId{WorkerId{1}, Incarnation{life.value + 1}, 1000}})
    EXPECT_THROW(send(c, 1, 0, Kind::kRemote,
                      [&](Encoder& out) {
                        put_id(out, id), put_id(out, ForkId{WorkerId{1}, life, 1001});
                        out.number(uint8_t{0});
                      }),
                 NotAllowed);
  EXPECT_THROW(send(c, 1, 0, Kind::kRemote,
                    [&](Encoder& out) {
                      put_id(out, RRefId{WorkerId{1}, life, 1000});
                      put_id(out, ForkId{WorkerId{2}, c.agent(2)->life().incarnation, 1001});
                      out.number(uint8_t{0});
                    }),
               NotAllowed);
  EXPECT_EQ(left_over(c, {0, 1, 2}), "");
}

TEST(RRefClaims, a_use_before_a_creation_that_cannot_come_leaves_no_entry) {
  Cluster c({.size = 2});
  const Incarnation life = c.agent(0)->life().incarnation;
  for (const RRefId id : {RRefId{WorkerId{-7}, {1}, 1}, RRefId{WorkerId{1 << 20}, {1}, 2},
                          RRefId{WorkerId{0}, life, 1000000}, RRefId{WorkerId{0}, {life.value + 1}, 5}})
    for (const Kind kind : {Kind::kFetch, Kind::kFork}) {
      EXPECT_THROW(send(c, 1, 0, kind,
                        [&](Encoder& out) {
                          put_id(out, id);
                          if (kind == Kind::kFork)
                            put_id(out, ForkId{WorkerId{1}, c.agent(1)->life().incarnation, 1000});
                          out.number(uint8_t{0});
                        }),
                   Error);
      EXPECT_EQ(counter(c, 0, "num_owner_rrefs"), 0) << to_string(id);
      EXPECT_EQ(counter(c, 0, "num_forks"), 0) << to_string(id);
    }
  expect_clean(c);
}

void send_call(Cluster& c, int from, int to, const std::string& body) {
  send(c, from, to, Kind::kCall, [&](Encoder& out) { out.raw(body.data(), body.size()); });
}

TEST(RRefClaims, a_reference_that_its_sender_did_not_share_is_refused) {
  Cluster c({.size = 3});
  const auto last = std::make_shared<LastCall>();
  c.agent(0)->add_interceptor(last);
  c.run(0, [&] {
    const auto mine = make_rref<Cell>(7);
    const auto there = remote<Cell>("worker2", 8);
    c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall), .from = WorkerId{0}});
    for (const auto& r : {mine, there}) {
      const auto lost = rpc_async<keep_cell>("worker1", Known{7, r});
      EXPECT_THROW(send_call(c, 2, 1, last->body), NotAllowed);
    }
    c.net().clear_rules();
    c.runtime().sleep_for(2s);  // now the calls themselves arrive
    EXPECT_EQ(bag(1).size(), 2u);
  });
  expect_clean(c);
}

TEST(RRefClaims, a_child_that_was_refused_stays_refused_at_every_later_arrival) {
  for (const bool crowded : {false, true}) {
    Cluster c({.size = 2});
    const auto last = std::make_shared<LastCall>();
    c.agent(0)->add_interceptor(last);
    c.run(0, [&] {
      const auto mine = make_rref<Cell>(7);
      c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall)});
      EXPECT_THROW(rpc_sync<keep_cell>({"worker1", 10ms}, Known{7, mine}), Timeout);
      c.net().clear_rules();
      const std::string body = last->body;
      c.runtime().sleep_for(2s);
      EXPECT_EQ(counter(c, 0, "num_shares"), 0);
      if (crowded) {  // more refused children than are remembered one by one
        std::vector<Future<Message>> probes;
        for (uint64_t local = 0; local < 20000; ++local) {
          Message m;
          {
            Encoder out(m);
            out.number(uint8_t{1});
            put_id(out, ForkId{WorkerId{0}, c.agent(0)->life().incarnation, 1000 + local});
          }
          probes.push_back(c.agent(0)->call(WorkerId{1}, Kind::kAccept, std::move(m)));
        }
        for (const auto& probe : probes) probe.wait();
      }
      for (int i = 0; i < 3; ++i) EXPECT_THROW(send_call(c, 0, 1, body), RpcError);
      EXPECT_TRUE(bag(1).empty());
    });
    expect_clean(c);
  }
}

}  // namespace
