// Several trainers and one shared model on worker "ps": asynchronous training, in which forward passes,
// backward passes and steps overlap. Each trainer has its own optimizer over the shared parameters. Each
// graph keeps the parameter values it was built with. The steps of a trainer that dies are missing; the
// others finish theirs.
#include <cstdio>
#include <mutex>
#include <numeric>

#include <weft/distributed.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"

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

/// The progress board of the trainers, on worker "ps". Calls of several trainers run concurrently.
class Board {
 public:
  Board(int64_t total, int64_t log_interval)
      : total_(total), log_interval_(log_interval), progress_("steps", total, log_interval) {}
  /// Adds `steps` steps with that sum of losses; returns false when the trainer must stop.
  bool report(int64_t steps, double loss_sum) {
    const std::lock_guard lock(mutex_);
    const int64_t before = done_;
    done_ += steps, in_interval_ += steps, interval_ += loss_sum;
    const double mean = interval_ / static_cast<double>(std::max<int64_t>(in_interval_, 1));
    char text[48];
    std::snprintf(text, sizeof text, "loss %.4f", mean);
    progress_.update(done_, text);
    if (done_ / log_interval_ > before / log_interval_ || done_ == total_) {
      examples::Figures record;
      record.set("steps", done_);
      record.set("loss", mean);
      figures_.append("intervals", record);
      in_interval_ = 0, interval_ = 0;
    }
    return !examples::interrupted();
  }
  /// Ends the display; call it after the last report.
  examples::Figures close() {
    const std::lock_guard lock(mutex_);
    progress_.finish();
    return figures_;
  }

 private:
  std::mutex mutex_;
  int64_t total_, log_interval_, done_ = 0, in_interval_ = 0;
  double interval_ = 0;
  examples::Progress progress_;
  examples::Figures figures_;
};
WEFT_RPC_CLASS(Board, report);

constexpr int64_t kReportEvery = 10;  // steps of one trainer between reports

struct Outcome {
  double first = 0, last = 0;  // mean loss of the first and of the last tenth of the steps
  int64_t steps = 0;           // fewer than requested after Ctrl-C
};
WEFT_FIELDS(Outcome, first, last, steps)

weft::dist_optim::DistributedOptimizer make_optimizer(const std::string& rule,
                                                      const std::vector<RRef<Tensor>>& params) {
  using namespace weft::optim;
  if (rule == "qhm") return weft::dist_optim::make<QHMRule>(params, {.lr = 0.1, .momentum = 0.9, .nu = 0.7});
  if (rule == "adam") return weft::dist_optim::make<AdamRule>(params, {.lr = 0.003});
  return weft::dist_optim::make<SGDRule>(params, {.lr = 0.1});
}

/// Runs on a trainer: `steps` steps on its own stream of batches, or fewer when the board stops it.
Outcome train(const RRef<SharedNet>& net, const RRef<Board>& board, const std::string& rule, int64_t trainer,
              int64_t steps, int64_t seed) {
  auto optimizer = make_optimizer(rule, net.rpc_sync<&SharedNet::parameter_rrefs>());
  weft::Generator draws =
      weft::Generator(static_cast<uint64_t>(seed)).fork(static_cast<uint64_t>(trainer) + 1);
  weft::Generator task(static_cast<uint64_t>(seed));
  const Tensor truth = weft::randn({8, 3}, {}, &task);
  std::vector<double> losses;
  for (bool go_on = true; go_on && static_cast<int64_t>(losses.size()) < steps;) {
    const Tensor x = weft::randn({16, 8}, {}, &draws), y = x.matmul(truth).argmax(1);
    const weft::dist_autograd::Context context;
    const Tensor loss = weft::cross_entropy(net.rpc_sync<&SharedNet::forward>(x), y);
    context.backward({loss});
    optimizer.step(context.id());
    losses.push_back(loss.item<double>());
    const int64_t done = static_cast<int64_t>(losses.size()), fresh = (done - 1) % kReportEvery + 1;
    if (fresh == kReportEvery || done == steps)
      go_on = board.rpc_sync<&Board::report>(fresh, std::accumulate(losses.end() - fresh, losses.end(), 0.0));
  }
  const auto tenth = std::max<std::ptrdiff_t>(std::ssize(losses) / 10, 1);
  const auto mean = [&](auto from) {
    return std::accumulate(from, from + tenth, 0.0) / static_cast<double>(tenth);
  };
  return {mean(losses.begin()), mean(losses.end() - tenth), std::ssize(losses)};
}
WEFT_RPC(train);

