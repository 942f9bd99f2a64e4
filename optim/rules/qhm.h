// Quasi-hyperbolic momentum: a mean of the plain gradient step and the momentum step.
// optim/qhm_settings.h has settings with which it equals other methods.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// momentum >= 0: factor b of the average; nu: weight of the average against the gradient.
struct QHMOptions {
  double lr = 1e-3, momentum = 0.999, nu = 0.7, weight_decay = 0;
  WeightDecay weight_decay_type = WeightDecay::kGrad;
  bool master_weights = false;
};

/// buf = b buf + (1 - b) d; p -= lr ((1 - nu) d + nu buf). Decoupled decay first multiplies p by 1 - lr *
/// weight_decay. nu = 0 is SGD, nu = 1 dampened momentum. 20 bytes. Source: Ma & Yarats 2019, algorithm 1.
struct WEFT_API QHMRule {
  using Options = QHMOptions;
  static constexpr const char* kName = "QHM";
  static constexpr const char* kKernelName = "weft::step::Qhm";
  static constexpr int kState = 1;
  static constexpr const char* kStateNames[] = {"momentum_buffer"};
  static void check(const Options& o) {
    detail::not_negative(kName, "momentum", o.momentum);
    detail::finite(kName, "nu", o.nu);
    detail::not_negative(kName, "weight_decay", o.weight_decay);
    detail::known(kName, o.weight_decay_type);
  }

  Gradient gradient;
  Hyper lr, momentum, enters, nu, plain;
  Shrink shrink;
  QHMRule(const Options& o, int64_t)
      : gradient(false, o.weight_decay_type == WeightDecay::kDirect ? 0 : o.weight_decay),
        lr(o.lr),
        momentum(o.momentum),
        enters(1 - o.momentum),
        nu(o.nu),
        plain(1 - o.nu),
        shrink(o.weight_decay_type == WeightDecay::kDirect ? 1 - o.lr * o.weight_decay : 1) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    shrink(p);
    s[0] = momentum * s[0] + enters * d;
    p -= lr * (plain * d + nu * s[0]);
  }
};

}  // namespace weft::optim
