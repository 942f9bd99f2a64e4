// One message lost, doubled or late at every step of the protocol, and a worker killed at every moment of it.
// The claims of docs/conformance.md on faulty networks are here too; comments name PyTorch's tests.
#include "rref/world.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

/// Uses every flow of references.cpp once: (a) to (f), chains, replies that carry references, references
/// dropped while in use.
void every_flow() {
  const auto there = remote<Cell>("worker1", 5);           // a user's creation
  const RRef<int64_t> early = there.remote<&Cell::get>();  // used before it is confirmed
  EXPECT_EQ(rpc_sync<read_cell>("worker1", there), 5);     // user to owner
  // user to user, a chain
  EXPECT_EQ(rpc_sync<pass_cell>("worker2", Known{5, there}, std::vector<int64_t>{3, 1, 0}), 5);
  const auto mine = make_rref<Cell>(7);
  // owner to user, and back
  EXPECT_EQ(rpc_sync<pass_cell>("worker3", Known{7, mine}, std::vector<int64_t>{2, 0}), 7);
  EXPECT_EQ(rpc_sync<read_cell>("worker0", mine), 7);               // owner to itself
  EXPECT_EQ(remote<Cell>("worker0", 8).rpc_sync<&Cell::get>(), 8);  // a creation on oneself
  const Known made = rpc_sync<make_cell>("worker2", 9);             // a reply with the owner's reference
  const Known back = rpc_sync<return_cell>("worker3", made);        // a reply with a user's
  EXPECT_EQ(back.cell.rpc_sync<&Cell::get>(), 9);
  // a reply with a reference to the caller's callee
  EXPECT_EQ(rpc_sync<return_cell>("worker2", made).cell, made.cell);
  const RRef<RRef<Cell>> nested = remote<cell_of>("worker3", Known{5, there});
  EXPECT_EQ(nested.to_here().rpc_sync<&Cell::get>(), 5);
  EXPECT_EQ(early.to_here(), 5);
  remote<Cell>("worker3", 1);  // dropped at once
}

void expect_clean(Cluster& c, const std::vector<int>& ranks, const std::string& what) {
  settle(c);
  clear_bags();
  settle(c);
  EXPECT_EQ(left_over(c, ranks), "") << what;
}

TEST(RRefFaults, every_flow_is_right_and_leaves_nothing) {
  Cluster c({.size = 4});
  c.run(0, every_flow);
  expect_clean(c, {0, 1, 2, 3}, "");
  EXPECT_EQ(Cell::living, 0);
  c.shutdown();
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(leaked_rrefs(*c.agent(rank)).empty());
}

constexpr Kind kKinds[] = {Kind::kCall, Kind::kRemote, Kind::kFetch, Kind::kMethod,
                           Kind::kFork, Kind::kAccept, Kind::kDelete};

// test_check_failed_messages (the first three of each control message lost), and more. Each of the first
// messages of each kind, requests and replies, is lost, doubled or late.
TEST(RRefFaults, any_one_message_may_be_lost_doubled_or_late) {
  for (const Kind kind : kKinds)
    for (const bool reply : {false, true})
      for (const auto action :
           {FaultRule::Action::kDrop, FaultRule::Action::kDuplicate, FaultRule::Action::kDelay})
        for (int skip = 0; skip < 4; ++skip) {
          Cluster c({.size = 4, .seed = 17});
          c.net().add_rule(
              {.kind = static_cast<uint8_t>(static_cast<uint8_t>(kind) | (reply ? kReplyBit : 0)),
               .skip = skip,
               .count = 1,
               .action = action,
               .delay = 700ms});
          c.run(0, every_flow);
          expect_clean(c, {0, 1, 2, 3},
                       str("kind ", to_string(kind), reply ? " reply" : "", " action ",
                           static_cast<int>(action), " at ", skip));
          for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(c.agent(rank)->debug_info().at("num_gone_rrefs"), 0);
        }
  EXPECT_EQ(Cell::living, 0);
}

