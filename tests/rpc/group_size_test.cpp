// The number of messages by which a group forms, gathers and ends grows as the number of its workers, for all
// of them together and for the busiest one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/sim/sim_rendezvous.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;

/// The messages of a group, those of the rendezvous included.
struct Messages {
  int64_t of_all = 0;
  std::vector<int64_t> of_each;  ///< sent or received by the worker
  int64_t most() const { return *std::max_element(of_each.begin(), of_each.end()); }
};

/// Those of a group of simulated workers.
Messages messages_of_a_group(int size) {
  const auto runtime = std::make_shared<SimRuntime>(SimOptions{.preempt = 0, .keep_log = false});
  SimNetwork net(*runtime);
  Messages messages{.of_each = std::vector<int64_t>(static_cast<size_t>(size))};
  const auto counts = [&net](FaultRule rule, int64_t& count) {  // sees each message, takes none
    rule.match = [&count](const std::string&) { return ++count, false; };
    net.add_rule(rule);
  };
  counts({}, messages.of_all);
  for (int rank = 0; rank < size; ++rank) {
    counts({.from = WorkerId{rank}}, messages.of_each[static_cast<size_t>(rank)]);
    counts({.to = WorkerId{rank}}, messages.of_each[static_cast<size_t>(rank)]);
  }
  std::vector<std::shared_ptr<Agent>> agents;
  for (int rank = 0; rank < size; ++rank)
    agents.push_back(Agent::create(runtime, {.name = str("worker", rank), .id = WorkerId{rank}},
                                   [&](Receiver& receiver) { return net.attach(WorkerId{rank}, receiver); }));
  Event done(*runtime, "all workers");
  int ended = 0;
  for (int rank = 0; rank < size; ++rank)
    runtime->post([&, rank] {
      const auto& agent = agents[static_cast<size_t>(rank)];
      const AgentScope as(agent);
      const auto meet = make_sim_rendezvous(*runtime, net, rank, size);
      const TimePoint end = runtime->now() + 10min;
      agent->add_members(meet->join(agent->as_member(), end));
      const std::map<std::string, int> all = all_gather(rank);
      EXPECT_EQ(all.size(), static_cast<size_t>(size));
      agent->shutdown({.graceful = true, .timeout = 10min});
      meet->leave(end);
      if (++ended == size) done.set();
    });
  done.wait();
  for (const auto& agent : agents) agent->shutdown({.graceful = false});
  return messages;
}

TEST(GroupSize, messages_of_a_group_that_forms_gathers_and_ends_are_linear_in_its_workers) {
  const Messages of_10 = messages_of_a_group(10);
  EXPECT_GE(of_10.of_all, 10 * 3);
  for (const int more : {10, 20}) {
    const Messages of_many = messages_of_a_group(10 * more);
    EXPECT_LE(2 * of_many.of_all, (2 * more + 1) * of_10.of_all) << more;
    EXPECT_LE(2 * of_many.most(), (2 * more + 1) * of_10.most()) << more;
  }
}

}  // namespace
