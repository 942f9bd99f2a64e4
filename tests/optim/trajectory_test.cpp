// Twenty steps of every optimizer against trajectories written by PyTorch (QHM and QHAdam: by a reference
// loop), in float32 and float64. Also the published table of three steps.
#include <functional>
#include <map>
#include <memory>

#include <weft/weft.h>

#include "../support/golden.h"

namespace weft {
namespace {

using namespace optim;
using testing::close;
using testing::Golden;

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;

template <class Opt> Make make(typename Opt::Options options) {
  return [options](const std::vector<Tensor>& p) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Opt>(p, options);
  };
}

/// Options from the "key=value" words of a golden case.
struct Words {
  std::map<std::string, std::string> values;
  explicit Words(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string word = text.substr(at, end - at);
      if (const size_t eq = word.find('='); eq != std::string::npos)
        values[word.substr(0, eq)] = word.substr(eq + 1);
      at = end + 1;
    }
  }
  double number(const std::string& key, double fallback) const {
    const auto found = values.find(key);
    return found == values.end() ? fallback : std::stod(found->second);
  }
};

class Trajectory : public ::testing::TestWithParam<std::pair<const char*, Make>> {
 protected:
  void run(const std::string& type, DType dtype, double rtol, double atol) {
    const std::string name = GetParam().first;
    const Golden most("optim_" + type),
        all = most.has(name + ".param.a") ? most : Golden("optim_adaptive_" + type), g = all.at(name);
    Tensor a = all["init.a"].clone().requires_grad_(), b = all["init.b"].clone().requires_grad_();
    ASSERT_EQ(a.dtype(), dtype);
    const auto optimizer = GetParam().second({a, b});
    const std::vector<int64_t> has_a = all["has_grad.a"].to_vector<int64_t>(),
                               has_b = all["has_grad.b"].to_vector<int64_t>();
    for (int64_t t = 0; t < 20; ++t) {
      const Tensor ga = all["grad.a"].select(0, t).clone(), gb = all["grad.b"].select(0, t).clone();
      const Tensor before = ga.clone();
      a.set_grad(has_a[static_cast<size_t>(t)] ? ga : Tensor());
      b.set_grad(has_b[static_cast<size_t>(t)] ? gb : Tensor());
      optimizer->step();
      ASSERT_TRUE(close(a, g["param.a"].select(0, t), rtol, atol)) << "step " << t;
      ASSERT_TRUE(close(b, g["param.b"].select(0, t), rtol, atol)) << "step " << t;
      ASSERT_TRUE(testing::same_bits(ga, before)) << "the gradient was written at step " << t;
    }
    EXPECT_EQ(optimizer->steps(0), 20);
    EXPECT_EQ(optimizer->steps(1), 18);
    for (const auto& [name, value] : optimizer->state_dict())
      if (const std::string key = "state." + std::string(name[0] == '0' ? "a" : "b") + name.substr(1);
          g.has(key)) {
        EXPECT_TRUE(close(value, g[key], rtol * 10, atol * 10)) << key;
      }
  }
};

TEST_P(Trajectory, float64_matches) { run("f64", kFloat64, 1e-11, 1e-12); }
TEST_P(Trajectory, float32_matches) { run("f32", kFloat32, 2e-5, 2e-6); }

