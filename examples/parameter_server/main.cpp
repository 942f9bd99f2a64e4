// Several trainers, one shared model on worker "ps": their forward passes, backward passes and steps overlap freely. Each trainer has its own
// optimizer over the shared parameters; each graph keeps the values that it was built with.
#include <atomic>
#include <cstdio>

#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"
#include <weft/distributed.h>

namespace ps {

using weft::Tensor;
using weft::rpc::RRef;

/// A small classifier that all trainers share.
struct SharedNet : weft::nn::Module {
  explicit SharedNet(int64_t seed) : first(8, 32), second(32, 3) {
    add("first", first);
    add("second", second);
    weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(weft::nn::name_key("net"));
    first.reset_parameters(&draws);
    second.reset_parameters(&draws);
  }
  Tensor forward(const Tensor& x) { return second.forward(weft::tanh(first.forward(x))); }
  std::vector<RRef<Tensor>> parameter_rrefs() {
    std::vector<RRef<Tensor>> out;
    for (const Tensor& p : parameters()) out.emplace_back(p);
    return out;
  }
  weft::nn::Linear first, second;
};
WEFT_RPC_CONSTRUCTOR(SharedNet, int64_t);
WEFT_RPC_CLASS(SharedNet, forward, parameter_rrefs);

struct Outcome {
  double first = 0, last = 0;  // mean loss of the first and of the last tenth of the steps
};
WEFT_FIELDS(Outcome, first, last)

weft::dist_optim::DistributedOptimizer make_optimizer(const std::string& rule, const std::vector<RRef<Tensor>>& params) {
  using namespace weft::optim;
  if (rule == "qhm") return weft::dist_optim::make<QHMRule>(params, {.lr = 0.1, .momentum = 0.9, .nu = 0.7});
  if (rule == "adam") return weft::dist_optim::make<AdamRule>(params, {.lr = 0.003});
  return weft::dist_optim::make<SGDRule>(params, {.lr = 0.1});
}

/// Runs on a trainer: `steps` steps on its own stream of batches.
Outcome train(const RRef<SharedNet>& net, const std::string& rule, int64_t trainer, int64_t steps, int64_t seed) {
  auto optimizer = make_optimizer(rule, net.rpc_sync<&SharedNet::parameter_rrefs>());
  weft::Generator draws = weft::Generator(static_cast<uint64_t>(seed)).fork(static_cast<uint64_t>(trainer) + 1);
  weft::Generator task(static_cast<uint64_t>(seed));
  const Tensor truth = weft::randn({8, 3}, {}, &task);
  Outcome out;
  const int64_t tenth = std::max<int64_t>(steps / 10, 1);
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor x = weft::randn({16, 8}, {}, &draws), y = x.matmul(truth).argmax(1);
    const weft::dist_autograd::Context context;
    const Tensor loss = weft::cross_entropy(net.rpc_sync<&SharedNet::forward>(x), y);
    context.backward({loss});
    optimizer.step(context.id());
    if (step < tenth) out.first += loss.item<double>() / static_cast<double>(tenth);
    if (step >= steps - tenth) out.last += loss.item<double>() / static_cast<double>(tenth);
  }
  return out;
}
WEFT_RPC(train);

struct Options {
  int64_t trainers = 3, steps = 1000, seed = 1;
  std::string optimizer = "qhm", json;
};

int drive(const Options& o) {
  const auto net = weft::rpc::RRef<SharedNet>(std::make_shared<SharedNet>(o.seed));
  const double start = examples::seconds();
  std::vector<weft::rpc::Future<Outcome>> running;
  for (int64_t t = 0; t < o.trainers; ++t) {
    const int64_t mine = o.steps / o.trainers + (t < o.steps % o.trainers);
    running.push_back(weft::rpc::rpc_async<train>({"trainer" + std::to_string(t + 1), weft::rpc::Duration::zero()}, net, o.optimizer, t, mine, o.seed));
  }
  Outcome mean;
  for (const Outcome& one : weft::rpc::wait_all(running)) {
    mean.first += one.first / static_cast<double>(o.trainers);
    mean.last += one.last / static_cast<double>(o.trainers);
  }
  const double rate = static_cast<double>(o.steps) / std::max(examples::seconds() - start, 1e-9);
  examples::Figures figures;
  figures.set("trainers", o.trainers);
  figures.set("steps", o.steps);
  figures.set("loss_first", mean.first);
  figures.set("loss_last", mean.last);
  figures.set("steps_per_s", rate);
  figures.write(o.json);
  std::printf("parameter_server: trainers=%lld steps=%lld loss_first=%.4f loss_last=%.4f steps_per_s=%.0f\n", static_cast<long long>(o.trainers),
              static_cast<long long>(o.steps), mean.first, mean.last, rate);
  return 0;
}

}  // namespace ps

int main(int argc, char** argv) {
  ps::Options o;
  examples::Args args("parameter_server", "several trainers step one shared model at once");
  args.add("trainers", o.trainers, "trainer processes");
  args.add("optimizer", o.optimizer, {"qhm", "sgd", "adam"}, "update rule");
  args.add("steps", o.steps, "steps, all trainers together");
  args.add("seed", o.seed, "seed of initial values and data");
  args.add("json", o.json, "write the figures here");
  args.parse(argc, argv);
  if (o.trainers < 1 || o.steps < o.trainers) {
    std::fprintf(stderr, "parameter_server: needs at least one trainer and one step for each\n");
    return 2;
  }
  return examples::guarded("parameter_server", [&] {
    return examples::run_group({.world_size = static_cast<int>(o.trainers) + 1,
                                .name = [](int rank, bool) { return rank == 0 ? std::string("ps") : "trainer" + std::to_string(rank); },
                                .passive = [](const std::string& name) { return name != "ps"; }},
                               [&](const std::string&) { return ps::drive(o); });
  });
}
