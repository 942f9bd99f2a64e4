// A model in stages, one per worker, trained with micro-batches. While a stage computes one micro-batch, the
// stages behind it compute earlier ones, forward and backward. Worker "trainer" is rank 0; the stages are
// "stage1", "stage2", ... The run is compared with the same model in one process and whole batches.
#include <cstdio>
#include <mutex>

#include <weft/distributed.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include "../common/trainers.h"

namespace pipeline {

using weft::Tensor;
using weft::rpc::Future;
using weft::rpc::RRef;

constexpr int64_t kFeatures = 8, kWidth = 32, kRows = 48;
const weft::optim::SGDRule::Options kRule{.lr = 0.05, .momentum = 0.9};

/// The layers of one stage, in float64, so that sums in another order differ in the last digits only.
struct Layers : weft::nn::Module {
  Layers(int64_t stage, int64_t stages, int64_t seed)
      : in(stage == 0 ? kFeatures : kWidth, kWidth), out(kWidth, stage == stages - 1 ? 1 : kWidth) {
    add("in", in);
    add("out", out);
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed))
                                .fork(weft::nn::name_key("stage"))
                                .fork(static_cast<uint64_t>(stage));
    in.reset_parameters(&draws);
    out.reset_parameters(&draws);
    to(weft::kFloat64);
  }
  Tensor forward(const Tensor& x) { return out.forward(weft::tanh(in.forward(x))); }
  weft::nn::Linear in, out;
};

/// A stage on its worker.
class Stage {
 public:
  /// `next`: the stage behind this one, or nothing.
  Stage(int64_t stage, int64_t stages, int64_t seed, std::vector<RRef<Stage>> next)
      : layers_(stage, stages, seed), next_(std::move(next)) {}
  /// Computes this stage for one micro-batch and hands the result on. No thread waits for the next stage, so
  /// this one goes on with the next micro-batch.
  Future<Tensor> forward(const Tensor& x) {
    Tensor y;
    {
      const std::lock_guard lock(mutex_);
      most_ = std::max(most_, ++open_);
      y = layers_.forward(x);
    }
    Future<Tensor> result = next_.empty() ? Future<Tensor>::ready(y) : next_[0].rpc_async<&Stage::forward>(y);
    result.then_inline([this](const Future<Tensor>&) {  // the call that is answered now keeps this object
      const std::lock_guard lock(mutex_);
      --open_;
    });
    return result;
  }
  std::vector<RRef<Tensor>> parameter_rrefs() const {
    std::vector<RRef<Tensor>> out;
    for (const Tensor& p : layers_.parameters()) out.emplace_back(p);
    return out;
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> out;
    for (const Tensor& p : layers_.parameters()) out.push_back(p.detach());
    return out;
  }
  /// Most micro-batches that were between here and the end at once.
  int64_t most_in_flight() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  Layers layers_;
  std::vector<RRef<Stage>> next_;
  std::mutex mutex_;
  int64_t open_ = 0, most_ = 0;
};
WEFT_RPC_CONSTRUCTOR(Stage, int64_t, int64_t, int64_t, std::vector<RRef<Stage>>);
WEFT_RPC_CLASS(Stage, forward, parameter_rrefs, values, most_in_flight);

struct Options {
  int64_t world_size = 3, micro_batches = 4, steps = 50, seed = 1;
  std::string json;
};

struct Batch {
  Tensor x, y;
};
Batch batch_of(const Options& o, int64_t step) {
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed))
                              .fork(weft::nn::name_key("data"))
                              .fork(static_cast<uint64_t>(step));
  const Tensor x = weft::randn({kRows, kFeatures}, {.dtype = weft::kFloat64}, &draws);
  return {x, weft::tanh(x.sum({1}, true))};
}

struct Result : examples::Trained {
  int64_t most_in_flight = 0;
  double steps_per_s = 0;
};

