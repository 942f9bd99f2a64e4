// Time per operation. First the overhead of one small op (checks, allocation, launch, record, backward). Then
// the products and losses of the word language model. Then, if the tests are built, the forward of every row
// of the op table on its large sizes. One thread, unless WEFT_THREADS sets another number.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/kernels/cpu_settings.h>
#ifdef WEFT_BENCH_OP_ROWS
#include "support/op_table.h"
#endif

namespace {

using namespace weft;

void use_threads() {
  const char* wanted = std::getenv("WEFT_THREADS");
  set_num_threads(wanted ? std::max(1, std::atoi(wanted)) : 1);
}

// Times f() with or without recording.
template <class F> void each(benchmark::State& state, bool tape, F&& f) {
  use_threads();
  GradMode mode(tape);
  for (auto _ : state) benchmark::DoNotOptimize(f());
}

void small_add(benchmark::State& state) {
  const Tensor a = ones({1}), b = ones({1});
  each(state, false, [&] { return a + b; });
}
BENCHMARK(small_add);

void small_add_number(benchmark::State& state) {
  const Tensor a = ones({1});
  each(state, false, [&] { return a + 1; });
}
BENCHMARK(small_add_number);

void small_add_recorded(benchmark::State& state) {
  const Tensor a = ones({1}).requires_grad_(), b = ones({1});
  each(state, true, [&] { return a + b; });
}
BENCHMARK(small_add_recorded);

void small_add_both_ways(benchmark::State& state) {
  Tensor a = ones({1}).requires_grad_();
  const Tensor b = ones({1});
  use_threads();
  for (auto _ : state) {
    a.zero_grad();
    (a + b).backward();
  }
}
BENCHMARK(small_add_both_ways);

// One op of a chain, forward and backward.
template <class F> void chain(benchmark::State& state, F&& op) {
  use_threads();
  const Tensor a = ones({1}).requires_grad_(), b = ones({1});
  constexpr int64_t length = 1000;
  for (auto _ : state) {
    Tensor y = a;
    for (int64_t i = 0; i < length; ++i) y = op(y, b);
    y.backward();
  }
  state.SetItemsProcessed(state.iterations() * length);
}
void chain_of_1000_adds(benchmark::State& state) {
  chain(state, [](const Tensor& x, const Tensor& b) { return x + b; });
}
BENCHMARK(chain_of_1000_adds)->Unit(benchmark::kMicrosecond);
void chain_of_1000_muls(benchmark::State& state) {
  chain(state, [](const Tensor& x, const Tensor& b) { return x * b; });
}
BENCHMARK(chain_of_1000_muls)->Unit(benchmark::kMicrosecond);

// The size of CartPole's policy.
void small_policy_step(benchmark::State& state) {
  const Tensor x = randn({1, 4}), w1 = randn({128, 4}), b1 = zeros({128}), w2 = randn({2, 128}),
               b2 = zeros({2});
  each(state, false, [&] { return softmax(linear(relu(linear(x, w1, b1)), w2, b2), 1); });
}
BENCHMARK(small_policy_step);

void matmul_700x200x10000(benchmark::State& state) {
  const Tensor a = randn({700, 200}), b = randn({10000, 200});
  each(state, false, [&] { return linear(a, b); });
  state.counters["GFLOP/s"] =
      benchmark::Counter(2 * 700 * 200 * 1e4 * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(matmul_700x200x10000)->Unit(benchmark::kMillisecond);

// A weight of a half type: row-major, and transposed as that of a layer.
void matmul_64x1024x1024(benchmark::State& state, DType type, bool transposed) {
  const Tensor a = randn({64, 1024}).to(type), b = randn({1024, 1024}).to(type);
  each(state, false, [&] { return transposed ? linear(a, b) : matmul(a, b); });
}
BENCHMARK_CAPTURE(matmul_64x1024x1024, float32, kFloat32, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(matmul_64x1024x1024, bfloat16, kBFloat16, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(matmul_64x1024x1024, float32_transposed, kFloat32, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(matmul_64x1024x1024, bfloat16_transposed, kBFloat16, true)->Unit(benchmark::kMicrosecond);

void cross_entropy_700x10000(benchmark::State& state) {
  Tensor x = randn({700, 10000}).requires_grad_();
  const Tensor target = randint(0, 10000, {700});
  each(state, true, [&] { return grad({cross_entropy(x, target)}, {x})[0]; });
}
BENCHMARK(cross_entropy_700x10000)->Unit(benchmark::kMillisecond);

void decoder_loss(benchmark::State& state, bool fused) {
  Tensor x = randn({700, 200}).requires_grad_(), w = (randn({10000, 200}) * 0.1).requires_grad_(),
         b = zeros({10000}).requires_grad_();
  const Tensor target = randint(0, 10000, {700});
  each(state, true, [&] {
    return grad({fused ? linear_cross_entropy(x, w, b, target) : cross_entropy(linear(x, w, b), target)},
                {x, w, b})[0];
  });
}
BENCHMARK_CAPTURE(decoder_loss, in_parts, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder_loss, fused, true)->Unit(benchmark::kMillisecond);

// Eight heads of 64 numbers over 1,024 positions.
void attention(benchmark::State& state, bool causal, bool backward) {
  const auto heads = [] { return randn({8, 1024, 64}).requires_grad_(); };
  const Tensor q = heads(), k = heads(), v = heads(), g = randn({8, 1024, 64});
  each(state, backward, [&] {
    const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = causal});
    return backward ? grad({y}, {q, k, v}, {g})[0] : y;
  });
}
BENCHMARK_CAPTURE(attention, forward, false, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attention, both_ways, false, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(attention, causal_both_ways, true, true)->Unit(benchmark::kMillisecond);

// A batch of eight with four short heads.
void attention_8x4x64x32(benchmark::State& state) {
  const Tensor q = randn({8, 4, 64, 32}), k = randn({8, 4, 64, 32}), v = randn({8, 4, 64, 32});
  each(state, false, [&] { return scaled_dot_product_attention(q, k, v); });
}
BENCHMARK(attention_8x4x64x32)->Unit(benchmark::kMicrosecond);

void add_floats(benchmark::State& state, int64_t n) {
  const Tensor a = ones({n}), b = ones({n});
  each(state, false, [&] { return a + b; });
  state.SetBytesProcessed(state.iterations() * 12 * n);
}
void add_10M_floats(benchmark::State& state) { add_floats(state, 10'000'000); }
BENCHMARK(add_10M_floats)->Unit(benchmark::kMillisecond);
void add_25M_floats(benchmark::State& state) { add_floats(state, 25'000'000); }  // beyond the caches
BENCHMARK(add_25M_floats)->Unit(benchmark::kMillisecond);

// Powers of floats, by a tensor and by a number that is no whole one.
void pow_1M_floats(benchmark::State& state, bool by_number) {
  const Tensor x = rand({1'000'000}) * 10, p = rand({1'000'000}) * 4 - 2;
  each(state, false, [&] { return by_number ? pow(x, 2.5) : pow(x, p); });
}
BENCHMARK_CAPTURE(pow_1M_floats, by_tensor, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(pow_1M_floats, by_number, true)->Unit(benchmark::kMillisecond);

#ifdef WEFT_BENCH_OP_ROWS
const bool rows_registered = [] {
  for (const op_table::Row& row : op_table::all_rows()) {
    benchmark::RegisterBenchmark(("row/" + row.name).c_str(), [&row](benchmark::State& state) {
      const auto inputs = op_table::make_inputs(row, row.dtypes[0], op_table::Layout::kContiguous, kCpu,
                                                row.large.empty() ? nullptr : &row.large);
      each(state, false, [&] { return row.call(inputs); });
    });
  }
  return true;
}();
#endif

}  // namespace
