// The training loop: epochs, evaluation, learning-rate cuts, the tutorial's run, and the figures (train.h).
#include "train.h"

#include <cmath>
#include <cstdio>

#include "../common/report.h"

namespace rnn {
namespace {

using examples::Window;

/// sum(length * loss) / (steps - 1) over all windows, from a zero state.
double evaluate(const Options& o, Model& model, const Tensor& data) {
  model.train(false);
  Hidden hidden = model.zero_hidden(data.size(1));
  double total = 0;
  for (int64_t start = 0; start + 1 < data.size(0); start += o.bptt) {
    const Window w = examples::window(data, start, o.bptt);
    total += model.eval_loss(w, hidden) * static_cast<double>(w.input.size(0));
  }
  model.train(true);
  return total / static_cast<double>(data.size(0) - 1);
}

void generate(const Options& o, const examples::Corpus& corpus, Model& model) {
  model.train(false);
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed)).fork(weft::nn::name_key("generate"));
  Hidden hidden = model.zero_hidden(1);
  int64_t id = weft::randint(0, corpus.vocabulary(), {1}, {.dtype = weft::kInt64}, &draws).item<int64_t>();
  std::printf("\n");
  for (int64_t n = 0; n < o.generate; ++n) {
    const Tensor weights = weft::softmax(model.next_word(id, hidden), 0);
    id = weft::multinomial(weights, 1, true, &draws).item<int64_t>();
    const std::string& word = corpus.words[static_cast<size_t>(id)];
    std::printf("%s%s", word.c_str(), n % 20 == 19 || n + 1 == o.generate ? "\n" : " ");
  }
  std::printf("\n");
}

struct Run {
  int64_t steps = 0, epoch = 0;
  double loss_sum = 0;  // over the steps of the epoch
  int64_t loss_count = 0;
  double train_seconds = 0;
  int64_t tokens = 0;
  bool stop = false, said = false;
  examples::Figures figures;  // of the intervals and epochs so far

  void begin_epoch() { ++epoch, loss_sum = 0, loss_count = 0; }
  /// Mean over the steps of the epoch so far.
  double train_loss() const { return loss_sum / static_cast<double>(std::max<int64_t>(loss_count, 1)); }
  /// One step of training; returns its loss. Throws: weft::ValueError for a loss that is not finite.
  double step(const Options& o, Model& model, const Window& w, Hidden& hidden) {
    const double begin = examples::seconds();
    const double loss = model.train_step(w, hidden);
    train_seconds += examples::seconds() - begin;
    tokens += w.input.numel();
    loss_sum += loss, ++loss_count, ++steps;
    if (o.print_losses) std::printf("step %lld loss %.17g\n", static_cast<long long>(steps), loss);
    if (!std::isfinite(loss))
      throw weft::ValueError(weft::str("the loss of step ", steps, " is ", loss, "; try a smaller --lr"));
    stop = examples::interrupted() || (o.max_steps && steps >= o.max_steps);
    return loss;
  }
  /// Prints, once, that Ctrl-C has ended the training.
  void say_if_interrupted() {
    if (!examples::interrupted() || said) return;
    stop = said = true;
    std::printf("interrupted after %lld steps: evaluating the model\n", static_cast<long long>(steps));
    std::fflush(stdout);
  }
};

/// Prints the last lines and writes their figures as JSON.
void finish(const Options& o, const Model& model, Run& run, double valid_ppl, double test_ppl) {
  if (const std::string remark = model.remark(); !remark.empty()) std::printf("%s\n", remark.c_str());
  const double rate = static_cast<double>(run.tokens) / std::max(run.train_seconds, 1e-9);
  run.figures.set("epochs", run.epoch);
  run.figures.set("steps", run.steps);
  run.figures.set("train_loss", run.train_loss());
  run.figures.set("valid_ppl", valid_ppl);
  run.figures.set("test_ppl", test_ppl);
  run.figures.set("tokens_per_s", rate);
  std::printf("rnn: epochs=%lld steps=%lld train_loss=%.4f valid_ppl=%.2f test_ppl=%.2f tokens_per_s=%.0f\n",
              static_cast<long long>(run.epoch), static_cast<long long>(run.steps), run.train_loss(),
              valid_ppl, test_ppl, rate);
  std::fflush(stdout);
  run.figures.write(o.json);
}

void resume(const Options& o, Model& model) {
  if (o.resume.empty()) return;
  const weft::SafetensorsFile file = weft::load_safetensors(o.resume);
  try {
    model.restore(file.tensors);
  } catch (const weft::Error& e) {
    throw weft::ValueError("--resume " + o.resume + ": " + e.what());
  }
}

void save(const Options& o, const weft::nn::StateDict& state) {
  if (!o.save.empty()) weft::save_safetensors(o.save, state, {{"format", "pt"}});
}

