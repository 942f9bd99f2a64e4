// The growth of a group that forms, meets and ends. Its messages grow as the number of its workers, for all
// of them together and for the busiest one. So does the work of each worker: the bytes that it sends or
// receives, and the peers that it looks at.
//
// Lists of all workers for each of them grow as the square, by nature. They are the members that rank 0 of
// the rendezvous answers, and the values of an all_gather. The first round of a set of names has its lives in
// each request too.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/sim/sim_rendezvous.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

/// Sent or received by one worker, and the peers that it looked at.
struct GroupWork {
  int64_t messages = 0, bytes = 0, visits = 0;
};

/// The work of a phase.
struct GroupPhase {
  int64_t messages = 0;        ///< of all, those of the rendezvous included
  GroupWork most;              ///< of the busiest worker, for each number
  int64_t most_but_first = 0;  ///< bytes of the busiest worker but rank 0
  int64_t bytes_of_first = 0;
};
using GroupPhases = std::map<std::string, GroupPhase>;

class SizedGroup {
 public:
  explicit SizedGroup(int size) : works_(static_cast<size_t>(size)) {
    net_.add_rule({.match = [this](const std::string&) { return ++messages_, false; }});
    const auto counts = [this](FaultRule rule, GroupWork& work) {  // sees each message, takes none
      rule.match = [&work](const std::string& header) {
        ++work.messages;
        work.bytes += static_cast<int64_t>(header.size());
        return false;
      };
      net_.add_rule(rule);
    };
    for (int rank = 0; rank < size; ++rank) {
      const WorkerId id{rank};
      counts({.from = id}, works_[static_cast<size_t>(rank)]);
      counts({.to = id}, works_[static_cast<size_t>(rank)]);
      agents_.push_back(Agent::create(runtime_, {.name = str("worker", rank), .id = id},
                                      [&](Receiver& receiver) { return net_.attach(id, receiver); }));
      meets_.push_back(make_sim_rendezvous(*runtime_, net_, rank, size));
    }
  }
  ~SizedGroup() {
    for (const auto& agent : agents_) agent->shutdown({.graceful = false});
  }

  /// Runs f(rank) as each worker at once.
  GroupPhase phase(const std::function<void(int rank)>& f) {
    const auto before = seen();
    const int64_t messages = messages_;
    Event done(*runtime_, "all workers");
    size_t ended = 0;
    for (size_t rank = 0; rank < agents_.size(); ++rank)
      runtime_->post([&, rank] {
        const AgentScope as(agents_[rank]);
        f(static_cast<int>(rank));
        if (++ended == agents_.size()) done.set();
      });
    done.wait();
    GroupPhase phase;
    phase.messages = messages_ - messages;
    const auto after = seen();
    for (size_t rank = 0; rank < after.size(); ++rank) {
      const GroupWork &a = before[rank], &b = after[rank];
      phase.most.messages = std::max(phase.most.messages, b.messages - a.messages);
      phase.most.bytes = std::max(phase.most.bytes, b.bytes - a.bytes);
      phase.most.visits = std::max(phase.most.visits, b.visits - a.visits);
      if (rank > 0) phase.most_but_first = std::max(phase.most_but_first, b.bytes - a.bytes);
      else phase.bytes_of_first = b.bytes - a.bytes;
    }
    return phase;
  }
  TimePoint end() { return runtime_->now() + 10min; }
  Agent& agent(int rank) { return *agents_[static_cast<size_t>(rank)]; }
  Rendezvous& meet(int rank) { return *meets_[static_cast<size_t>(rank)]; }

 private:
  std::vector<GroupWork> seen() const {
    std::vector<GroupWork> all = works_;
    for (size_t rank = 0; rank < all.size(); ++rank)
      all[rank].visits = agents_[rank]->debug_info().at("agent.visited_peers");
    return all;
  }
  const std::shared_ptr<SimRuntime> runtime_ =
      std::make_shared<SimRuntime>(SimOptions{.preempt = 0, .stack_bytes = 256 << 10, .keep_log = false});
  SimNetwork net_{*runtime_};
  std::vector<GroupWork> works_;
  std::vector<std::shared_ptr<Agent>> agents_;
  std::vector<std::unique_ptr<Rendezvous>> meets_;
  int64_t messages_ = 0;
};