TEST(RRefFaults, the_first_three_forks_accepts_and_deletes_lost_give_right_values_and_clean_deletion) {
  Cluster c({.size = 4});
  for (const Kind kind : {Kind::kFork, Kind::kAccept, Kind::kDelete})
    c.net().add_rule({.kind = static_cast<uint8_t>(kind), .count = 3});
  c.run(0, every_flow);
  expect_clean(c, {0, 1, 2, 3}, "three of each lost");
  c.shutdown();
}

// test_remote_message_dropped_pickle, test_builtin_remote_message_dropped_timeout,
// test_udf_remote_message_dropped_timeout
TEST(RRefFaults, a_lost_creation_shows_at_sharing_and_fetching_and_is_made_good_later) {
  Cluster c({.size = 3});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kRemote)});
  c.run(0, [&] {
    const auto lost = remote<make_slowly>({"worker1", 300ms}, 0);
    EXPECT_THROW(lost.created().wait(), Timeout);
    EXPECT_THROW(lost.to_here(), Timeout);
    const auto cell = remote<Cell>({"worker1", 100ms}, 3);
    EXPECT_THROW(cell.created().wait(), Timeout);
    EXPECT_THROW(rpc_sync<read_cell>("worker2", cell), Timeout);
    EXPECT_THROW(cell.rpc_sync<&Cell::get>(), Timeout);
  });
  c.net().clear_rules();
  expect_clean(c, {0, 1, 2}, "");
}

// ..._to_self: a creation on oneself is not sent, but may be slow
TEST(RRefFaults, a_slow_creation_on_oneself_shows_at_use_and_ends) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto slow = remote<make_slowly>({"worker0", 50ms}, 400);
    c.runtime().sleep_for(100ms);
    EXPECT_THROW(slow.to_here(), Timeout);
    EXPECT_THROW(slow.local_value(), Timeout);
  });
  expect_clean(c, {0, 1}, "");
}

// test_udf_remote_message_delay_timeout, test_remote_message_builtin_delay_timeout
TEST(RRefFaults, a_late_creation_shows_at_use_while_the_owner_appears_and_is_reaped) {
  Cluster c({.size = 2});
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kRemote), .action = FaultRule::Action::kDelay, .delay = 900ms});
  c.run(0, [&] {
    const auto late = remote<Cell>({"worker1", 100ms}, 3);
    EXPECT_THROW(late.created().wait(), Timeout);
    EXPECT_THROW(late.rpc_sync<&Cell::get>(), Timeout);
    c.runtime().sleep_for(2s);
    EXPECT_EQ(c.agent(1)->debug_info().at("num_owner_rrefs"), 1);
    EXPECT_EQ(c.agent(1)->debug_info().at("num_forks"), 1);
  });
  expect_clean(c, {0, 1}, "");
  EXPECT_EQ(Cell::living, 0);
}

TEST(RRefFaults, a_to_here_that_waits_for_a_late_creation_ends_by_its_own_time) {
  Cluster c({.size = 2});
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kRemote), .action = FaultRule::Action::kDelay, .delay = 900ms});
  c.run(0, [&] {
    const auto late = remote<make_slowly>("worker1", 1);
    const auto begin = c.runtime().now();
    EXPECT_THROW(late.to_here(200ms), Timeout);
    EXPECT_LT(c.runtime().now() - begin, 300ms);
    EXPECT_EQ(late.to_here(), 1);
  });
  expect_clean(c, {0, 1}, "");
}

// test_rref_to_here_timeout
TEST(RRefFaults, a_fetch_that_times_out_may_be_tried_again) {
  Cluster c({.size = 2});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kFetch),
                    .count = 1,
                    .action = FaultRule::Action::kDelay,
                    .delay = 500ms});
  c.run(0, [&] {
    const auto r = remote<make_slowly>("worker1", 1);
    r.created().wait();
    EXPECT_THROW(r.to_here(50ms), Timeout);
    EXPECT_EQ(r.to_here(), 1);
  });
}

