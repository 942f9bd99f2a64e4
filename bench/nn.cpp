// Layers, and the training step of PyTorch's word language model example (LmStep). Its arguments:
// vocabulary, size (embedding and hidden), threads. Batch 20, 35 steps, 2 layers, dropout 0.2 in three
// places, SGD with clipping.
#include <benchmark/benchmark.h>

#include <weft/weft.h>

namespace {

using namespace weft;

struct LanguageModel {
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;
  nn::Dropout drop{0.2};
  std::vector<Tensor> parameters;
  optim::SGD sgd;

  LanguageModel(int64_t vocabulary, int64_t size)
      : encoder(vocabulary, size),
        rnn(size, size, {.num_layers = 2, .dropout = 0.2}),
        decoder(size, vocabulary),
        parameters(all()),
        sgd(parameters, {.lr = 1}) {}
  std::vector<Tensor> all() {
    std::vector<Tensor> out{encoder.weight};
    for (const Tensor& p : rnn.parameters()) out.push_back(p);
    out.push_back(decoder.weight);
    out.push_back(decoder.bias);
    return out;
  }
  Tensor loss(const Tensor& ids, const Tensor& target) {
    const Tensor y = drop.forward(rnn.forward(drop.forward(encoder.forward(ids))).y);
    return linear_cross_entropy(y.reshape({-1, y.size(2)}), decoder.weight, decoder.bias, target);
  }
};

void LmStep(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(2)));
  manual_seed(1);
  LanguageModel model(state.range(0), state.range(1));
  const Tensor ids = randint(0, state.range(0), {35, 20}), target = randint(0, state.range(0), {700});
  const auto step = [&] {
    model.sgd.zero_grad();
    model.loss(ids, target).backward();
    model.sgd.step_clipped(0.25);
  };
  for (int i = 0; i < 2; ++i) step();  // they take fresh memory
  for (auto _ : state) step();
  state.counters["tokens/s"] =
      benchmark::Counter(700.0 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(LmStep)
    ->Args({10000, 200, 1})
    ->Args({10000, 200, 2})
    ->Args({10000, 650, 1})
    ->Args({10000, 650, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void LmForward(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(2)));
  LanguageModel model(state.range(0), state.range(1));
  model.rnn.eval();
  model.drop.eval();
  NoGrad guard;
  const Tensor ids = randint(0, state.range(0), {35, 20}), target = randint(0, state.range(0), {700});
  for (auto _ : state) benchmark::DoNotOptimize(model.loss(ids, target).raw());
}
BENCHMARK(LmForward)
    ->Args({10000, 200, 1})
    ->Args({10000, 200, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

template <class Layer> void Recurrent(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(1)));
  const int64_t size = state.range(0);
  Layer layer(size, size);
  Tensor x = randn({35, 20, size}).requires_grad_();
  const auto step = [&] {
    layer.zero_grad();
    x.zero_grad();
    layer.forward(x).y.sum().backward();
  };
  for (int i = 0; i < 2; ++i) step();  // they take fresh memory
  for (auto _ : state) step();
}
BENCHMARK(Recurrent<nn::LSTM>)
    ->Args({200, 1})
    ->Args({200, 2})
    ->Args({650, 1})
    ->Args({650, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(Recurrent<nn::GRU>)->Args({200, 1})->Args({200, 2})->Unit(benchmark::kMillisecond)->UseRealTime();

// One step of one sequence without gradients, and the two products in it as two linear layers. Argument: H.
void LstmInference(benchmark::State& state) {
  set_num_threads(1);
  const int64_t size = state.range(0);
  const NoGrad guard;
  const nn::LSTM layer(size, size);
  const Tensor x = randn({1, 1, size});
  nn::RnnOutput last = layer.forward(x);
  for (auto _ : state) last = layer.forward(x, last.h, last.c);
  benchmark::DoNotOptimize(last.y.raw());
}
BENCHMARK(LstmInference)->Arg(32)->Arg(128)->Arg(512)->Unit(benchmark::kMicrosecond);

void TwoLinears(benchmark::State& state) {
  set_num_threads(1);
  const int64_t size = state.range(0);
  const NoGrad guard;
  const nn::LSTMCell cell(size, size);
  const Tensor x = randn({1, size}), h = randn({1, size});
  for (auto _ : state) {
    benchmark::DoNotOptimize(linear(x, cell.weight_ih, cell.bias_ih).raw());
    benchmark::DoNotOptimize(linear(h, cell.weight_hh, cell.bias_hh).raw());
  }
}
BENCHMARK(TwoLinears)->Name("floor/two_linears")->Arg(32)->Arg(128)->Arg(512)->Unit(benchmark::kMicrosecond);

// Products of a few rows by one weight, as inference of small batches and steps of cells make. Arguments:
// rows, inputs, outputs, and 1 for kept packs.
void FewRows(benchmark::State& state) {
  set_num_threads(1);
  const int64_t limit = pack_limit();
  if (state.range(3) == 0) set_pack_limit(0);
  const NoGrad guard;
  const nn::Linear layer(state.range(1), state.range(2));
  const Tensor x = randn({state.range(0), state.range(1)});
  for (auto _ : state) benchmark::DoNotOptimize(layer.forward(x).const_raw());
  set_pack_limit(limit);
}
BENCHMARK(FewRows)
    ->ArgsProduct({{1, 8, 12, 20, 32, 64, 128}, {512}, {512}, {0, 1}})
    ->ArgsProduct({{20, 64, 700}, {650}, {2600}, {0, 1}})
    ->ArgsProduct({{700}, {200}, {10000}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

// One step of a batch without gradients. Arguments: batch, H, and 1 for kept packs.
void CellInference(benchmark::State& state) {
  set_num_threads(1);
  const int64_t limit = pack_limit(), batch = state.range(0), size = state.range(1);
  if (state.range(2) == 0) set_pack_limit(0);
  const NoGrad guard;
  const nn::LSTMCell cell(size, size);
  const Tensor x = randn({batch, size});
  nn::CellState last = cell.forward(x);
  for (auto _ : state) last = cell.forward(x, last.h, last.c);
  benchmark::DoNotOptimize(last.h.const_raw());
  set_pack_limit(limit);
}
BENCHMARK(CellInference)->ArgsProduct({{1, 4, 8, 20, 64}, {128, 512}, {0, 1}})->Unit(benchmark::kMicrosecond);

// The policy of the example cartpole for one state. Argument: 1 replays it by compile(), 0 runs it.
void PolicyForward(benchmark::State& state) {
  set_num_threads(1);
  const nn::Linear hidden(4, 128), out(128, 2);
  const auto policy = [&](const Tensor& x) { return softmax(out.forward(relu(hidden.forward(x))), 1); };
  auto replayed = compile(policy);
  NoGrad guard;
  const Tensor x = randn({1, 4});
  for (int i = 0; i < 3; ++i) replayed(x);
  for (auto _ : state) benchmark::DoNotOptimize((state.range(0) != 0 ? replayed(x) : policy(x)).raw());
}
BENCHMARK(PolicyForward)->Arg(0)->Arg(1);

// A training step of that policy for one state. Argument: as PolicyForward.
void PolicyStep(benchmark::State& state) {
  set_num_threads(1);
  const nn::Linear hidden(4, 128), out(128, 2);
  std::vector<Tensor> parameters = hidden.parameters();
  for (const Tensor& p : out.parameters()) parameters.push_back(p);
  optim::Adam adam(parameters, {.lr = 1e-4});
  const auto step = [&](const Tensor& x) {
    adam.zero_grad();
    const Tensor loss = log_softmax(out.forward(relu(hidden.forward(x))), 1).select(1, 0).mean();
    loss.backward();
    adam.step();
    return loss.detach();
  };
  auto replayed = compile(step);
  const Tensor x = randn({1, 4});
  for (int i = 0; i < 5; ++i) replayed(x);
  for (auto _ : state) benchmark::DoNotOptimize((state.range(0) != 0 ? replayed(x) : step(x)).raw());
}
BENCHMARK(PolicyStep)->Arg(0)->Arg(1);

// The whole step of the language model by compile(). Arguments: vocabulary, size, threads.
void LmStepReplayed(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(2)));
  manual_seed(1);
  LanguageModel model(state.range(0), state.range(1));
  auto step = compile([&](const Tensor& ids, const Tensor& target) {
    model.sgd.zero_grad();
    const Tensor loss = model.loss(ids, target);
    loss.backward();
    model.sgd.step_clipped(0.25);
    return loss.detach();
  });
  const Tensor ids = randint(0, state.range(0), {35, 20}), target = randint(0, state.range(0), {700});
  for (int i = 0; i < 5; ++i) step(ids, target);
  for (auto _ : state) step(ids, target);
  if (!step.reason().empty()) state.SkipWithError(step.reason().c_str());
}
BENCHMARK(LmStepReplayed)
    ->Args({10000, 200, 1})
    ->Args({10000, 200, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// Pointwise operations one after the other: six of which memory sets the time, and five with two functions.
// Arguments: elements, 1 by compile() or 0 as they are, threads.
template <class F> void pointwise_chain(benchmark::State& state, F&& f) {
  set_num_threads(static_cast<int>(state.range(2)));
  const NoGrad guard;
  const Tensor x = randn({state.range(0)}), w = randn({state.range(0)});
  auto replayed = compile(f);
  for (int i = 0; i < 3; ++i) replayed(x, w);
  for (auto _ : state) benchmark::DoNotOptimize((state.range(1) != 0 ? replayed(x, w) : f(x, w)).raw());
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
void CheapChain(benchmark::State& state) {
  pointwise_chain(state, [](const Tensor& x, const Tensor& w) { return ((x * w + 1) * 0.5 - x).relu() + w; });
}
void DearChain(benchmark::State& state) {
  pointwise_chain(state, [](const Tensor& x, const Tensor& w) { return (x * w).sigmoid() * x.tanh() + w; });
}
void chain_arguments(benchmark::internal::Benchmark* b) {
  for (const int64_t elements : {1000, 10000, 100000, 1000000})
    for (const int64_t compiled : {0, 1}) b->Args({elements, compiled, 1});
  for (const int64_t compiled : {0, 1}) b->Args({1000000, compiled, 2});
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}
BENCHMARK(CheapChain)->Apply(chain_arguments);
BENCHMARK(DearChain)->Apply(chain_arguments);

void CrossEntropy(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(0)));
  Tensor x = randn({700, 10000}).requires_grad_();
  const Tensor target = randint(0, 10000, {700});
  for (auto _ : state) {
    x.zero_grad();
    cross_entropy(x, target).backward();
  }
}
BENCHMARK(CrossEntropy)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

void EmbeddingStep(benchmark::State& state) {
  set_num_threads(1);
  nn::Embedding table(10000, 200);
  const Tensor ids = randint(0, 10000, {700}), g = randn({700, 200});
  for (auto _ : state) {
    table.zero_grad();
    table.forward(ids).backward(g);
  }
}
BENCHMARK(EmbeddingStep)->Unit(benchmark::kMillisecond);

}  // namespace
