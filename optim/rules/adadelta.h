// Adadelta: the gradient is scaled by the ratio of two running root mean squares, of the changes and of the
// gradients.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// rho in [0, 1]: factor of both averages; eps >= 0 is added under the roots.
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false, master_weights = false;
};

/// s0 = rho s0 + (1 - rho) d^2; change = sqrt(s1 + eps) / sqrt(s0 + eps) d; s1 = rho s1 + (1 - rho) change^2;
/// p -= lr change. 28 bytes. Source: Zeiler 2012, algorithm 1, whose change is multiplied by lr.
struct WEFT_API AdadeltaRule {
  using Options = AdadeltaOptions;
  static constexpr const char* kName = "Adadelta";
  static constexpr const char* kKernelName = "weft::step::Adadelta";
  static constexpr int kState = 2;
  static constexpr const char* kStateNames[] = {"square_avg", "acc_delta"};
  static void check(const Options& o) {
    if (!(o.rho >= 0 && o.rho <= 1)) throw ValueError(str("Adadelta: rho must be in [0, 1], got ", o.rho));
    detail::not_negative(kName, "eps", o.eps);
    detail::not_negative(kName, "weight_decay", o.weight_decay);
  }

  Gradient gradient;
  Hyper lr, rho, enters, eps;
  AdadeltaRule(const Options& o, int64_t)
      : gradient(o.maximize, o.weight_decay), lr(o.lr), rho(o.rho), enters(1 - o.rho), eps(o.eps) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = rho * s[0] + enters * (d * d);
    const V change = sqrt(s[1] + eps) / sqrt(s[0] + eps) * d;
    s[1] = rho * s[1] + enters * (change * change);
    p -= lr * change;
  }
};

}  // namespace weft::optim