// A call that brings a reference is given up; its message comes late. The reference is not there twice and
// not leaked.
TEST(RRefFaults, a_share_whose_call_was_given_up_is_settled_by_a_probe) {
  for (const int delay_ms : {20, 100, 3000})
    for (const int to : {1, 2, 3}) {
      Cluster c({.size = 4});
      c.run(0, [&] {
        const auto there = remote<Cell>("worker1", 5);
        const auto mine = make_rref<Cell>(6);
        there.created().wait();
        c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall),
                          .action = FaultRule::Action::kDelay,
                          .delay = std::chrono::milliseconds(delay_ms)});
        for (const auto& r : {there, mine}) EXPECT_THROW(rpc_sync<read_cell>({to, 10ms}, r), Timeout);
        for (const auto& r : {there, mine})
          EXPECT_THROW(
              rpc_sync<read_slowly>({to, Duration(std::chrono::milliseconds(delay_ms + 10))}, r, 400),
              Timeout);
        c.net().clear_rules();
      });
      expect_clean(c, {0, 1, 2, 3}, str("delay ", delay_ms, " to ", to));
    }
  EXPECT_EQ(Cell::living, 0);
}

TEST(RRefFaults, an_error_answer_settles_the_references_that_the_call_brought) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto there = remote<Cell>("worker1", 5);
    const auto mine = make_rref<Cell>(6);
    for (const auto& r : {there, mine})
      for (const int to : {0, 1, 2})
        EXPECT_THROW(rpc_sync<pass_cell>(to, Known{1, r}, std::vector<int64_t>{77}), ValueError);
  });
  expect_clean(c, {0, 1, 2}, "");
}

TEST(RRefFaults, a_short_partition_delays_and_breaks_nothing) {
  Cluster c({.size = 4});
  c.runtime().call_at(c.runtime().now() + 1ms, [&] {
    c.net().partition({WorkerId{0}, WorkerId{3}}, {WorkerId{1}, WorkerId{2}});
  });
  c.runtime().call_at(c.runtime().now() + 2s, [&] { c.net().heal(); });
  c.run(0, every_flow);
  EXPECT_GT(c.runtime().now().time_since_epoch(), 1s);
  expect_clean(c, {0, 1, 2, 3}, "");
}

// Every worker killed at every moment of the flows: the others end with typed errors that name it, and keep
// nothing of it.
TEST(RRefFaults, a_worker_killed_at_any_moment_is_named_and_its_references_disappear) {
  for (int victim = 1; victim < 4; ++victim)
    for (int moment = 0; moment < 24; ++moment) {
      AgentOptions agent;
      agent.lease = 1s;
      Cluster c({.size = 4, .seed = 5, .net = {.connect_timeout = 500ms}, .agent = agent});
      c.runtime().call_at(c.runtime().now() + std::chrono::microseconds(50 + 130 * moment),
                          [&] { c.kill(victim); });
      c.run(0, [&] {
        try {
          every_flow();
        } catch (const PeerLost& e) {
          EXPECT_NE(std::string(e.what()).find(str("worker", victim)), std::string::npos) << e.what();
        } catch (const RpcError& e) {  // seen by a worker on the way
          const std::string text = e.what();
          EXPECT_TRUE(text.find("lost") != std::string::npos || text.find("gone") != std::string::npos)
              << text;
        }
      });
      std::vector<int> others;
      for (int rank = 0; rank < 4; ++rank)
        if (rank != victim) others.push_back(rank);
      expect_clean(c, others, str("victim ", victim, " at ", moment));
    }
  EXPECT_EQ(Cell::living, 0);
}

