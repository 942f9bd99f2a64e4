// RMSprop, with momentum and the centred form. One functor keeps the state of all forms, as saved states
// have it.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// alpha >= 0: factor of the averages. eps >= 0 is added to the root. momentum >= 0: factor of the momentum
/// buffer. centered: subtracts the squared average of d under the root.
struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false, master_weights = false;
};

/// s0 = a s0 + (1 - a) d^2; s1 = momentum s1 + d / (sqrt(s0) + eps); p -= lr s1. The centred form has s2 = a
/// s2 + (1 - a) d and sqrt(max(s0 - s2^2, 0)). Source: Tieleman & Hinton 2012; centred form: Graves 2013.
struct WEFT_API RMSpropRule {
  using Options = RMSpropOptions;
  static constexpr const char* kName = "RMSprop";
  static constexpr const char* kKernelName = "weft::step::RmsProp";
  static constexpr int kState = 3;
  static constexpr const char* kStateNames[] = {"square_avg", "momentum_buffer", "grad_avg"};
  static void check(const Options& o) {
    detail::not_negative(kName, "alpha", o.alpha);
    detail::not_negative(kName, "eps", o.eps);
    detail::not_negative(kName, "weight_decay", o.weight_decay);
    detail::not_negative(kName, "momentum", o.momentum);
  }

  Gradient gradient;
  Hyper lr, alpha, enters, eps, momentum;
  bool centered;
  RMSpropRule(const Options& o, int64_t)
      : gradient(o.maximize, o.weight_decay),
        lr(o.lr),
        alpha(o.alpha),
        enters(1 - o.alpha),
        eps(o.eps),
        momentum(o.momentum),
        centered(o.centered) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = alpha * s[0] + enters * (d * d);
    V spread = s[0];
    if (centered) {
      s[2] = alpha * s[2] + enters * d;
      spread = max(spread - s[2] * s[2], V(0.0));
    }
    s[1] = momentum * s[1] + d / (sqrt(spread) + eps);
    p -= lr * s[1];
  }
};

}  // namespace weft::optim
