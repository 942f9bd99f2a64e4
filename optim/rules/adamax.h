// Adamax: Adam with a fading maximum of the gradients in place of the root of their mean square. eps is added
// before the maximum is taken.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// beta1, beta2 in [0, 1): factors of the average of d and of the decaying maximum; eps >= 0 is added to |d|.
struct AdamaxOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false, master_weights = false;
};

/// Adam with a decaying maximum of |d| in place of the root. m = b1 m + (1 - b1) d; u = max(b2 u, |d| + eps);
/// p -= rate m / u, with rate = lr / (1 - b1^t). 28 bytes. Source: Kingma & Ba 2015, algorithm 2.
struct WEFT_API AdamaxRule {
  using Options = AdamaxOptions;
  static constexpr const char* kName = "Adamax";
  static constexpr const char* kKernelName = "weft::step::Adamax";
  static constexpr int kState = 2;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_inf"};
  static void check(const Options& o) { detail::check_averages(kName, o); }

  Gradient gradient;
  Hyper rate, beta1, enters1, beta2, eps;
  AdamaxRule(const Options& o, int64_t t)
      : gradient(o.maximize, o.weight_decay),
        rate(o.lr / (1 - std::pow(o.beta1, static_cast<double>(t)))),
        beta1(o.beta1),
        enters1(1 - o.beta1),
        beta2(o.beta2),
        eps(o.eps) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = beta1 * s[0] + enters1 * d;
    s[1] = max(beta2 * s[1], abs(d) + eps);
    p -= rate * s[0] / s[1];
  }
};

}  // namespace weft::optim
