// The growth of costs. Each benchmark has one size at 1, 10 and 100 times its least value; `processes` has 64
// too. run_bench.py prints the exponent of the cost over it (1: linear), and keeps the table of growth/.
//   growth/vocabulary, batch, parameters   a decoder's loss, an LSTM layer and a step of Adam, on one thread
//   growth/references, contexts            one more reference or context beside that many living ones
//   growth/workers                         a simulated group joins, meets in a barrier and leaves; `messages`
//                                          counts those of all workers, the rendezvous included; `visits`
//                                          counts the peers that the busiest worker looks at
//   growth/idle                            a call and the statuses after it, beside that many idle peers
//   growth/processes                       real processes of this machine form a group, each calls the next
//                                          one, and all leave
#include <benchmark/benchmark.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

#include <weft/distributed.h>
#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/sim/sim_rendezvous.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;

int64_t grown(int64_t x) { return x + 1; }
WEFT_RPC(grown);
Tensor passed(const Tensor& x) { return x * 2; }
WEFT_RPC(passed);

// ---- local

void vocabulary(benchmark::State& state) {
  const int64_t n = state.range(0);
  const ThreadScope one(1);
  const Tensor x = randn({70, 64}).requires_grad_(), w = (randn({n, 64}) * 0.1).requires_grad_();
  const Tensor target = randint(0, n, {70});
  for (auto _ : state) benchmark::DoNotOptimize(grad({linear_cross_entropy(x, w, Tensor(), target)}, {x, w}));
}
BENCHMARK(vocabulary)->Name("growth/vocabulary")->Arg(300)->Arg(3000)->Arg(30000);

void batch(benchmark::State& state) {
  const ThreadScope one(1);
  const nn::LSTM layer(64, 64);
  const Tensor x = randn({10, state.range(0), 64});
  for (auto _ : state) {
    layer.forward(x).y.sum().backward();
    for (const Tensor& p : layer.parameters()) p.zero_grad();
  }
}
BENCHMARK(batch)->Name("growth/batch")->Arg(8)->Arg(80)->Arg(800);

void parameters(benchmark::State& state) {
  const ThreadScope one(1);
  std::vector<Tensor> all;
  for (int64_t i = 0; i < state.range(0); ++i) {
    all.push_back(randn({100}).requires_grad_());
    all.back().set_grad(randn({100}));
  }
  optim::Adam adam(all);
  for (auto _ : state) adam.step();
}
BENCHMARK(parameters)->Name("growth/parameters")->Arg(100)->Arg(1000)->Arg(10000);

// ---- simulated groups

struct Group {
  explicit Group(int size) {
    // every message passes this rule, which never applies
    net.add_rule({.match = [this](const std::string&) { return ++messages, false; }});
    for (int rank = 0; rank < size; ++rank) {
      const WorkerId id{rank};
      agents.push_back(Agent::create(runtime, {.name = str("worker", rank), .id = id},
                                     [&](Receiver& receiver) { return net.attach(id, receiver); }));
    }
  }
  ~Group() {
    for (const auto& agent : agents) agent->shutdown({.graceful = false});
  }
  /// Runs f(rank) as each worker at once.
  template <class F> void all(F f) {
    Event done(*runtime, "all workers");
    size_t ended = 0;
    for (size_t rank = 0; rank < agents.size(); ++rank)
      runtime->post([&, rank] {
        const AgentScope as(agents[rank]);
        f(static_cast<int>(rank));
        if (++ended == agents.size()) done.set();
      });
    done.wait();
  }
  void introduce() {
    std::vector<Member> members;
    for (const auto& agent : agents) members.push_back(agent->as_member());
    for (const auto& agent : agents) agent->add_members(members);
  }
  std::shared_ptr<SimRuntime> runtime =
      std::make_shared<SimRuntime>(SimOptions{.preempt = 0, .stack_bytes = 256 << 10, .keep_log = false});
  SimNetwork net{*runtime};
  std::vector<std::shared_ptr<Agent>> agents;
  int64_t messages = 0;
};

