// Distributed autograd and optimizers between two workers of this machine over gRPC (unix socket), each with its own runtime.
//   MyAdd            context, one call, backward: what the peer's dist_autograd.py calls a my_add iteration
//   OptimizerSteps   steps per second of 1, 2 and 4 trainer threads, each with an optimizer of its own at one owner
#include <benchmark/benchmark.h>

#include <weft/distributed.h>
#include <weft/distributed/grpc_transport.h>

namespace {

using namespace weft;
using namespace weft::rpc;

Tensor bench_add(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(bench_add);

struct Params {
  explicit Params(int64_t n) {
    for (int64_t i = 0; i < n; ++i) all.push_back(randn({100, 100}).requires_grad_());
  }
  std::vector<RRef<Tensor>> parameter_rrefs() {
    std::vector<RRef<Tensor>> out;
    for (const Tensor& p : all) out.emplace_back(p);
    return out;
  }
  /// A loss whose gradient is each parameter's own value.
  Tensor loss() const {
    Tensor sum;
    for (const Tensor& p : all) sum = sum.defined() ? sum + (p * p).sum() : (p * p).sum();
    return sum * 0.5;
  }
  std::vector<Tensor> all;
};
WEFT_RPC_CONSTRUCTOR(Params, int64_t);
WEFT_RPC_CLASS(Params, parameter_rrefs, loss);

/// Two agents that live as long as the program.
struct Pair {
  std::vector<std::shared_ptr<Runtime>> runtimes;
  std::vector<std::shared_ptr<Agent>> agents;
  Pair() {
    std::vector<Member> members;
    for (int rank = 0; rank < 2; ++rank) {
      runtimes.push_back(make_threaded_runtime({.threads = 8}));
      AgentOptions options;
      options.id = WorkerId{rank};
      options.name = rank == 0 ? "trainer" : "owner";
      const auto runtime = runtimes.back();
      agents.push_back(Agent::create(runtime, options, [&](Receiver& receiver) -> std::shared_ptr<Transport> {
        GrpcOptions wire;
        wire.id = WorkerId{rank};
        return make_grpc_transport(runtime, wire, receiver);
      }));
      members.push_back(agents.back()->as_member());
    }
    for (auto& agent : agents) agent->add_members(members);
  }
  ~Pair() {
    for (auto& agent : agents) agent->shutdown({.graceful = false});
    for (auto& runtime : runtimes) runtime->stop();
  }
};
Pair& workers() {
  static Pair pair;
  return pair;
}

void MyAdd(benchmark::State& state) {
  AgentScope as(workers().agents[0]);
  const Tensor t1 = ones({3, 3}).requires_grad_(), t2 = ones({3, 3}).requires_grad_();
  const auto mode = state.range(0) ? dist_autograd::Backward::kSmart : dist_autograd::Backward::kFast;
  for (auto _ : state) {
    const dist_autograd::Context context;
    context.backward({rpc_sync<bench_add>("owner", t1, t2).sum()}, {.mode = mode});
  }
  state.SetLabel(state.range(0) ? "smart" : "fast");
}
BENCHMARK(MyAdd)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void LocalAdd(benchmark::State& state) {
  const Tensor t1 = ones({3, 3}).requires_grad_(), t2 = ones({3, 3}).requires_grad_();
  for (auto _ : state) benchmark::DoNotOptimize(grad({bench_add(t1, t2).sum()}, {t1, t2}));
}
BENCHMARK(LocalAdd)->Unit(benchmark::kMicrosecond);

void EmptyContext(benchmark::State& state) {
  AgentScope as(workers().agents[0]);
  for (auto _ : state) dist_autograd::Context context;
}
BENCHMARK(EmptyContext)->Unit(benchmark::kMicrosecond);

void OptimizerSteps(benchmark::State& state) {
  AgentScope as(workers().agents[0]);
  const auto params = remote<Params>("owner", 10);
  auto optimizer = dist_optim::make<optim::SGDRule>(params.rpc_sync<&Params::parameter_rrefs>(), {.lr = 1e-6, .momentum = 0.9});
  const dist_autograd::Context context;
  context.backward({params.rpc_sync<&Params::loss>()});
  for (auto _ : state) optimizer.step(context.id());
  state.counters["steps/s"] = benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(OptimizerSteps)->Threads(1)->Threads(2)->Threads(4)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace

