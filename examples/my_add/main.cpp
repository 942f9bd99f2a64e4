// The example of PyTorch's distributed autograd notes: t3 = my_add(t1, t2) on the next worker, and
// loss = sum(t3 * t4) on this one. It prints the backward pass of every worker: its roots, the dependency
// count of each node, and the order of the nodes. The notes describe FAST mode, so that is the default here;
// `--backward smart` adds a call whose result no loss uses.
#include <cstdio>
#include <map>

#include <weft/distributed.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"

namespace my_add_example {

using weft::Edge;
using weft::Node;
using weft::Tensor;

Tensor my_add(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(my_add);

/// The dependencies of FAST mode on one worker, as text. Each node reached from `roots` and all sends of the
/// context has the number of edges to it. A topological order follows.
std::string describe(const std::string& worker, int64_t context,
                     const std::vector<std::pair<std::string, const Node*>>& roots) {
  std::vector<std::pair<std::string, const Node*>> queue = roots;
  for (const auto& g : weft::dist_autograd::graph(context))
    if (g.is_send) queue.emplace_back("send" + std::to_string(g.message & 0xffff), g.node.get());
  std::string out = worker + ": roots";
  for (const auto& [name, node] : queue) out += " " + name;
  std::vector<const Node*> order;
  std::map<const Node*, int> dependencies;
  for (const auto& [name, node] : queue) dependencies[node] += 0, order.push_back(node);
  for (size_t i = 0; i < order.size(); ++i)
    for (const Edge& e : order[i]->edges())
      if (e.node && dependencies[e.node.get()]++ == 0) order.push_back(e.node.get());
  out += "; dependencies";
  for (const Node* node : order) out += weft::str(" ", node->name(), "=", dependencies[node]);
  // Kahn's algorithm; it uses up the counts.
  auto left = dependencies;
  std::vector<const Node*> ready;
  for (const Node* node : order)
    if (left[node] == 0) ready.push_back(node);
  out += "; order";
  for (size_t i = 0; i < ready.size(); ++i) {
    out += weft::str(i ? " > " : " ", ready[i]->name());
    for (const Edge& e : ready[i]->edges())
      if (e.node && --left[e.node.get()] == 0) ready.push_back(e.node.get());
  }
  return out;
}

std::string describe_here(int64_t context) {
  return describe(weft::rpc::current_agent()->self().name, context, {});
}
WEFT_RPC(describe_here);

/// Runs on worker0. Returns the exit code.
int walk(bool smart, const std::string& json) {
  const auto leaf = [](std::initializer_list<double> v) { return weft::tensor(v).requires_grad_(); };
  Tensor t1 = leaf({1., 2.}), t2 = leaf({3., 4.}), t4 = leaf({5., 6.});
  Tensor l1 = leaf({1., 2.}), l2 = leaf({3., 4.}), l4 = leaf({5., 6.});
  (my_add(l1, l2) * l4).sum().backward();

  const weft::dist_autograd::Context context;
  const Tensor t3 = weft::rpc::rpc_sync<my_add>("worker1", t1, t2);
  const Tensor loss = (t3 * t4).sum();
  std::printf("%s\n",
              describe("worker0", context.id(), {{"loss", weft::gradient_edge(loss).node.get()}}).c_str());
  for (const auto& info : weft::rpc::get_worker_infos())
    if (info.name != "worker0")
      std::printf("%s\n", weft::rpc::rpc_sync<describe_here>(info, context.id()).c_str());
  // FAST waits for every recorded send; the calls above had no tensors that require grad, so
  // they recorded none.
  if (smart) {
    const Tensor unused = weft::rpc::rpc_sync<my_add>("worker1", t1, t4);
    std::printf(
        "smart: a result of worker1 that the loss does not reach takes no part; FAST would await it\n");
  }
  using weft::dist_autograd::Backward;
  context.backward({loss}, {.mode = smart ? Backward::kSmart : Backward::kFast});
  const auto show = [](const Tensor& g) {
    if (!g.defined()) return std::string("none");
    std::string out = "[";
    for (const double v : g.to_vector<double>()) out += weft::str(out.size() > 1 ? ", " : "", v);
    return out + "]";
  };
  const Tensor g1 = context.gradient(t1), g2 = context.gradient(t2), g4 = context.gradient(t4);
  const bool same = g1.defined() && g2.defined() && g4.defined() && weft::equal(g1, l1.grad()) &&
                    weft::equal(g2, l2.grad()) && weft::equal(g4, l4.grad());
  examples::Figures figures;
  for (const auto& [name, g] : {std::pair("t1.grad", g1), std::pair("t2.grad", g2), std::pair("t4.grad", g4)})
    figures.set(name, g.defined() ? g.to_vector<double>() : std::vector<double>());
  figures.set("matches local", examples::yes_no(same));
  std::printf("my_add: t1.grad=%s t2.grad=%s t4.grad=%s matches local: %s\n", show(g1).c_str(),
              show(g2).c_str(), show(g4).c_str(), examples::yes_no(same).c_str());
  std::fflush(stdout);
  figures.write(json);
  return same ? 0 : 1;
}

/// Runs all workers in this process, over the simulated network.
int walk_simulated(int64_t world_size, bool smart, const std::string& json) {
  using namespace weft::rpc;
  auto runtime = std::make_shared<SimRuntime>(SimOptions{.seed = 1});
  SimNetwork network(*runtime, {});
  std::vector<std::shared_ptr<Agent>> agents;
  std::vector<Member> members;
  for (int r = 0; r < world_size; ++r) {
    AgentOptions options;
    options.name = "worker" + std::to_string(r);
    options.id = WorkerId{r};
    agents.push_back(Agent::create(runtime, options, [&](Receiver& receiver) -> std::shared_ptr<Transport> {
      return network.attach(WorkerId{r}, receiver);
    }));
    members.push_back(agents.back()->as_member());
  }
  for (auto& agent : agents) agent->add_members(members);
  int result = 1;
  {
    AgentScope as(agents[0]);
    result = walk(smart, json);
  }
  for (auto& agent : agents) agent->shutdown({.graceful = false});
  return result;
}

}  // namespace my_add_example

int main(int argc, char** argv) {
  int64_t world_size = 2;
  std::string transport = "grpc", backward = "fast", json;
  examples::Args args("my_add", "the walk-through of distributed autograd");
  args.add("world-size", world_size, "workers");
  args.add("transport", transport, {"grpc", "sim"},
           "processes over gRPC, or a simulated network in this process");
  args.add("backward", backward, {"fast", "smart"},
           "every send takes part, or only those that the loss reaches");
  args.add("json", json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  if (world_size < 2 || world_size > examples::kMostWorkers) {
    std::fprintf(stderr, "my_add: --world-size must be 2 to 1000\n");
    return 2;
  }
  return examples::guarded("my_add", [&] {
    const auto prepare = [&](bool) { examples::check_outputs({json}); };
    if (transport == "sim")
      return prepare(true), my_add_example::walk_simulated(world_size, backward == "smart", json);
    return examples::run_group(
        {.world_size = static_cast<int>(world_size),
         .network = network,
         .name = [](int rank, bool) { return "worker" + std::to_string(rank); },
         .passive = [](const std::string& name) { return name != "worker0"; },
         .prepare = prepare},
        [&](const std::string&) { return my_add_example::walk(backward == "smart", json); });
  });
}