Result train_pipelined(const Options& o) {
  const int64_t count = o.world_size - 1;
  std::vector<RRef<Stage>> stages;  // the last one first
  for (int64_t k = count; k-- > 0;) {
    const std::vector<RRef<Stage>> next(stages.empty() ? stages.end() : stages.end() - 1, stages.end());
    stages.push_back(weft::rpc::remote<Stage>("stage" + std::to_string(k + 1), k, count, o.seed, next));
  }
  std::reverse(stages.begin(), stages.end());
  std::vector<RRef<Tensor>> parameters;
  for (const auto& stage : stages)
    for (const auto& p : stage.rpc_sync<&Stage::parameter_rrefs>()) parameters.push_back(p);
  auto optimizer = weft::dist_optim::make<weft::optim::SGDRule>(parameters, kRule);
  examples::Progress progress("steps", o.steps, std::max<int64_t>(o.steps / 5, 1));
  Result r;
  const double start = examples::seconds();
  for (int64_t step = 0; step < o.steps && !examples::interrupted(); ++step) {
    const Batch batch = batch_of(o, step);
    const std::vector<Tensor> xs = batch.x.chunk(o.micro_batches), ys = batch.y.chunk(o.micro_batches);
    const weft::dist_autograd::Context context;
    std::vector<Future<Tensor>> running;
    for (const Tensor& x : xs) running.push_back(stages.front().rpc_async<&Stage::forward>(x));
    std::vector<Tensor> losses;
    double loss = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      const double share = static_cast<double>(ys[i].size(0)) / static_cast<double>(kRows);
      losses.push_back(weft::mse_loss(running[i].wait(), ys[i]) * share);
      loss += losses.back().item<double>();
    }
    context.backward(losses);  // one pass; each micro-batch goes back through the stages by itself
    optimizer.step(context.id());
    r.losses.push_back(loss);
    char text[48];
    std::snprintf(text, sizeof text, "loss %.6f", loss);
    progress.update(step + 1, text);
  }
  progress.finish();
  r.steps_per_s = static_cast<double>(r.losses.size()) / std::max(examples::seconds() - start, 1e-9);
  for (const auto& stage : stages)
    for (const Tensor& p : stage.rpc_sync<&Stage::values>()) r.parameters.push_back(p);
  r.most_in_flight = stages.front().rpc_sync<&Stage::most_in_flight>();
  return r;
}

/// The same model in this process, with whole batches.
Result train_whole(const Options& o, int64_t steps) {
  const int64_t count = o.world_size - 1;
  std::vector<std::unique_ptr<Layers>> stages;
  std::vector<Tensor> parameters;
  for (int64_t k = 0; k < count; ++k) {
    stages.push_back(std::make_unique<Layers>(k, count, o.seed));
    for (const Tensor& p : stages.back()->parameters()) parameters.push_back(p);
  }
  weft::optim::Fused<weft::optim::SGDRule> optimizer(parameters, kRule);
  Result r;
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = batch_of(o, step);
    Tensor y = batch.x;
    for (const auto& stage : stages) y = stage->forward(y);
    const Tensor loss = weft::mse_loss(y, batch.y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    r.losses.push_back(loss.item<double>());
  }
  for (const Tensor& p : parameters) r.parameters.push_back(p.detach());
  return r;
}

int drive(const Options& o) {
  examples::catch_interrupt();
  const Result r = train_pipelined(o);
  const auto steps = static_cast<int64_t>(r.losses.size());
  const bool matches = examples::same_numbers(r, train_whole(o, steps));
  if (examples::interrupted()) std::printf("interrupted after %lld steps\n", static_cast<long long>(steps));
  std::printf("up to %lld micro-batches in flight, %.0f steps/s\n", static_cast<long long>(r.most_in_flight),
              r.steps_per_s);
  const double last = r.losses.empty() ? 0 : r.losses.back();
  examples::Figures figures;
  figures.set("steps", steps);
  figures.set("loss_last", last);
  figures.set("matches reference", examples::yes_no(matches));
  figures.set("most_in_flight", r.most_in_flight);
  figures.set("steps_per_s", r.steps_per_s);
  figures.set("losses", r.losses);
  std::printf("pipeline: steps=%lld loss_last=%.6f matches reference: %s\n", static_cast<long long>(steps),
              last, examples::yes_no(matches).c_str());
  std::fflush(stdout);
  figures.write(o.json);
  return matches ? 0 : 1;
}

}  // namespace pipeline

int main(int argc, char** argv) {
  pipeline::Options o;
  examples::Args args("pipeline", "a model in stages over several workers, trained with micro-batches");
  args.add("world-size", o.world_size, "processes: one trainer, the rest stages");
  args.add("micro-batches", o.micro_batches, "parts of a batch that are in the pipeline at once");
  args.add("steps", o.steps, "steps");
  args.add("seed", o.seed, "seed of initial values and data");
  args.add("json", o.json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  if (o.world_size < 2 || o.world_size > examples::kMostWorkers || o.micro_batches < 1 ||
      o.micro_batches > pipeline::kRows || o.steps < 1) {
    std::fprintf(stderr,
                 "pipeline: world-size must be 2 to 1000, micro-batches 1 to %lld, steps at least 1\n",
                 static_cast<long long>(pipeline::kRows));
    return 2;
  }
  return examples::guarded("pipeline", [&] {
    return examples::run_group(
        {.world_size = static_cast<int>(o.world_size),
         .network = network,
         .name = [](int rank,
                    bool) { return rank == 0 ? std::string("trainer") : "stage" + std::to_string(rank); },
         .passive = [](const std::string& name) { return name != "trainer"; },
         .prepare = [&](bool) { examples::check_outputs({o.json}); }},
        [&](const std::string&) {
          o.world_size = static_cast<int64_t>(weft::rpc::get_worker_infos().size());
          return pipeline::drive(o);
        });
  });
}
