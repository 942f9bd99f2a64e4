// A model in two parts: a table of words that all trainers share on worker "ps", and layers that each trainer
// has itself. The gradients of the layers are averaged among the trainers. Those of the table travel to the
// server by a distributed backward pass, and its owner takes the steps. The first trainer trains the same
// model with the joined batches besides, and compares.
#include <cstdio>

#include <weft/distributed.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include "../common/trainers.h"

namespace hybrid {

using weft::Tensor;
using weft::rpc::RRef;

constexpr int64_t kWords = 40, kWidth = 8, kHidden = 16, kRows = 16;  // rows of one trainer
constexpr double kRate = 0.1;

/// In float64, as the layers, so that sums in another order differ in the last digits only.
struct Table : weft::nn::Embedding {
  explicit Table(int64_t seed) : Embedding(kWords, kWidth) {
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(weft::nn::name_key("table"));
    reset_parameters(&draws);
    to(weft::kFloat64);
  }
};

struct Layers : weft::nn::Module {
  explicit Layers(int64_t seed) : in(kWidth, kHidden), out(kHidden, 1) {
    add("in", in);
    add("out", out);
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(weft::nn::name_key("layers"));
    in.reset_parameters(&draws);
    out.reset_parameters(&draws);
    to(weft::kFloat64);
  }
  Tensor forward(const Tensor& rows) const { return out.forward(weft::tanh(in.forward(rows))); }
  weft::nn::Linear in, out;
};

// ---- on worker "ps"

/// The table, made by the first call. All trainers give the same seed.
Table& shared_table(int64_t seed) {
  static Table table(seed);
  return table;
}
Tensor look_up(int64_t seed, const Tensor& ids) { return shared_table(seed).forward(ids); }
WEFT_RPC(look_up);
std::vector<RRef<Tensor>> table_parameters(int64_t seed) { return {RRef<Tensor>(shared_table(seed).weight)}; }
WEFT_RPC(table_parameters);
Tensor table_values(int64_t seed) { return shared_table(seed).weight.detach().clone(); }
WEFT_RPC(table_values);

// ---- on the trainers

struct Options {
  int64_t trainers = 2, steps = 50, seed = 1;
  std::string device = "cpu", json;
};

struct Batch {
  Tensor ids, y;
};
/// The rows of all trainers.
Batch batch_of(const Options& o, int64_t step) {
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(o.seed))
                              .fork(weft::nn::name_key("data"))
                              .fork(static_cast<uint64_t>(step));
  const Tensor ids = weft::randint(0, kWords, {o.trainers * kRows}, {}, &draws);
  return {ids, (ids.to(weft::kFloat64) * 0.3).sin().view({o.trainers * kRows, 1})};
}

struct Result : examples::Trained {
  bool same_bits = true;  ///< of the layers, in all trainers
  double steps_per_s = 0;
};

Result train(const Options& o, const std::vector<std::string>& trainers, int rank) {
  const weft::Device device = examples::device_of_trainer(o.device, rank);
  const auto group = weft::dist::new_group(trainers, {.device = device});
  Layers layers(o.seed + rank);  // other values in each trainer: rank 0's count
  layers.to(device);
  weft::dist::DistributedDataParallel parallel(layers, group);
  weft::optim::SGD sgd(layers.parameters(), {.lr = kRate});
  auto on_server = weft::dist_optim::make<weft::optim::SGDRule>(
      weft::rpc::rpc_sync<table_parameters>("ps", o.seed), {.lr = kRate});
  std::optional<examples::Progress> progress;
  if (rank == 0) progress.emplace("steps", o.steps, std::max<int64_t>(o.steps / 5, 1));
  Result r;
  const double start = examples::seconds();
  for (int64_t step = 0; step < o.steps; ++step) {
    const Batch batch = batch_of(o, step);
    const Tensor ids = batch.ids.narrow(0, rank * kRows, kRows),
                 y = batch.y.narrow(0, rank * kRows, kRows).to(device);
    sgd.zero_grad();
    const weft::dist_autograd::Context context;  // records the call, whose reply is a part of the graph
    const Tensor rows = weft::rpc::rpc_sync<look_up>("ps", o.seed, ids);
    const Tensor here = rows.detach().to(device).requires_grad_();  // the trainer's own graph begins here
    const Tensor loss = weft::mse_loss(layers.forward(here), y);
    parallel.backward(loss);
    context.backward({(rows * here.grad().to(weft::kCpu)).sum()});
    const examples::StepNews news = examples::tell_all(*group, loss.item<double>());
    on_server.step(context.id());  // all have read the table: they have told their losses
    sgd.step();
    group->barrier();  // the next step reads the table after all steps of this one
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
  r.same_bits = examples::same_everywhere(*group, layers.parameters());
  for (const Tensor& p : layers.parameters()) r.parameters.push_back(p.detach().to(weft::kCpu));
  r.parameters.push_back(weft::rpc::rpc_sync<table_values>("ps", o.seed));
  return r;
}

/// The same model in this process, with the joined batches. Each trainer steps the table by the mean of its
/// own rows, and these steps add up.
Result train_alone(const Options& o, int64_t steps) {
  const Layers layers(o.seed);
  const Table table(o.seed);
  weft::optim::SGD sgd(layers.parameters(), {.lr = kRate}),
      of_table(table.parameters(), {.lr = kRate * static_cast<double>(o.trainers)});
  Result r;
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = batch_of(o, step);
    sgd.zero_grad(), of_table.zero_grad();
    const Tensor loss = weft::mse_loss(layers.forward(table.forward(batch.ids)), batch.y);
    loss.backward();
    sgd.step(), of_table.step();
    r.losses.push_back(loss.item<double>());
  }
  for (const Tensor& p : layers.parameters()) r.parameters.push_back(p.detach());
  r.parameters.push_back(table.weight.detach());
  return r;
}