TEST(RRefFaults, a_dead_owner_is_owner_lost_at_once_for_every_use) {
  AgentOptions agent;
  agent.lease = 1s;
  Cluster c({.size = 3, .net = {.connect_timeout = 500ms}, .agent = agent});
  c.run(0, [&] {
    const auto cell = remote<Cell>("worker1", 5);
    const auto number = cell.remote<&Cell::get>();
    EXPECT_EQ(number.to_here(), 5);
    const auto pending = cell.rpc_async<&Cell::get>();
    c.kill(1);
    c.runtime().sleep_for(4s);
    const auto begin = c.runtime().now();
    for (int i = 0; i < 2; ++i) {
      EXPECT_THROW(number.to_here(), OwnerLost);
      EXPECT_THROW(cell.rpc_sync<&Cell::get>(), OwnerLost);
      EXPECT_THROW(rpc_sync<read_cell>("worker2", cell), OwnerLost);
      EXPECT_THROW(cell.remote<&Cell::get>(), OwnerLost);
    }
    EXPECT_EQ(c.runtime().now(), begin);
    try {
      number.to_here();
    } catch (const OwnerLost& e) {
      EXPECT_EQ(e.peer, "worker1");
      EXPECT_NE(std::string(e.what()).find(str(number.id())), std::string::npos) << e.what();
    }
  });
  expect_clean(c, {0, 2}, "");
}

TEST(RRefFaults, the_owner_forgets_a_dead_user_within_the_lease) {
  AgentOptions agent;
  agent.lease = 1s;
  Cluster c({.size = 3, .agent = agent});
  c.run(0, [&] { rpc_sync<keep_cell>("worker1", Known{3, make_rref<Cell>(3)}); });
  EXPECT_EQ(c.agent(0)->debug_info().at("num_forks"), 1);
  c.kill(1);
  c.sim().run_for(4s);
  EXPECT_EQ(c.agent(0)->debug_info().at("num_forks"), 0);
  EXPECT_EQ(Cell::living, 0);
  clear_bags();
}

// The creation of a value is lost with its creator while a third worker holds the reference: its use fails,
// it does not hang.
TEST(RRefFaults, a_value_that_its_dead_creator_never_made_is_an_error_for_whom_it_was_shared_with) {
  AgentOptions agent;
  agent.lease = 1s;
  Cluster c({.size = 3, .agent = agent});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kRemote)});
  c.run(0, [&] {
    const auto never = remote<Cell>("worker1", 5);
    rpc_sync<keep_cell>("worker2", Known{5, never});
  });
  ASSERT_EQ(bag(2).size(), 1u);
  c.kill(0);
  c.sim().run_for(5s);
  c.run(2, [&] { EXPECT_THROW(bag(2)[0].cell.rpc_sync<&Cell::get>(), RpcError); });
  expect_clean(c, {1, 2}, "");
}

TEST(RRefFaults, a_malformed_reference_is_refused_and_changes_nothing) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    for (const std::string& body :
         {std::string(), std::string(3, '\1'), std::string(200, '\xff'), std::string(49, '\0')})
      for (const Kind kind :
           {Kind::kRemote, Kind::kFetch, Kind::kMethod, Kind::kFork, Kind::kAccept, Kind::kDelete}) {
        Message m;
        {
          Encoder out(m);
          out.raw(body.data(), body.size());
        }
        try {
          c.agent(0)->call(WorkerId{1}, kind, std::move(m), {Duration(1s), nullptr}).wait();
        } catch (const RpcError&) {
        }
      }
    EXPECT_EQ(remote<Cell>("worker1", 4).rpc_sync<&Cell::get>(), 4);
  });
}

TEST(RRefFaults, a_reference_that_comes_twice_is_refused_and_the_first_one_still_works_and_ends) {
  Cluster c({.size = 2});
  const auto last = std::make_shared<LastCall>();
  c.agent(0)->add_interceptor(last);
  c.run(0, [&] {
    const auto mine = make_rref<Cell>(7);
    rpc_sync<keep_cell>("worker1", Known{7, mine});
    Message again;
    {
      Encoder out(again);
      out.raw(last->body.data(), last->body.size());
    }
    EXPECT_THROW(c.agent(0)->call(WorkerId{1}, Kind::kCall, std::move(again), {Duration(1s), nullptr}).wait(),
                 WireError);
  });
  ASSERT_EQ(bag(1).size(), 1u);
  c.run(1, [&] { EXPECT_EQ(bag(1)[0].cell.rpc_sync<&Cell::get>(), 7); });
  expect_clean(c, {0, 1}, "");  // the first one's DELETE has reached the owner
  EXPECT_EQ(Cell::living, 0);
}

}  // namespace
