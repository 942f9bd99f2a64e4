// Operations of order, counts, groups and positions, beside PyTorch's (bench/peers/torch_peers.py has the
// same cases). Sizes are 1,000 numbers, and 1,000 x 1,000 as a whole or along the first and the last dim.
// One thread, unless WEFT_THREADS sets another number.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include <weft/weft.h>

namespace {

using namespace weft;
using Work = std::function<void()>;

struct Numbers {
  Tensor x;        ///< normal
  Tensor ids;      ///< int64 from [0, 1000), x's sizes
  Tensor line;     ///< int64 from [0, 1000), [1000]
  Tensor divisor;  ///< from [0.5, 1.5), x's sizes
  Tensor holes;    ///< x with NaN and infinities
  Tensor mask;     ///< x > 0
};

Numbers numbers_of(const Shape& sizes) {
  manual_seed(1);
  const Tensor x = randn(sizes);
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor holes =
      where(x > 1, full({}, inf), where(x < -1, full({}, std::numeric_limits<double>::quiet_NaN()), x));
  return {x, randint(0, 1000, sizes), randint(0, 1000, 1000), rand(sizes) + 0.5, holes, x > 0};
}

void add(const std::string& name, const Work& work) {
  benchmark::RegisterBenchmark(("order/" + name).c_str(), [work](benchmark::State& state) {
    const char* wanted = std::getenv("WEFT_THREADS");
    set_num_threads(wanted ? std::max(1, std::atoi(wanted)) : 1);
    const NoGrad quiet;
    for (auto _ : state) work();
  })->Unit(benchmark::kMicrosecond);
}

void add_whole(const std::string& size, const Numbers& n) {
  add("median/" + size, [=] { benchmark::DoNotOptimize(median(n.x)); });
  add("unique/" + size, [=] { benchmark::DoNotOptimize(unique(n.ids)); });
  add("unique_inverse_counts/" + size,
      [=] { benchmark::DoNotOptimize(unique(n.ids, {.inverse = true, .counts = true})); });
  add("nan_to_num/" + size, [=] { benchmark::DoNotOptimize(nan_to_num(n.holes)); });
  add("fmod/" + size, [=] { benchmark::DoNotOptimize(fmod(n.x, n.divisor)); });
  add("fmod_number/" + size, [=] { benchmark::DoNotOptimize(fmod(n.x, 0.7)); });
  add("floor_divide/" + size, [=] { benchmark::DoNotOptimize(floor_divide(n.x, n.divisor)); });
  add("floor_divide_int64/" + size, [=] { benchmark::DoNotOptimize(floor_divide(n.ids, 7)); });
  add("isinf/" + size, [=] { benchmark::DoNotOptimize(isinf(n.holes)); });
  add("diag/" + size, [=] { benchmark::DoNotOptimize(diag(n.x)); });
  add("index_mask/" + size, [=] { benchmark::DoNotOptimize(n.x.index({n.mask})); });
  add("assign_mask_number/" + size, [x = n.x.clone(), mask = n.mask]() mutable { x[mask] = 1; });
  add("assign_mask_values/" + size,
      [x = n.x.clone(), mask = n.mask, v = n.x.index({n.mask})]() mutable { x[mask] = v; });
  add("index_put/" + size, [x = n.x.clone(), n]() mutable { x.index_put_({n.line}, n.x); });
  add("index_put_add/" + size, [x = n.x.clone(), n]() mutable { x.index_put_({n.line}, n.x, true); });
}

void add_dim(const std::string& size, const Numbers& n, int64_t d) {
  add("argsort/" + size, [=] { benchmark::DoNotOptimize(argsort(n.x, d)); });
  add("median_dim/" + size, [=] { benchmark::DoNotOptimize(median(n.x, d)); });
  add("repeat_interleave/" + size, [=] { benchmark::DoNotOptimize(repeat_interleave(n.x, 2, d)); });
  add("repeat_interleave_counts/" + size,
      [n, d, counts = n.line % 3] { benchmark::DoNotOptimize(repeat_interleave(n.x, counts, d)); });
  add("normalize/" + size, [=] { benchmark::DoNotOptimize(normalize(n.x, 2, d)); });
  const std::pair<const char*, ScatterReduce> rules[] = {{"sum", ScatterReduce::kSum},
                                                         {"prod", ScatterReduce::kProd},
                                                         {"mean", ScatterReduce::kMean},
                                                         {"amax", ScatterReduce::kAmax}};
  for (const auto& [rule, reduce] : rules)
    add(str("scatter_reduce_", rule, "/", size),
        [=, reduce = reduce] { benchmark::DoNotOptimize(scatter_reduce(n.x, d, n.ids, n.x, reduce)); });
  add("scatter_reduce_amax_others/" + size,
      [=] { benchmark::DoNotOptimize(scatter_reduce(n.x, d, n.ids, n.x, ScatterReduce::kAmax, false)); });
}

const bool order_registered = [] {
  const Numbers line = numbers_of(1000), square = numbers_of({1000, 1000});
  add_whole("1000", line), add_whole("1000x1000", square);
  add_dim("1000", line, 0), add_dim("1000x1000/dim0", square, 0), add_dim("1000x1000/dim1", square, 1);
  for (const auto& [size, n] : {std::pair("1000", line), std::pair("1000x1000", square)}) {
    const Tensor ids = n.ids.reshape(-1), weights = n.divisor.reshape(-1);
    add(str("bincount/", size), [=] { benchmark::DoNotOptimize(bincount(ids)); });
    add(str("bincount_weights/", size), [=] { benchmark::DoNotOptimize(bincount(ids, weights)); });
  }
  return true;
}();

}  // namespace