int run(Options o, const std::string& me) {
  std::vector<std::string> trainers;
  int rank = 0;
  for (const weft::rpc::WorkerInfo& worker : weft::rpc::get_worker_infos()) {
    if (worker.name == "ps") continue;
    if (worker.name == me) rank = static_cast<int>(trainers.size());
    trainers.push_back(worker.name);
  }
  o.trainers = std::ssize(trainers);  // a launcher's group has its own size
  if (rank == 0) examples::catch_interrupt();
  const Result r = train(o, trainers, rank);
  if (rank != 0) return 0;
  const auto steps = static_cast<int64_t>(r.losses.size());
  const bool matches = r.same_bits && examples::same_numbers(r, train_alone(o, steps));
  if (examples::interrupted()) std::printf("interrupted after %lld steps\n", static_cast<long long>(steps));
  std::printf("%.0f steps/s\n", r.steps_per_s);
  examples::Figures figures;
  figures.set("trainers", o.trainers);
  figures.set("steps", steps);
  figures.set("loss_last", r.losses.back());
  figures.set("matches reference", examples::yes_no(matches));
  figures.set("steps_per_s", r.steps_per_s);
  figures.set("losses", r.losses);
  std::printf("hybrid: trainers=%lld steps=%lld loss_last=%.6f matches reference: %s\n",
              static_cast<long long>(o.trainers), static_cast<long long>(steps), r.losses.back(),
              examples::yes_no(matches).c_str());
  std::fflush(stdout);
  figures.write(o.json);
  return matches ? 0 : 1;
}

/// Rank 0, which has the terminal, is a trainer, and rank 1 the server.
std::string name_of(int rank) {
  return rank == 1 ? "ps" : "trainer" + std::to_string(rank == 0 ? 0 : rank - 1);
}

}  // namespace hybrid

int main(int argc, char** argv) {
  hybrid::Options o;
  examples::Args args("hybrid", "trainers with layers of their own and a shared table on a server");
  args.add("trainers", o.trainers, "trainer processes");
  args.add("steps", o.steps, "steps");
  args.add("seed", o.seed, "seed of initial values and data");
  args.add("device", o.device, {"cpu", "cuda"},
           "device of the layers; cuda: one device for each trainer of a machine, over NCCL");
  args.add("json", o.json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  if (o.trainers < 1 || o.trainers >= examples::kMostWorkers || o.steps < 1) {
    std::fprintf(stderr, "hybrid: trainers must be 1 to 999, steps at least 1\n");
    return 2;
  }
  return examples::guarded("hybrid", [&] {
    return examples::run_group({.world_size = static_cast<int>(o.trainers) + 1,
                                .network = network,
                                .name = [](int rank, bool) { return hybrid::name_of(rank); },
                                .passive = [](const std::string& name) { return name == "ps"; },
                                .prepare =
                                    [&](bool) {
                                      examples::check_outputs({o.json});
                                      examples::check_trainers(o.device);
                                    }},
                               [&](const std::string& me) { return hybrid::run(o, me); });
  });
}