std::vector<std::pair<const char*, Make>> cases() {
  static const Golden file("optim_f64"), adaptive("optim_adaptive_f64");
  std::vector<std::pair<const char*, Make>> out;
  const auto words = [](const std::string& name) {
    return Words((file.has(name + ".param.a") ? file : adaptive).metadata("case." + name));
  };
  const auto sgd = [&](const char* name, bool nesterov = false, bool maximize = false) {
    const Words w = words(name);
    out.emplace_back(name, make<SGD>({.lr = w.number("lr", -1),
                                      .momentum = w.number("momentum", 0),
                                      .dampening = w.number("dampening", 0),
                                      .weight_decay = w.number("weight_decay", 0),
                                      .nesterov = nesterov,
                                      .maximize = maximize}));
  };
  sgd("sgd"), sgd("sgd_momentum"), sgd("sgd_momentum_dampening"), sgd("sgd_nesterov_decay", true),
      sgd("sgd_maximize", false, true);
  const auto adam = [&](const char* name, bool amsgrad = false, bool maximize = false) {
    const Words w = words(name);
    out.emplace_back(name, make<Adam>({.lr = w.number("lr", 1e-3),
                                       .weight_decay = w.number("weight_decay", 0),
                                       .amsgrad = amsgrad,
                                       .maximize = maximize}));
  };
  adam("adam"), adam("adam_decay"), adam("adam_amsgrad", true), adam("adam_maximize", false, true);
  const auto adamw = [&](const char* name, bool amsgrad) {
    const Words w = words(name);
    out.emplace_back(name, make<AdamW>({.lr = w.number("lr", 1e-3),
                                        .weight_decay = w.number("weight_decay", 1e-2),
                                        .amsgrad = amsgrad}));
  };
  adamw("adamw", false), adamw("adamw_amsgrad", true);
  out.emplace_back("rmsprop", make<RMSprop>({.lr = words("rmsprop").number("lr", 1e-2)}));
  const Words centered = words("rmsprop_centered_momentum");
  out.emplace_back("rmsprop_centered_momentum", make<RMSprop>({.lr = centered.number("lr", 1e-2),
                                                               .momentum = centered.number("momentum", 0.9),
                                                               .centered = true}));
  for (const char* name : {"adagrad", "adagrad_lr_decay"})
    out.emplace_back(name, make<Adagrad>({.lr = words(name).number("lr", 1e-2),
                                          .lr_decay = words(name).number("lr_decay", 0),
                                          .weight_decay = words(name).number("weight_decay", 0)}));
  for (const char* name : {"qhm", "qhm_decay_grad", "qhm_decay_direct"}) {
    const Words w = words(name);
    out.emplace_back(
        name, make<QHM>({.lr = w.number("lr", -1),
                         .momentum = w.number("momentum", -1),
                         .nu = w.number("nu", -1),
                         .weight_decay = w.number("weight_decay", 0),
                         .weight_decay_type = std::string(name) == "qhm_decay_direct" ? WeightDecay::kDirect
                                                                                      : WeightDecay::kGrad}));
  }
  for (const char* name : {"qhadam", "qhadam_decay_grad", "qhadam_decay_direct"}) {
    const bool plain = std::string(name) == "qhadam";
    out.emplace_back(name, make<QHAdam>({.lr = 0.02,
                                         .beta1 = 0.995,
                                         .beta2 = 0.999,
                                         .nu1 = plain ? 0.7 : 0.8,
                                         .nu2 = plain ? 1 : 0.7,
                                         .weight_decay = words(name).number("weight_decay", 0),
                                         .weight_decay_type = std::string(name) == "qhadam_decay_direct"
                                                                  ? WeightDecay::kDirect
                                                                  : WeightDecay::kGrad}));
  }
  const auto pair = [](const Words& w, const char* key) {
    const std::string text = w.values.at(key);
    return std::pair(std::stod(text), std::stod(text.substr(text.find(',') + 1)));
  };
  for (const char* name : {"adadelta", "adadelta_decay", "adadelta_maximize"}) {
    const Words w = words(name);
    out.emplace_back(name, make<Adadelta>({.lr = w.number("lr", -1),
                                           .rho = w.number("rho", -1),
                                           .eps = w.number("eps", -1),
                                           .weight_decay = w.number("weight_decay", 0),
                                           .maximize = w.values.count("maximize") != 0}));
  }
  for (const char* name : {"adamax", "adamax_decay", "adamax_maximize"}) {
    const Words w = words(name);
    const auto [beta1, beta2] = pair(w, "betas");
    out.emplace_back(name, make<Adamax>({.lr = w.number("lr", -1),
                                         .beta1 = beta1,
                                         .beta2 = beta2,
                                         .eps = w.number("eps", -1),
                                         .weight_decay = w.number("weight_decay", 0),
                                         .maximize = w.values.count("maximize") != 0}));
  }
  for (const char* name : {"rprop", "rprop_bounds", "rprop_maximize"}) {
    const Words w = words(name);
    const auto [minus, plus] = pair(w, "etas");
    const auto [least, most] = pair(w, "step_sizes");
    out.emplace_back(name, make<Rprop>({.lr = w.number("lr", -1),
                                        .eta_minus = minus,
                                        .eta_plus = plus,
                                        .step_min = least,
                                        .step_max = most,
                                        .maximize = w.values.count("maximize") != 0}));
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Rules, Trajectory, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.first); });

struct Row {
  const char* name;
  Make make;
  double first, second;
};

class ThreeSteps : public ::testing::TestWithParam<Row> {};

TEST_P(ThreeSteps, match_the_published_table) {
  Tensor p = tensor({1., -2.}, {.dtype = kFloat64}).requires_grad_();
  const Tensor scale = tensor({1., 3.}, {.dtype = kFloat64});
  const auto optimizer = GetParam().make({p});
  for (int i = 0; i < 3; ++i) {
    optimizer->zero_grad();
    (p * p * scale * 0.5).sum().backward();
    optimizer->step();
  }
  EXPECT_NEAR(p.to_vector<double>()[0], GetParam().first, 1e-11);
  EXPECT_NEAR(p.to_vector<double>()[1], GetParam().second, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ThreeSteps,
    ::testing::Values(
        Row{"sgd", make<SGD>({.lr = .1}), 0.729, -0.686},
        Row{"sgd_momentum", make<SGD>({.lr = .1, .momentum = .9}), 0.486, 0.556},
        Row{"sgd_dampening", make<SGD>({.lr = .1, .momentum = .9, .dampening = .5}), 0.60525, 0.1225},
        Row{"sgd_nesterov", make<SGD>({.lr = .1, .momentum = .9, .weight_decay = .01, .nesterov = true}),
            0.321859673441, 0.699442803918},
        Row{"qhm", make<QHM>({.lr = .1, .momentum = .9, .nu = .7}), 0.875252547, -1.303962338},
        Row{"qhadam", make<QHAdam>({.lr = .1, .beta1 = .995, .beta2 = .999, .nu1 = .7, .nu2 = 1}),
            0.705421540554, -1.702474136873},
        Row{"adam", make<Adam>({.lr = .1}), 0.701586274504, -1.700623391791},
        Row{"adam_amsgrad", make<Adam>({.lr = .1, .weight_decay = .01, .amsgrad = true}), 0.701586274474,
            -1.700623391790},
        Row{"adamw", make<AdamW>({.lr = .1}), 0.698911184716, -1.694944514130},
        Row{"rmsprop", make<RMSprop>({.lr = .1}), 0.000000000005, -0.309687380329},
        Row{"rmsprop_centered", make<RMSprop>({.lr = .1, .momentum = .9, .centered = true}), -1.039478989324,
            1.419086625827},
        Row{"adagrad", make<Adagrad>({.lr = .1, .lr_decay = .1}), 0.795081444080, -1.791190911942}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft
