// The number of messages by which a group forms, gathers and ends grows as the number of its workers.
#include <gtest/gtest.h>

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

/// All messages of a group of simulated workers, those of the rendezvous included.
int64_t messages_of_a_group(int size) {
  const auto runtime = std::make_shared<SimRuntime>(SimOptions{.preempt = 0, .keep_log = false});
  SimNetwork net(*runtime);
  int64_t messages = 0;
  net.add_rule({.match = [&](const std::string&) { return ++messages, false; }});  // sees each, takes none
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
  const int64_t of_10 = messages_of_a_group(10), of_100 = messages_of_a_group(100);
  EXPECT_GE(of_10, 10 * 3);
  EXPECT_LE(2 * of_100, 21 * of_10) << of_10 << " and " << of_100;
}

}  // namespace
