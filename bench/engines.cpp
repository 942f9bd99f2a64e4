// Products at the shapes from which the table of engines is made; scripts/bench/engines.py sets the engine by
// WEFT_GEMM. product/<layout>/<m>/<n>/<k> is c [m, n] = a [m, k] b [k, n] in float32 on one thread.
// The layout tells whether a and b are row-major (N) or transposed (T).
#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include <weft/weft.h>

namespace {

using namespace weft;

constexpr int64_t kRows[] = {1, 4, 12, 20, 40, 128, 700};
constexpr std::pair<int64_t, int64_t> kSides[] = {{64, 64},    {256, 256},  {800, 200},
                                                  {650, 2600}, {2600, 650}, {10000, 200}};
void product(benchmark::State& state, bool transposed_a, bool transposed_b, int64_t m, int64_t n, int64_t k) {
  set_num_threads(1);
  const NoGrad quiet;
  const Tensor a = transposed_a ? randn({k, m}).t() : randn({m, k});
  const Tensor b = transposed_b ? randn({n, k}).t() : randn({k, n});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(a, b));
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(m * n * k),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

const bool registered = [] {
  for (const auto& [n, k] : kSides)
    for (const int64_t m : kRows)
      for (const char* layout : {"NN", "NT", "TN"})
        benchmark::RegisterBenchmark(str("product/", layout, "/", m, "/", n, "/", k).c_str(), product,
                                     layout[0] == 'T', layout[1] == 'T', m, n, k);
  return true;
}();

}  // namespace
