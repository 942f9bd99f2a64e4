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
  double loss_sum = 0;       // of the epoch
  int64_t loss_count = 0;
  double train_loss = 0;     // mean of the last interval that was complete, else of the epoch
  double train_seconds = 0;
  int64_t tokens = 0;
  bool stop = false;
};

void train_epoch(const Options& o, Model& model, const Tensor& data, double lr, Run& run) {
  const int64_t batches = (data.size(0) - 1 + o.bptt - 1) / o.bptt;
  const int64_t planned = o.max_steps ? std::min(batches, o.max_steps - run.steps) : batches;
  examples::Progress progress(weft::str("epoch ", run.epoch), planned, o.log_interval);
  Hidden hidden = model.zero_hidden(data.size(1));
  run.loss_sum = 0, run.loss_count = 0;
  double since = examples::seconds(), interval = 0;
  int64_t in_interval = 0, done = 0;
  for (int64_t start = 0; start + 1 < data.size(0) && !run.stop; start += o.bptt) {
    const double begin = examples::seconds();
    const Window w = examples::window(data, start, o.bptt);
    const double loss = model.train_step(w, hidden);
    run.train_seconds += examples::seconds() - begin;
    run.tokens += w.input.numel();
    run.loss_sum += loss, ++run.loss_count, interval += loss, ++in_interval, ++done, ++run.steps;
    if (o.print_losses) std::printf("step %lld loss %.17g\n", static_cast<long long>(run.steps), loss);
    if (!std::isfinite(loss)) throw weft::ValueError(weft::str("the loss of step ", run.steps, " is ", loss, "; try a smaller --lr"));
    char text[128];
    const double ms = (examples::seconds() - since) * 1e3 / static_cast<double>(in_interval);
    std::snprintf(text, sizeof text, "lr %g  %.1f ms/batch  loss %.3f  ppl %.2f", lr, ms, interval / static_cast<double>(in_interval),
                  std::exp(interval / static_cast<double>(in_interval)));
    if (!o.print_losses) progress.update(done, text);
    if (done % o.log_interval == 0) since = examples::seconds(), interval = 0, in_interval = 0;
    run.stop = examples::interrupted() || (o.max_steps && run.steps >= o.max_steps);
  }
  progress.finish();
  run.train_loss = run.loss_sum / static_cast<double>(std::max<int64_t>(run.loss_count, 1));
}

}  // namespace

int train(const Options& o, const examples::Corpus& corpus, Model& model) {
  const Tensor train_data = examples::batchify(corpus.train, o.batch_size);
  const Tensor valid_data = examples::batchify(corpus.valid, 10), test_data = examples::batchify(corpus.test, 10);
  examples::catch_interrupt();
  if (!o.resume.empty()) model.restore(weft::load_safetensors(o.resume).tensors);

  double lr = o.lr, best = INFINITY;
  const weft::optim::Rates rates{[] { return size_t{1}; }, [&](size_t) { return lr; }, [&](size_t, double fresh) { model.set_lr(lr = fresh); }};
  weft::optim::ReduceOnPlateau plateau(rates, {.factor = 0.25, .patience = 0, .threshold = 0});
  weft::nn::StateDict best_state;
  examples::Figures figures;
  Run run;
  while (run.epoch < o.epochs && !run.stop) {
    ++run.epoch;
    const double started = examples::seconds();
    train_epoch(o, model, train_data, lr, run);
    const double valid = evaluate(o, model, valid_data);
    if (examples::interrupted()) std::printf("interrupted: evaluating what there is\n");
    std::printf("epoch %lld  %.1f s  lr %g  train ppl %.2f  valid loss %.4f  valid ppl %.2f\n", static_cast<long long>(run.epoch),
                examples::seconds() - started, lr, std::exp(run.train_loss), valid, std::exp(valid));
    std::fflush(stdout);
    examples::Figures record;
    record.set("epoch", run.epoch);
    record.set("lr", lr);
    record.set("train_ppl", std::exp(run.train_loss));
    record.set("valid_ppl", std::exp(valid));
    figures.append("epochs", record);
    if (valid < best) {
      best = valid;
      best_state = model.snapshot();
      if (!o.save.empty()) weft::save_safetensors(o.save, best_state, {{"format", "pt"}});
    }
    plateau.step(valid);
  }
  if (!best_state.empty()) model.restore(best_state);
  const double test = evaluate(o, model, test_data);
  if (o.generate > 0) generate(o, corpus, model);

  const double rate = static_cast<double>(run.tokens) / std::max(run.train_seconds, 1e-9);
  figures.set("epochs_run", run.epoch);
  figures.set("steps", run.steps);
  figures.set("train_loss", run.train_loss);
  figures.set("valid_ppl", std::exp(best));
  figures.set("test_ppl", std::exp(test));
  figures.set("tokens_per_s", rate);
  figures.write(o.json);
  std::printf("rnn: epochs=%lld steps=%lld train_loss=%.4f valid_ppl=%.2f test_ppl=%.2f tokens_per_s=%.0f\n", static_cast<long long>(run.epoch),
              static_cast<long long>(run.steps), run.train_loss, std::exp(best), std::exp(test), rate);
  return 0;
}

int train_tutorial(const Options& o, Model& model) {
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed)).fork(weft::nn::name_key("tutorial"));
  Hidden hidden = model.zero_hidden(o.batch_size);
  const double started = examples::seconds();
  double loss = 0, sum = 0;
  int64_t steps = 0;
  examples::catch_interrupt();
  for (int64_t epoch = 1; epoch <= o.epochs && !examples::interrupted(); ++epoch) {
    sum = 0;
    for (int batch = 0; batch < 5; ++batch) {
      const Tensor text = weft::randint(0, o.vocabulary, {o.bptt + 1, o.batch_size}, {.dtype = weft::kInt64}, &draws);
      sum += loss = model.train_step(examples::window(text, 0, o.bptt), hidden);
      ++steps;
      if (o.print_losses) std::printf("step %lld loss %.17g\n", static_cast<long long>(steps), loss);
    }
    std::printf("Training epoch %lld\n", static_cast<long long>(epoch));
    std::fflush(stdout);
  }
  const double rate = static_cast<double>(steps * o.bptt * o.batch_size) / (examples::seconds() - started);
  // There is no held-out text in the tutorial: both perplexities are of fresh batches from the same stream.
  model.train(false);
  const auto perplexity = [&] {
    Hidden fresh = model.zero_hidden(o.batch_size);
    const Tensor text = weft::randint(0, o.vocabulary, {o.bptt + 1, o.batch_size}, {.dtype = weft::kInt64}, &draws);
    return std::exp(model.eval_loss(examples::window(text, 0, o.bptt), fresh));
  };
  const double valid = perplexity(), test = perplexity();
  std::printf("rnn: epochs=%lld steps=%lld train_loss=%.4f valid_ppl=%.2f test_ppl=%.2f tokens_per_s=%.0f\n", static_cast<long long>(o.epochs),
              static_cast<long long>(steps), sum / 5, valid, test, rate);
  return 0;
}

}  // namespace rnn
