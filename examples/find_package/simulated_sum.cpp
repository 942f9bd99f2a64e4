// Calls a function between two simulated workers. In this way a program's tests run a group in one process,
// without sockets, from a seed and with lost messages.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

using namespace weft::rpc;

weft::Tensor add_twice(const weft::Tensor& a, const weft::Tensor& b) { return a + b + b; }
WEFT_RPC(add_twice);

int main() {
  const auto runtime = std::make_shared<SimRuntime>(SimOptions{.seed = 7});
  SimNetwork network(*runtime, {.drop = 0.2});
  std::vector<std::shared_ptr<Agent>> agents;
  std::vector<Member> members;
  for (int rank = 0; rank < 2; ++rank) {
    const WorkerId id{rank};
    agents.push_back(Agent::create(runtime, {.name = "worker" + std::to_string(rank), .id = id},
                                   [&](Receiver& receiver) { return network.attach(id, receiver); }));
    members.push_back(agents.back()->as_member());
  }
  for (const auto& agent : agents) agent->add_members(members);
  double sum = 0;
  {
    const AgentScope as(agents[0]);
    const weft::Tensor y = rpc_sync<add_twice>("worker1", weft::ones({2, 3}), weft::ones({2, 3}));
    sum = y.sum().item<double>();
  }
  for (const auto& agent : agents) agent->shutdown({.graceful = false});
  std::printf("simulated_sum: %.0f\n", sum);
  return sum == 18 ? 0 : 1;
}