struct Options {
  int64_t trainers = 3, steps = 1000, seed = 1, log_interval = 200;
  std::string optimizer = "qhm", json;
};

int drive(const Options& o) {
  examples::catch_interrupt();
  const auto net = weft::rpc::RRef<SharedNet>(std::make_shared<SharedNet>(o.seed));
  const auto board = std::make_shared<Board>(o.steps, o.log_interval);
  const RRef<Board> board_rref(board);
  const double start = examples::seconds();
  std::vector<weft::rpc::Future<Outcome>> running;
  for (int64_t t = 0; t < o.trainers; ++t) {
    const int64_t mine = o.steps / o.trainers + (t < o.steps % o.trainers);
    running.push_back(
        weft::rpc::rpc_async<train>({"trainer" + std::to_string(t + 1), weft::rpc::Duration::zero()}, net,
                                    board_rref, o.optimizer, t, mine, o.seed));
  }
  std::vector<Outcome> finished;
  std::exception_ptr lost;
  for (const auto& one : running) {
    try {
      finished.push_back(one.wait());
    } catch (const weft::PeerLost& e) {  // its steps are missing; the others continue
      std::fprintf(stderr, "parameter_server: going on without '%s'\n", e.peer.c_str());
      lost = std::current_exception();
    }
  }
  examples::Figures figures = board->close();
  if (finished.empty()) std::rethrow_exception(lost);
  Outcome mean;
  const auto trainers = std::ssize(finished);
  for (const Outcome& one : finished) {
    mean.first += one.first / static_cast<double>(trainers);
    mean.last += one.last / static_cast<double>(trainers);
    mean.steps += one.steps;
  }
  if (examples::interrupted())
    std::printf("interrupted after %lld steps\n", static_cast<long long>(mean.steps));
  const double rate = static_cast<double>(mean.steps) / std::max(examples::seconds() - start, 1e-9);
  figures.set("trainers", static_cast<int64_t>(trainers));
  figures.set("steps", mean.steps);
  figures.set("loss_first", mean.first);
  figures.set("loss_last", mean.last);
  figures.set("steps_per_s", rate);
  std::printf("parameter_server: trainers=%lld steps=%lld loss_first=%.4f loss_last=%.4f steps_per_s=%.0f\n",
              static_cast<long long>(trainers), static_cast<long long>(mean.steps), mean.first, mean.last,
              rate);
  std::fflush(stdout);
  figures.write(o.json);
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
  args.add("log-interval", o.log_interval, "steps between progress lines, all trainers together");
  args.add("json", o.json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  if (o.trainers < 1 || o.trainers >= examples::kMostWorkers || o.steps < o.trainers || o.log_interval < 1) {
    std::fprintf(
        stderr,
        "parameter_server: needs 1 to 999 trainers, one step for each, and a log-interval of at least 1\n");
    return 2;
  }
  return examples::guarded("parameter_server", [&] {
    return examples::run_group(
        {.world_size = static_cast<int>(o.trainers) + 1,
         .network = network,
         .name = [](int rank,
                    bool) { return rank == 0 ? std::string("ps") : "trainer" + std::to_string(rank); },
         .passive = [](const std::string& name) { return name != "ps"; },
         .prepare = [&](bool) { examples::check_outputs({o.json}); }},
        [&](const std::string&) {
          // a launcher's group has its own size
          o.trainers = std::ssize(weft::rpc::get_worker_infos()) - 1;
          if (o.steps < o.trainers)
            throw weft::ValueError(weft::str(o.steps, " steps are too few for ", o.trainers, " trainers"));
          return ps::drive(o);
        });
  });
}
