// A user's optimizer: the rule's code, and its training locally and on a remote owner.
#include <cmath>
#include <cstdio>

#include <weft/distributed.h>
#include "../common/args.h"
#include "../common/group.h"
#include "../common/report.h"

namespace custom {

using weft::Tensor;

// ---- the complete rule
/// Lion: steps by the sign of the momentum, with decoupled decay. Source: Chen et al. 2023, "Symbolic
/// discovery of optimization algorithms".
struct Lion {
  struct Options {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  };
  static constexpr const char* kName = "Lion";
  static constexpr int kState = 1;
  Options o;
  Lion(const Options& options, int64_t) : o(options) {}
  template <class V> void operator()(V& p, const V& g, V* s) const {
    const V c = o.beta1 * s[0] + (1 - o.beta1) * g;
    p -= o.lr * (select(c > V(0), V(1), V(0)) - select(c < V(0), V(1), V(0)) + o.weight_decay * p);
    s[0] = o.beta2 * s[0] + (1 - o.beta2) * g;
  }
};
WEFT_FIELDS(Lion::Options, lr, beta1, beta2, weight_decay)
WEFT_OPTIMIZER_RULE(Lion);
// ---- the end of the rule

constexpr int64_t kSteps = 200, kSize = 7;
const Lion::Options kOptions{.lr = 0.02, .weight_decay = 0.01};

/// The parameter of a least-squares fit, on any worker.
struct Fit {
  Fit() : w(weft::zeros({kSize}, {.dtype = weft::kFloat64})) { w.requires_grad_(); }
  Tensor loss(const Tensor& x, const Tensor& y) const { return weft::mse_loss(x.matmul(w), y); }
  std::vector<weft::rpc::RRef<Tensor>> parameter_rrefs() { return {weft::rpc::RRef<Tensor>(w)}; }
  Tensor values() const { return w.detach(); }
  Tensor w;
};
WEFT_RPC_CONSTRUCTOR(Fit);
WEFT_RPC_CLASS(Fit, loss, parameter_rrefs, values);

struct Data {
  Tensor x, y;
};
Data data() {
  weft::Generator draws(7);
  const Tensor x = weft::randn({31, kSize}, {.dtype = weft::kFloat64}, &draws);
  return {x, x.matmul(weft::linspace(-1, 1, kSize, {.dtype = weft::kFloat64}))};
}

struct Result {
  double first = 0, last = 0;
  std::vector<double> w;
};

/// The rule in plain loops, for comparison.
Result reference() {
  const Data d = data();
  const std::vector<double> x = d.x.to_vector<double>(), y = d.y.to_vector<double>();
  Result r;
  r.w.assign(kSize, 0);
  std::vector<double> m(kSize, 0);
  const size_t n = y.size();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<double> g(kSize, 0);
    double loss = 0;
    for (size_t i = 0; i < n; ++i) {
      double e = -y[i];
      for (size_t k = 0; k < kSize; ++k) e += x[i * kSize + k] * r.w[k];
      loss += e * e / static_cast<double>(n);
      for (size_t k = 0; k < kSize; ++k) g[k] += 2 * e * x[i * kSize + k] / static_cast<double>(n);
    }
    (step == 0 ? r.first : r.last) = loss;
    for (size_t k = 0; k < kSize; ++k) {
      const double c = kOptions.beta1 * m[k] + (1 - kOptions.beta1) * g[k];
      r.w[k] -= kOptions.lr * ((c > 0) - (c < 0) + kOptions.weight_decay * r.w[k]);
      m[k] = kOptions.beta2 * m[k] + (1 - kOptions.beta2) * g[k];
    }
  }
  return r;
}

Result train_local() {
  const Data d = data();
  Fit fit;
  weft::optim::Fused<Lion> optimizer({fit.w}, kOptions);
  Result r;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = fit.loss(d.x, d.y);
    loss.backward();
    optimizer.step();
    (step == 0 ? r.first : r.last) = loss.item<double>();
  }
  r.w = fit.w.to_vector<double>();
  return r;
}

Result train_distributed() {
  const Data d = data();
  const auto fit = weft::rpc::remote<Fit>("owner");
  auto optimizer = weft::dist_optim::make<Lion>(fit.rpc_sync<&Fit::parameter_rrefs>(), kOptions);
  Result r;
  for (int64_t step = 0; step < kSteps; ++step) {
    const weft::dist_autograd::Context context;
    const Tensor loss = fit.rpc_sync<&Fit::loss>(d.x, d.y);
    context.backward({loss});
    optimizer.step(context.id());
    (step == 0 ? r.first : r.last) = loss.item<double>();
  }
  r.w = fit.rpc_sync<&Fit::values>().to_vector<double>();
  return r;
}

int report(const Result& r, const std::string& json) {
  const Result want = reference();
  double worst = std::abs(r.last - want.last);
  for (size_t k = 0; k < kSize; ++k) worst = std::max(worst, std::abs(r.w[k] - want.w[k]));
  const bool same = worst < 1e-9;
  examples::Figures figures;
  figures.set("loss_first", r.first);
  figures.set("loss_last", r.last);
  figures.set("matches reference", examples::yes_no(same));
  std::printf("custom_optimizer: loss_first=%.6f loss_last=%.6f matches reference: %s\n", r.first, r.last,
              examples::yes_no(same).c_str());
  std::fflush(stdout);
  figures.write(json);
  return same ? 0 : 1;
}

}  // namespace custom

int main(int argc, char** argv) {
  std::string mode = "local", json;
  examples::Args args("custom_optimizer",
                      "a user-written update rule, trained locally or with its parameter on another worker");
  args.add("mode", mode, {"local", "distributed"}, "where the parameter lives");
  args.add("json", json, "write the figures here");
  examples::NetworkFlags network;
  network.add_to(args);
  args.parse(argc, argv);
  return examples::guarded("custom_optimizer", [&] {
    const auto prepare = [&](bool) { examples::check_outputs({json}); };
    if (mode == "local") return prepare(true), custom::report(custom::train_local(), json);
    return examples::run_group(
        {.world_size = 2,
         .most_workers = 2,
         .network = network,
         .name = [](int rank, bool) { return rank == 0 ? "trainer" : "owner"; },
         .passive = [](const std::string& name) { return name == "owner"; },
         .prepare = prepare},
        [&](const std::string&) { return custom::report(custom::train_distributed(), json); });
  });
}
