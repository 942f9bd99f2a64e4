// RPC between real processes: this one calls worker 1 over the same-host lane and worker 2 over TCP on the
// loopback. With --no-lane, or in a build without the lane, worker 1 is called by gRPC over a unix socket.
// With --no-spin threads sleep at once when no message is there. Times are per call, measured at the caller.
// The counters p50_us and p99_us are percentiles over all calls of a run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <iostream>
#include <thread>
#include <vector>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;

void noop() {}
WEFT_RPC(noop);
Tensor echo(const Tensor& t) { return t; }
WEFT_RPC(echo);
void push(const Tensor&) {}
WEFT_RPC(push);
void back() { rpc_sync<noop>(0); }
WEFT_RPC(back);
struct Object {
  void noop() {}
};
WEFT_RPC_CLASS(Object, noop);
void take(const RRef<Object>&) {}
WEFT_RPC(take);

void report_percentiles(benchmark::State& state, std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  state.counters["p50_us"] = us[us.size() / 2];
  state.counters["p99_us"] = us[us.size() * 99 / 100];
}

/// Runs `call` once per iteration and reports the percentiles.
template <class F> void measure(benchmark::State& state, F&& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> us;
  for (int i = 0; i < 20; ++i) call();
  for (auto _ : state) {
    const auto start = Clock::now();
    call();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  report_percentiles(state, us);
}

void noop_call(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  measure(state, [&] { rpc_sync<noop>(to); });
}
void noop_after_1ms(benchmark::State& state) {  // in which both ends sleep
  using Clock = std::chrono::steady_clock;
  const int to = static_cast<int>(state.range(0));
  std::vector<double> us;
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto start = Clock::now();
    rpc_sync<noop>(to);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    state.SetIterationTime(us.back() * 1e-6);
  }
  report_percentiles(state, us);
}
void add_3x3(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  const Tensor a = ones({3, 3}), b = ones({3, 3});
  measure(state, [&] { benchmark::DoNotOptimize(rpc_sync<builtin::add>(to, a, b)); });
}
void nested(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  measure(state, [&] { rpc_sync<back>(to); });
}
void echo_bytes(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  const Tensor t = ones({state.range(1) / 4});
  measure(state, [&] { benchmark::DoNotOptimize(rpc_sync<echo>(to, t)); });
  state.SetBytesProcessed(state.iterations() * state.range(1));  // in each direction
}
void push_bytes(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  const Tensor t = ones({state.range(1) / 4});
  measure(state, [&] { rpc_sync<push>(to, t); });
  state.SetBytesProcessed(state.iterations() * state.range(1));
}
void outstanding_64(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  std::deque<Future<void>> open;
  for (int i = 0; i < 64; ++i) open.push_back(rpc_async<noop>(to));
  for (auto _ : state) {
    open.front().wait();
    open.pop_front();
    open.push_back(rpc_async<noop>(to));
  }
  for (const auto& f : open) f.wait();
  state.SetItemsProcessed(state.iterations());
}

void rref_noop_method(benchmark::State& state) {  // beside noop_call
  const auto object = remote<Object>(static_cast<int>(state.range(0)));
  measure(state, [&] { object.rpc_sync<&Object::noop>(); });
}
void rref_to_here_3x3(benchmark::State& state) {
  const auto value = remote<builtin::ones>(static_cast<int>(state.range(0)), Shape{3, 3});
  measure(state, [&] { benchmark::DoNotOptimize(value.to_here()); });
}
void rref_argument(benchmark::State& state) {  // to its owner
  const auto object = remote<Object>(static_cast<int>(state.range(0)));
  measure(state, [&] { rpc_sync<take>(object.owner(), object); });
}
void rref_create_use_drop(benchmark::State& state) {
  const int to = static_cast<int>(state.range(0));
  measure(state, [&] { benchmark::DoNotOptimize(remote<builtin::ones>(to, Shape{3, 3}).to_here()); });
}

void peers(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond)->ArgName("unix1_tcp2")->Arg(1)->Arg(2);
}
void sizes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond)->ArgNames({"unix1_tcp2", "bytes"});
  for (int64_t to = 1; to <= 2; ++to)
    for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) b->Args({to, bytes});
}
BENCHMARK(noop_call)->Apply(peers);
BENCHMARK(noop_after_1ms)
    ->UseManualTime()
    ->Iterations(1000)
    ->Unit(benchmark::kMicrosecond)
    ->ArgName("unix1_tcp2")
    ->Arg(1)
    ->Arg(2);
BENCHMARK(add_3x3)->Apply(peers);
BENCHMARK(nested)->Apply(peers);
BENCHMARK(outstanding_64)->Apply(peers);
BENCHMARK(rref_noop_method)->Apply(peers);
BENCHMARK(rref_to_here_3x3)->Apply(peers);
BENCHMARK(rref_argument)->Apply(peers);
BENCHMARK(rref_create_use_drop)->Apply(peers);
BENCHMARK(echo_bytes)->Apply(sizes);
BENCHMARK(push_bytes)->Apply(sizes);

}  // namespace

int main(int argc, char** argv) {
  InitOptions options;
  SpawnOptions workers{.world_size = 3, .first_rank = 1, .own_arguments = false};
  const auto is_own = [&](const char* argument) {
    if (std::strcmp(argument, "--no-lane") == 0) options.same_host_lane = false;
    else if (std::strcmp(argument, "--no-spin") == 0) options.spin = Duration::zero();
    else return false;
    workers.arguments.emplace_back(argument);
    return true;
  };
  argc = static_cast<int>(std::remove_if(argv + 1, argv + argc, is_own) - argv);
  try {
    if (const auto rank = spawned_rank()) {
      options.unix_socket = *rank != 2;
      init_rpc(str("worker", *rank), options);
      rpc::serve_until_done();
      return 0;
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Children children = spawn(workers);
    options.rank = 0;
    options.world_size = 3;
    options.master_addr = "127.0.0.1";
    options.master_port = children.master_port();
    init_rpc("worker0", options);
    benchmark::RunSpecifiedBenchmarks();
    rpc::shutdown();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "bench_rpc: " << e.what() << "\n";
    return 1;
  }
}
