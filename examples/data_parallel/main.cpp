// Data parallel training: each process has the whole model and computes its part of every batch. Gradients
// are averaged while backward still computes, over Gloo or, on devices, over NCCL. So all processes take the
// same step. Rank 0 trains the same model with the joined batches besides, and compares.
#include <cstdio>

#include <weft/distributed.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include "../common/trainers.h"

namespace data_parallel {

using weft::Tensor;

constexpr int64_t kFeatures = 8, kWidth = 32, kRows = 16;  // rows of one process
const weft::optim::AdamOptions kRule{.lr = 0.01};

/// In float64, so that sums in another order differ in the last digits only.
struct Net : weft::nn::Module {
  explicit Net(int64_t seed) : in(kFeatures, kWidth), out(kWidth, 1) {
    add("in", in);
    add("out", out);
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(weft::nn::name_key("net"));
    in.reset_parameters(&draws);
    out.reset_parameters(&draws);
    to(weft::kFloat64);
  }
  Tensor forward(const Tensor& x) const { return out.forward(weft::tanh(in.forward(x))); }
  weft::nn::Linear in, out;
};

struct Options {
  int64_t world_size = 2, steps = 50, seed = 1;
  std::string device = "cpu", json;
};

struct Batch {
  Tensor x, y;
};
/// The rows of all processes.
Batch batch_of(const Options& o, int64_t step) {
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed))
                              .fork(weft::nn::name_key("data"))
                              .fork(static_cast<uint64_t>(step));
  const Tensor x = weft::randn({o.world_size * kRows, kFeatures}, {.dtype = weft::kFloat64}, &draws);
  return {x, weft::tanh(x.sum({1}, true))};
}

struct Result : examples::Trained {
  bool same_bits = true;  ///< in all processes
  double steps_per_s = 0;
};

Result train(const Options& o) {
  const weft::Device device =
      examples::device_of_trainer(o.device, static_cast<int>(weft::rpc::get_worker_info().id.value));
  const auto group = weft::dist::new_group({}, {.device = device});
  const int64_t rank = group->rank();
  Net net(o.seed + rank);  // other values in each process: rank 0's count
  net.to(device);
  weft::dist::DistributedDataParallel parallel(net, group);
  weft::optim::Adam adam(net.parameters(), kRule);
  std::optional<examples::Progress> progress;
  if (rank == 0) progress.emplace("steps", o.steps, std::max<int64_t>(o.steps / 5, 1));
  Result r;
  const double start = examples::seconds();
  for (int64_t step = 0; step < o.steps; ++step) {
    const Batch batch = batch_of(o, step);
    const Tensor x = batch.x.narrow(0, rank * kRows, kRows).to(device),
                 y = batch.y.narrow(0, rank * kRows, kRows).to(device);
    adam.zero_grad();
    const Tensor loss = weft::mse_loss(net.forward(x), y);
    parallel.backward(loss);
    adam.step();
    const examples::StepNews news = examples::tell_all(*group, loss.item<double>());
    r.losses.push_back(news.loss);
    if (progress) {
      char text[48];
      std::snprintf(text, sizeof text, "loss %.6f", r.losses.back());
      progress->update(step + 1, text);
    }
    if (news.interrupted) break;
  }
  if (progress) progress->finish();
  r.steps_per_s = static_cast<double>(r.losses.size()) / std::max(examples::seconds() - start, 1e-9);
  r.same_bits = examples::same_everywhere(*group, net.parameters());
  for (const Tensor& p : net.parameters()) r.parameters.push_back(p.detach().to(weft::kCpu));
  return r;
}

/// The same model in this process, with the joined batches.
Result train_alone(const Options& o, int64_t steps) {
  const Net net(o.seed);
  weft::optim::Adam adam(net.parameters(), kRule);
  Result r;
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = batch_of(o, step);
    adam.zero_grad();
    const Tensor loss = weft::mse_loss(net.forward(batch.x), batch.y);
    loss.backward();
    adam.step();
    r.losses.push_back(loss.item<double>());
  }
  for (const Tensor& p : net.parameters()) r.parameters.push_back(p.detach());
  return r;
}

int run(const Options& o) {
  const bool reports = weft::rpc::get_worker_info().id.value == 0;
  if (reports) examples::catch_interrupt();
  const Result r = train(o);
  if (!reports) return 0;
  const auto steps = static_cast<int64_t>(r.losses.size());
  const bool matches = r.same_bits && examples::same_numbers(r, train_alone(o, steps));
  if (examples::interrupted()) std::printf("interrupted after %lld steps\n", static_cast<long long>(steps));
  std::printf("%lld processes, %.0f steps/s\n", static_cast<long long>(o.world_size), r.steps_per_s);
  examples::Figures figures;
  figures.set("steps", steps);
  figures.set("loss_last", r.losses.back());
  figures.set("matches reference", examples::yes_no(matches));
  figures.set("steps_per_s", r.steps_per_s);
  figures.set("losses", r.losses);
  std::printf("data_parallel: steps=%lld loss_last=%.6f matches reference: %s\n",
              static_cast<long long>(steps), r.losses.back(), examples::yes_no(matches).c_str());
  std::fflush(stdout);
  figures.write(o.json);
  return matches ? 0 : 1;
}

}  // namespace data_parallel

int main(int argc, char** argv) {
  data_parallel::Options o;
  examples::Args args("data_parallel", "one model in several processes, each with its part of every batch");
  args.add("world-size", o.world_size, "processes");
  args.add("steps", o.steps, "steps");
  args.add("seed", o.seed, "seed of initial values and data");
  args.add("device", o.device, {"cpu", "cuda"},
           "device of the model; cuda: one device for each process of a machine, over NCCL");
  args.add("json", o.json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  if (o.world_size < 2 || o.world_size > examples::kMostWorkers || o.steps < 1) {
    std::fprintf(stderr, "data_parallel: world-size must be 2 to 1000, steps at least 1\n");
    return 2;
  }
  return examples::guarded("data_parallel", [&] {
    return examples::run_group({.world_size = static_cast<int>(o.world_size),
                                .network = network,
                                .name = [](int rank, bool) { return "worker" + std::to_string(rank); },
                                .passive = [](const std::string&) { return false; },
                                .prepare =
                                    [&](bool) {
                                      examples::check_outputs({o.json});
                                      examples::check_trainers(o.device);
                                    }},
                               [&](const std::string&) {
                                 o.world_size = static_cast<int64_t>(weft::rpc::get_worker_infos().size());
                                 return data_parallel::run(o);
                               });
  });
}