GroupPhases phases_of_a_group(int size) {
  SizedGroup group(size);
  GroupPhases phases;
  std::vector<std::string> names;
  for (int rank = 0; rank < size; ++rank) names.push_back(str("worker", rank));
  phases["join"] = group.phase([&](int rank) {
    Agent& agent = group.agent(rank);
    agent.add_members(group.meet(rank).join(agent.as_member(), group.end()));
  });
  phases["barrier"] = group.phase([](int) { barrier({}, 10min); });
  phases["named barrier"] = group.phase([&](int) { barrier(names, 10min); });
  phases["named barrier again"] = group.phase([&](int) { barrier(names, 10min); });
  phases["gather"] = group.phase(
      [&](int rank) { EXPECT_EQ(all_gather(rank, {}, 10min).size(), static_cast<size_t>(size)); });
  phases["leave"] = group.phase([&](int rank) {
    group.agent(rank).shutdown({.graceful = true, .timeout = 10min});
    group.meet(rank).leave(group.end());
  });
  return phases;
}

/// `many` is `times` as much as `few` plus a twentieth, or less.
void expect_linear(int64_t few, int64_t many, int times, const std::string& what) {
  EXPECT_LE(20 * many, 21 * times * few)
      << what << " of a group " << times << " times as large: " << few << ", " << many;
  if (std::getenv("WEFT_TEST_SHOW"))
    std::fprintf(stderr, "%s x%d: %ld %ld\n", what.c_str(), times, few, many);
}

void expect_linear(const GroupPhases& few, const GroupPhases& many, int times) {
  for (const auto& [name, phase] : many) {
    const GroupPhase& less = few.at(name);
    expect_linear(less.messages, phase.messages, times, str(name, ": messages of all"));
    expect_linear(less.most.messages, phase.most.messages, times, str(name, ": messages of the busiest"));
    expect_linear(less.most.visits, phase.most.visits, times, str(name, ": visits of the busiest"));
    expect_linear(less.most_but_first, phase.most_but_first, times, str(name, ": bytes of the others"));
    if (name == "join" || name == "gather" || name == "named barrier") continue;  // lists for all
    expect_linear(less.bytes_of_first, phase.bytes_of_first, times, str(name, ": bytes of the leader"));
  }
}

TEST(GroupSize, the_work_of_each_worker_to_form_meet_and_leave_is_linear_in_their_number) {
  const GroupPhases of_50 = phases_of_a_group(50);
  EXPECT_GE(of_50.at("barrier").messages, 50 * 2);
  for (const int times : {2, 4}) expect_linear(of_50, phases_of_a_group(50 * times), times);
}

int64_t passed_on(int64_t x) { return x; }
WEFT_RPC(passed_on);

/// Peers that worker 0 looks at in 100 s, in each of which it makes a call, beside that many idle members.
int64_t visits_of_calls(int idle) {
  Cluster c({.size = 2});
  std::vector<Member> others;
  for (int32_t id = 2; id < 2 + idle; ++id)
    others.push_back(
        {.name = str("worker", id),
         .id = WorkerId{id},
         .address = {.addresses = {str("sim:", id)}, .incarnation = {static_cast<uint64_t>(id)}}});
  c.agent(0)->add_members(others);
  int64_t visits = 0;
  const auto visited = [&] { return c.agent(0)->debug_info().at("agent.visited_peers"); };
  c.run(0, [&] {
    c.runtime().sleep_for(10s);
    const int64_t before = visited();
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_EQ(rpc_sync<passed_on>("worker1", i), i);
      c.runtime().sleep_for(1s);
    }
    visits = visited() - before;
  });
  return visits;
}

TEST(GroupSize, deadlines_and_statuses_of_a_peer_cost_the_same_beside_idle_peers) {
  const int64_t alone = visits_of_calls(0);
  EXPECT_GE(alone, 50);
  EXPECT_EQ(visits_of_calls(300), alone);
}

TEST(GroupSizeSlow, a_thousand_workers_form_meet_and_leave_with_linear_work_of_each) {
  expect_linear(phases_of_a_group(100), phases_of_a_group(1000), 10);
}

}  // namespace
