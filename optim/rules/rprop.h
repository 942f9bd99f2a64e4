// Resilient backpropagation: each element has its own step length, which depends only on the signs of
// successive gradients.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// eta_minus in (0, 1) and eta_plus > 1: factors of an element's step size; step_min and step_max: its
/// bounds, in units of the parameter. step_max may be infinite.
struct RpropOptions {
  double lr = 1e-2;  ///< the first step size, in units of the parameter; not used later
  double eta_minus = 0.5, eta_plus = 1.2, step_min = 1e-6, step_max = 50;
  bool maximize = false, master_weights = false;
};

/// One step size per element; only the sign of the gradient matters. For gradients of the whole data set. s0
/// is the previous gradient, s1 the step size, lr at t = 1. If d has the sign of s0, s1 is multiplied by
/// eta_plus. If the sign has changed, it is multiplied by eta_minus, and s0 becomes 0 instead of d. Then p -=
/// s1 sign(s0). 28 bytes. Source: Riedmiller & Braun 1993, without weight backtracking.
struct WEFT_API RpropRule {
  using Options = RpropOptions;
  static constexpr const char* kName = "Rprop";
  static constexpr const char* kKernelName = "weft::step::Rprop";
  static constexpr int kState = 2;
  static constexpr const char* kStateNames[] = {"prev", "step_size"};
  static void check(const Options& o) {
    detail::finite(kName, "eta_plus", o.eta_plus);
    detail::finite(kName, "step_min", o.step_min);
    if (!(o.eta_minus > 0 && o.eta_minus < 1 && o.eta_plus > 1))
      throw ValueError(
          str("Rprop: needs 0 < eta_minus < 1 < eta_plus, got ", o.eta_minus, " and ", o.eta_plus));
    if (!(o.step_min >= 0 && o.step_min <= o.step_max))
      throw ValueError(str("Rprop: needs 0 <= step_min <= step_max, got ", o.step_min, " and ", o.step_max));
  }

  Gradient gradient;
  Hyper start, down, up, least, most;
  bool first;
  RpropRule(const Options& o, int64_t t)
      : gradient(o.maximize, 0),
        start(o.lr),
        down(o.eta_minus),
        up(o.eta_plus),
        least(o.step_min),
        most(o.step_max),
        first(t == 1) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g), agreement = d * s[0];
    const auto turned = agreement < 0;
    if (first) s[1] = V(start);
    s[1] = min(max(s[1] * select(agreement > 0, V(up), select(turned, V(down), V(1))), V(least)), V(most));
    s[0] = select(turned, V(0), d);
    p -= select(s[0] > 0, s[1], select(s[0] < 0, -s[1], V(0)));
  }
};

}  // namespace weft::optim
