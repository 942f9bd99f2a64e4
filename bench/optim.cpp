// Optimizer steps: 100 tensors of 250,000 floats (25M in all), and 1000 tensors of 100 floats. Whole steps of
// tables of embeddings.
// bytes/s counts the least memory traffic of a fused step.
#include <benchmark/benchmark.h>

#include <weft/weft.h>

namespace {

using namespace weft;

template <class Opt>
void steps(benchmark::State& state, typename Opt::Options options, int64_t count, int64_t size,
           int64_t bytes_per_element) {
  set_num_threads(static_cast<int>(state.range(0)));
  std::vector<Tensor> params;
  for (int64_t i = 0; i < count; ++i) {
    params.push_back(randn({size}).requires_grad_());
    params.back().set_grad(randn({size}));
  }
  Opt opt(params, options);
  opt.step();
  for (auto _ : state) opt.step();
  state.SetBytesProcessed(state.iterations() * count * size * bytes_per_element);
}

void Sgd(benchmark::State& s) { steps<optim::SGD>(s, {.lr = 1e-3}, 100, 250000, 12); }
void SgdMomentum(benchmark::State& s) {
  steps<optim::SGD>(s, {.lr = 1e-3, .momentum = 0.9}, 100, 250000, 20);
}
void Qhm(benchmark::State& s) {
  steps<optim::QHM>(s, {.lr = 1e-3, .momentum = 0.9, .nu = 0.7}, 100, 250000, 20);
}
void Adam(benchmark::State& s) { steps<optim::Adam>(s, {.lr = 1e-3}, 100, 250000, 28); }
void SmallSgdMomentum(benchmark::State& s) {
  steps<optim::SGD>(s, {.lr = 1e-3, .momentum = 0.9}, 1000, 100, 20);
}
void SmallAdam(benchmark::State& s) { steps<optim::Adam>(s, {.lr = 1e-3}, 1000, 100, 28); }
BENCHMARK(Sgd)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(SgdMomentum)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(Qhm)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(Adam)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(SmallSgdMomentum)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(SmallAdam)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

/// A whole step of a table of range(0) rows: 512 look-ups, backward and step. With a sparse gradient its time
/// follows the look-ups, else the table.
template <class Opt>
void embedding_step(benchmark::State& state, bool sparse, typename Opt::Options options = {.lr = 1e-3}) {
  set_num_threads(1);
  nn::Embedding table(state.range(0), 64, {.sparse = sparse});
  Opt opt(table.parameters(), options);
  const Tensor g = randn({512, 64});
  std::vector<Tensor> ids;
  for (int i = 0; i < 64; ++i) ids.push_back(randint(0, state.range(0), {512}));
  size_t at = 0;
  const auto step = [&] {
    opt.zero_grad();
    table.forward(ids[at++ % ids.size()]).backward(g);
    opt.step();
  };
  for (size_t i = 0; i < ids.size(); ++i) step();
  for (auto _ : state) step();
}
void SparseEmbeddingStep(benchmark::State& s) { embedding_step<optim::SparseAdam>(s, true); }
void SparseMomentumStep(benchmark::State& s) {
  embedding_step<optim::SGD>(s, true, {.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4});
}
void DenseEmbeddingStep(benchmark::State& s) { embedding_step<optim::Adam>(s, false); }
BENCHMARK(SparseEmbeddingStep)->Arg(2000)->Arg(200000)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(SparseMomentumStep)->Arg(2000)->Arg(200000)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(DenseEmbeddingStep)->Arg(2000)->Arg(200000)->Unit(benchmark::kMicrosecond)->UseRealTime();

void ClipGradNorm(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(0)));
  std::vector<Tensor> params;
  for (int i = 0; i < 100; ++i) {
    params.push_back(randn({250000}).requires_grad_());
    params.back().set_grad(randn({250000}));
  }
  for (auto _ : state) benchmark::DoNotOptimize(optim::clip_grad_norm(params, 0.25));
}
// A clip and a step of SGD: apart, six streams of memory, and in one, four.
void clip_and_sgd(benchmark::State& state, bool folded) {
  set_num_threads(static_cast<int>(state.range(0)));
  std::vector<Tensor> params;
  for (int i = 0; i < 100; ++i) {
    params.push_back(randn({250000}).requires_grad_());
    params.back().set_grad(randn({250000}));
  }
  optim::SGD sgd(params, {.lr = 1e-3});
  for (auto _ : state)
    if (folded) {
      benchmark::DoNotOptimize(sgd.step_clipped(0.25));
    } else {
      optim::clip_grad_norm(params, 0.25);
      sgd.step();
    }
}
void ClipSgd(benchmark::State& state) { clip_and_sgd(state, true); }
void ClipSgdApart(benchmark::State& state) { clip_and_sgd(state, false); }
BENCHMARK(ClipSgd)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(ClipSgdApart)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(ClipGradNorm)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