void workers(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  int64_t messages = 0, visits = 0;
  for (auto _ : state) {
    Group group(size);
    group.all([&](int rank) {
      const auto meet = make_sim_rendezvous(*group.runtime, group.net, rank, size);
      const TimePoint end = group.runtime->now() + 10min;
      const auto& agent = group.agents[static_cast<size_t>(rank)];
      agent->add_members(meet->join(agent->as_member(), end));
      barrier();
      agent->shutdown({.graceful = true, .timeout = 10min});
      meet->leave(end);
    });
    messages = group.messages;
    for (const auto& agent : group.agents)
      visits = std::max(visits, agent->debug_info().at("agent.visited_peers"));
  }
  state.counters["messages"] = static_cast<double>(messages);
  state.counters["visits"] = static_cast<double>(visits);
  state.counters["messages_per_worker"] = static_cast<double>(messages) / size;
}
BENCHMARK(workers)
    ->Name("growth/workers")
    ->Arg(10)
    ->Arg(100)
    ->Arg(1000)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

void idle(benchmark::State& state) {
  Group group(2);
  group.introduce();
  std::vector<Member> others;
  for (int32_t id = 2; id < 2 + state.range(0); ++id)
    others.push_back(
        {.name = str("worker", id),
         .id = WorkerId{id},
         .address = {.addresses = {str("sim:", id)}, .incarnation = {static_cast<uint64_t>(id)}}});
  group.agents[0]->add_members(others);
  const AgentScope as(group.agents[0]);
  for (auto _ : state) {
    benchmark::DoNotOptimize(rpc_sync<grown>("worker1", int64_t{7}));
    group.runtime->sleep_for(10s);
  }
}
BENCHMARK(idle)->Name("growth/idle")->Arg(10)->Arg(100)->Arg(1000);

void references(benchmark::State& state) {
  Group group(2);
  group.introduce();
  const AgentScope as(group.agents[0]);
  std::vector<RRef<int64_t>> held;
  for (int64_t i = 0; i < state.range(0); ++i) held.push_back(remote<grown>("worker1", i));
  held.back().to_here();
  for (auto _ : state) benchmark::DoNotOptimize(remote<grown>("worker1", int64_t{7}).to_here());
}
BENCHMARK(references)->Name("growth/references")->Arg(100)->Arg(1000)->Arg(10000);

void contexts(benchmark::State& state) {
  Group group(2);
  group.introduce();
  const AgentScope as(group.agents[0]);
  const Tensor x = ones({3, 3}).requires_grad_();
  Event end(*group.runtime, "the end of the benchmark"), ended(*group.runtime, "all contexts");
  const int64_t size = state.range(0);
  int64_t open = 0;
  for (int64_t i = 0; i < size; ++i)  // a task has one context
    group.runtime->post([&] {
      const AgentScope here(group.agents[0]);
      const dist_autograd::Context context;
      rpc_sync<passed>("worker1", x);
      ++open;
      end.wait();
      if (--open == 0) ended.set();
    });
  while (open < size) group.runtime->sleep_for(1ms);
  for (auto _ : state) {
    const dist_autograd::Context context;
    context.backward({rpc_sync<passed>("worker1", x).sum()});
  }
  end.set();
  ended.wait();
}
BENCHMARK(contexts)->Name("growth/contexts")->Arg(10)->Arg(100)->Arg(1000);

// ---- processes

/// The body of each spawned process.
int be_worker(int rank) {
  init_rpc(str("worker", rank));
  const auto all = get_worker_infos();
  rpc_sync<grown>(all[(static_cast<size_t>(rank) + 1) % all.size()].name, int64_t{rank});
  rpc::shutdown();
  return 0;
}

void processes(benchmark::State& state) {
  const auto runtime = make_threaded_runtime();
  for (auto _ : state)
    spawn({.world_size = static_cast<int>(state.range(0)), .own_arguments = false})
        .wait(*runtime, runtime->now() + 5min);
}
BENCHMARK(processes)
    ->Name("growth/processes")
    ->Arg(2)
    ->Arg(20)
    ->Arg(64)
    ->Arg(200)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  try {
    if (const auto rank = spawned_rank()) return be_worker(*rank);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "bench_growth: " << e.what() << "\n";
    return 1;
  }
}
