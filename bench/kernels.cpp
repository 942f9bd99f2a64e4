// Kernels beside PyTorch's (bench/peers/torch_peers.py has the same cases): floats of 1,000 x 1,000, and
// pointwise ones of 1,000 too. One thread, unless WEFT_THREADS sets another number.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <weft/weft.h>

namespace {

using namespace weft;

template <class F> void add(const std::string& name, F work) {
  benchmark::RegisterBenchmark(("kernel/" + name).c_str(), [work](benchmark::State& state) {
    const char* wanted = std::getenv("WEFT_THREADS");
    set_num_threads(wanted ? std::max(1, std::atoi(wanted)) : 1);
    const NoGrad quiet;
    for (auto _ : state) benchmark::DoNotOptimize(work());
  })->Unit(benchmark::kMicrosecond);
}

// Forward and backward.
template <class F> void add_both_ways(const std::string& name, const Tensor& x, F work) {
  const Tensor leaf = x.clone().requires_grad_(), seed = ones(work(x).sizes());
  add(name + "_both_ways", [leaf, seed, work] {
    const GradMode on(true);
    return grad({work(leaf)}, {leaf}, {seed})[0];
  });
}

void add_pointwise(const std::string& size, const Shape& sizes) {
  manual_seed(1);
  const Tensor x = randn(sizes), z = randn(sizes), positive = rand(sizes) * 10 + 0.1, mask = x > 0;
  const auto row = [&](const char* name, auto work) { add(str(name, "/", size), work); };
  row("sin", [=] { return sin(x); });
  row("cos", [=] { return cos(x); });
  row("tan", [=] { return tan(x); });
  row("exp", [=] { return exp(x); });
  row("expm1", [=] { return expm1(x); });
  row("log", [=] { return log(positive); });
  row("log1p", [=] { return log1p(positive); });
  row("tanh", [=] { return tanh(x); });
  row("sigmoid", [=] { return sigmoid(x); });
  row("erf", [=] { return erf(x); });
  row("gelu", [=] { return gelu(x); });
  row("silu", [=] { return silu(x); });
  row("softplus", [=] { return softplus(x); });
  row("relu", [=] { return relu(x); });
  row("sqrt", [=] { return sqrt(positive); });
  row("rsqrt", [=] { return rsqrt(positive); });
  row("abs", [=] { return abs(x); });
  row("neg", [=] { return neg(x); });
  row("clamp", [=] { return clamp(x, -1, 1); });
  row("round", [=] { return round(x); });
  row("pow_tensor", [=] { return pow(positive, z); });
  row("pow_number", [=] { return pow(positive, 2.5); });
  row("pow_3", [=] { return pow(x, 3); });
  row("add", [=] { return x + z; });
  row("mul", [=] { return x * z; });
  row("div", [=] { return x / positive; });
  row("maximum", [=] { return maximum(x, z); });
  row("atan2", [=] { return atan2(x, z); });
  row("remainder", [=] { return remainder(x, positive); });
  row("fmod", [=] { return fmod(x, positive); });
  row("gt", [=] { return x > z; });
  row("where", [=] { return where(mask, x, z); });
  row("masked_fill", [=] { return masked_fill(x, mask, 0); });
  row("clone", [=] { return x.clone(); });
  for (const auto& [name, half] : {std::pair("float16", kFloat16), std::pair("bfloat16", kBFloat16)}) {
    row(str("to_", name).c_str(), [=, half = half] { return x.to(half); });
    row(str("from_", name).c_str(), [h = x.to(half)] { return h.to(kFloat32); });
    row(str("add_", name).c_str(), [a = x.to(half), b = z.to(half)] { return a + b; });
  }
  row("to_int64", [=] { return x.to(kInt64); });
  row("to_float64", [=] { return x.to(kFloat64); });
}

void add_square() {
  const Shape sizes{1000, 1000};
  manual_seed(1);
  const Tensor x = randn(sizes), z = randn(sizes), line = randn(1000), index = randint(0, 1000, 1000);
  add("sum", [=] { return sum(x); });
  add("mean", [=] { return mean(x); });
  add("var", [=] { return var(x); });
  add("norm", [=] { return norm(x); });
  add("amax", [=] { return amax(x); });
  add_both_ways("var", x, [](const Tensor& v) { return var(v); });
  add("flip", [=] { return flip(x, {0, 1}); });
  add("transposed", [=] { return x.t().contiguous(); });
  add("add_row", [=] { return x + line; });
  add("add_column", [c = line.reshape({-1, 1}), x] { return x + c; });
  add("add_transposed", [=] { return x + z.t(); });
  add("layer_norm", [=] { return layer_norm(x, {1000}, line, line); });
  add_both_ways("layer_norm", x, [line](const Tensor& v) { return layer_norm(v, {1000}, line, line); });
  add("rand", [=] { return rand(sizes); });
  add("randn", [=] { return randn(sizes); });
  add("dropout", [=] { return dropout(x, 0.5, true); });
  add("tril", [=] { return tril(x); });
  add("any", [m = x > 10] { return any(m); });
  for (const int64_t d : {0, 1}) {
    const auto row = [&](const char* name, auto work) { add(str(name, "/dim", d), work); };
    row("sum", [=] { return sum(x, {d}); });
    row("mean", [=] { return mean(x, {d}); });
    row("var", [=] { return var(x, {d}); });
    add_both_ways(str("var/dim", d), x, [d](const Tensor& v) { return var(v, {d}); });
    row("norm", [=] { return norm(x, 2, {d}); });
    row("prod", [=] { return prod(x, d); });
    row("amax", [=] { return amax(x, {d}); });
    row("argmax", [=] { return argmax(x, d); });
    row("cumsum", [=] { return cumsum(x, d); });
    row("logsumexp", [=] { return logsumexp(x, d); });
    row("softmax", [=] { return softmax(x, d); });
    row("log_softmax", [=] { return log_softmax(x, d); });
    add_both_ways(str("softmax/dim", d), x, [d](const Tensor& v) { return softmax(v, d); });
    row("flip", [=] { return flip(x, {d}); });
    row("roll", [=] { return roll(x, 7, d); });
    row("cat", [=] { return cat({x, z}, d); });
    row("index_select", [=] { return index_select(x, d, index); });
    add_both_ways(str("index_select/dim", d), x,
                  [d, index](const Tensor& v) { return index_select(v, d, index); });
    row("gather", [d, x, ids = randint(0, 1000, sizes)] { return gather(x, d, ids); });
    row("sort", [=] { return sort(x, d).values; });
    row("topk", [=] { return topk(x, 10, d).values; });
  }
}

const bool kernels_registered = [] {
  add_pointwise("1000", 1000);
  add_pointwise("1000000", 1'000'000);
  add_square();
  return true;
}();

}  // namespace