void train_epoch(const Options& o, Model& model, const Tensor& data, double lr, Run& run) {
  const int64_t batches = (data.size(0) - 1 + o.bptt - 1) / o.bptt;
  const int64_t planned = o.max_steps ? std::min(batches, o.max_steps - run.steps) : batches;
  run.begin_epoch();
  examples::Progress progress(weft::str("epoch ", run.epoch), planned, o.log_interval);
  Hidden hidden = model.zero_hidden(data.size(1));
  double since = examples::seconds(), interval = 0;
  int64_t in_interval = 0, done = 0;
  for (int64_t start = 0; start + 1 < data.size(0) && !run.stop; start += o.bptt) {
    interval += run.step(o, model, examples::window(data, start, o.bptt), hidden), ++in_interval, ++done;
    const double mean = interval / static_cast<double>(in_interval),
                 ms = (examples::seconds() - since) * 1e3 / static_cast<double>(in_interval);
    char text[128];
    std::snprintf(text, sizeof text, "lr %g  %.1f ms/batch  loss %.3f  ppl %.2f", lr, ms, mean,
                  std::exp(mean));
    if (!o.print_losses) progress.update(done, text);
    if (done % o.log_interval != 0 && done != planned && !run.stop) continue;
    examples::Figures record;
    record.set("epoch", run.epoch);
    record.set("steps", run.steps);
    record.set("lr", lr);
    record.set("ms_per_batch", ms);
    record.set("loss", mean);
    record.set("ppl", std::exp(mean));
    run.figures.append("intervals", record);
    since = examples::seconds(), interval = 0, in_interval = 0;
  }
  progress.finish();
}

}  // namespace

int train(const Options& o, const examples::Corpus& corpus, Model& model) {
  const Tensor train_data = examples::batchify(corpus.train, o.batch_size);
  const Tensor valid_data = examples::batchify(corpus.valid, kEvalColumns),
               test_data = examples::batchify(corpus.test, kEvalColumns);
  resume(o, model);

  double lr = o.lr, best = INFINITY;
  const weft::optim::Rates rates{[] { return size_t{1}; }, [&](size_t) { return lr; },
                                 [&](size_t, double fresh) { model.set_lr(lr = fresh); }};
  weft::optim::ReduceOnPlateau plateau(rates, {.factor = 0.25, .patience = 0, .threshold = 0});
  weft::nn::StateDict best_state;
  Run run;
  while (run.epoch < o.epochs && !run.stop) {
    const double started = examples::seconds();
    train_epoch(o, model, train_data, lr, run);
    run.say_if_interrupted();
    const double valid = evaluate(o, model, valid_data);
    run.say_if_interrupted();
    std::printf("epoch %lld  %.1f s  lr %g  train ppl %.2f  valid loss %.4f  valid ppl %.2f\n",
                static_cast<long long>(run.epoch), examples::seconds() - started, lr,
                std::exp(run.train_loss()), valid, std::exp(valid));
    std::fflush(stdout);
    examples::Figures record;
    record.set("epoch", run.epoch);
    record.set("lr", lr);
    record.set("train_ppl", std::exp(run.train_loss()));
    record.set("valid_ppl", std::exp(valid));
    run.figures.append("epochs_run", record);
    if (valid < best) {
      best = valid;
      best_state = model.snapshot();
      save(o, best_state);
    }
    plateau.step(valid);
  }
  if (!best_state.empty()) model.restore(best_state);
  const double test = evaluate(o, model, test_data);
  if (o.generate > 0) generate(o, corpus, model);

  finish(o, model, run, std::exp(best), std::exp(test));
  return 0;
}

int train_tutorial(const Options& o, const examples::Corpus& corpus, Model& model) {
  constexpr int kBatches = 5;
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed)).fork(weft::nn::name_key("tutorial"));
  const auto fresh = [&] {
    return examples::window(
        weft::randint(0, o.vocabulary, {o.bptt + 1, o.batch_size}, {.dtype = weft::kInt64}, &draws), 0,
        o.bptt);
  };
  resume(o, model);
  Hidden hidden = model.zero_hidden(o.batch_size);
  Run run;
  while (run.epoch < o.epochs && !run.stop) {
    run.begin_epoch();
    for (int batch = 0; batch < kBatches && !run.stop; ++batch) run.step(o, model, fresh(), hidden);
    std::printf("Training epoch %lld\n", static_cast<long long>(run.epoch));
    std::fflush(stdout);
    examples::Figures record;
    record.set("epoch", run.epoch);
    record.set("train_loss", run.train_loss());
    run.figures.append("epochs_run", record);
  }
  run.say_if_interrupted();
  save(o, model.snapshot());
  // The tutorial has no held-out text: both perplexities are of fresh batches from the same stream.
  model.train(false);
  const auto perplexity = [&] {
    Hidden zero = model.zero_hidden(o.batch_size);
    return std::exp(model.eval_loss(fresh(), zero));
  };
  const double valid = perplexity(), test = perplexity();
  if (o.generate > 0) generate(o, corpus, model);
  finish(o, model, run, valid, test);
  return 0;
}

}  // namespace rnn
