// Distributed autograd and optimizers between processes of this machine over gRPC (unix socket). This process
// is the trainer. It spawns three owners, which serve with 1, 2 and 4 threads.
//   MyAdd            one context with one call and its backward, as in PyTorch's dist_autograd.py example
//   NestedAdd        the same with a callee that calls another owner, so that backward goes two hops
//   OptimizerSteps   steps per second of 4 trainer threads, each with its own optimizer at one owner
//   WaitingSteps     the same with a rule that sleeps for 1 ms: steps overlap as far as the owner has threads
#include <benchmark/benchmark.h>

#include <chrono>
#include <iostream>
#include <thread>

#include <weft/distributed.h>
#include <weft/distributed/launch/spawn.h>

namespace {

using namespace weft;
using namespace weft::rpc;

Tensor bench_add(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(bench_add);

Tensor bench_nested_add(const Tensor& a, const Tensor& b) { return rpc_sync<bench_add>("owner4", a, b) * 2; }
WEFT_RPC(bench_nested_add);

struct Params {
  explicit Params(int64_t n) {
    for (int64_t i = 0; i < n; ++i) all.push_back(randn({100, 100}).requires_grad_());
  }
  std::vector<RRef<Tensor>> parameter_rrefs() {
    std::vector<RRef<Tensor>> out;
    for (const Tensor& p : all) out.emplace_back(p);
    return out;
  }
  /// A loss: the gradient of each parameter is the parameter's value.
  Tensor loss() const {
    Tensor sum;
    for (const Tensor& p : all) sum = sum.defined() ? sum + (p * p).sum() : (p * p).sum();
    return sum * 0.5;
  }
  std::vector<Tensor> all;
};
WEFT_RPC_CONSTRUCTOR(Params, int64_t);
WEFT_RPC_CLASS(Params, parameter_rrefs, loss);

struct Waiting {
  struct Options {
    double lr = 1e-6;
  };
  static constexpr const char* kName = "Waiting";
  static constexpr int kState = 0;
  Options o;
  Waiting(const Options& options, int64_t) : o(options) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  template <class V> void operator()(V& p, const V& g, V*) const { p -= o.lr * g; }
};
WEFT_FIELDS(Waiting::Options, lr)
WEFT_OPTIMIZER_RULE(Waiting);

/// Function(t1, t2) at `owner` and its backward; the first argument of the benchmark is 1 for SMART.
template <auto Function> void add_and_backward(benchmark::State& state, const char* owner) {
  const Tensor t1 = ones({3, 3}).requires_grad_(), t2 = ones({3, 3}).requires_grad_();
  const auto mode = state.range(0) ? dist_autograd::Backward::kSmart : dist_autograd::Backward::kFast;
  for (auto _ : state) {
    const dist_autograd::Context context;
    context.backward({rpc_sync<Function>(owner, t1, t2).sum()}, {.mode = mode});
  }
  state.SetLabel(state.range(0) ? "smart" : "fast");
}
void MyAdd(benchmark::State& state) { add_and_backward<bench_add>(state, "owner4"); }
void NestedAdd(benchmark::State& state) { add_and_backward<bench_nested_add>(state, "owner2"); }
BENCHMARK(MyAdd)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(NestedAdd)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void LocalAdd(benchmark::State& state) {
  const Tensor t1 = ones({3, 3}).requires_grad_(), t2 = ones({3, 3}).requires_grad_();
  for (auto _ : state) benchmark::DoNotOptimize(grad({bench_add(t1, t2).sum()}, {t1, t2}));
}
BENCHMARK(LocalAdd)->Unit(benchmark::kMicrosecond);

void EmptyContext(benchmark::State& state) {
  for (auto _ : state) dist_autograd::Context context;
}
BENCHMARK(EmptyContext)->Unit(benchmark::kMicrosecond);

template <class Rule>
void run_steps(benchmark::State& state, int64_t count, const typename Rule::Options& options) {
  const auto params = remote<Params>(str("owner", state.range(0)), count);
  auto optimizer = dist_optim::make<Rule>(params.template rpc_sync<&Params::parameter_rrefs>(), options);
  const dist_autograd::Context context;
  context.backward({params.template rpc_sync<&Params::loss>()});
  for (auto _ : state) optimizer.step(context.id());
  state.counters["steps/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
void OptimizerSteps(benchmark::State& state) {
  run_steps<optim::SGDRule>(state, 10, {.lr = 1e-6, .momentum = 0.9});
}
void WaitingSteps(benchmark::State& state) { run_steps<Waiting>(state, 1, {}); }
BENCHMARK(OptimizerSteps)
    ->ArgName("serving")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Threads(4)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();
BENCHMARK(WaitingSteps)
    ->ArgName("serving")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Threads(4)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  try {
    if (const auto rank = spawned_rank()) {
      const int threads = 1 << (*rank - 1);
      init_rpc(str("owner", threads), {.num_worker_threads = threads});
      rpc::serve_until_done();
      return 0;
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Children children = spawn({.world_size = 4, .first_rank = 1, .own_arguments = false});
    init_rpc("trainer",
             {.rank = 0, .world_size = 4, .master_addr = "127.0.0.1", .master_port = children.master_port()});
    benchmark::RunSpecifiedBenchmarks();
    rpc::shutdown();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "bench_dist: " << e.what() << "\n";
    return 1;
  }
}
