// Adagrad: the step of an element is divided by the root of the sum of its squared gradients. This file is a
// short example of a rule.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// lr_decay >= 0: decrease of the rate per step; eps >= 0 is added to the root.
struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, eps = 1e-10;
  bool maximize = false, master_weights = false;
};

/// sum += d^2; p -= rate d / (sqrt(sum) + eps), with rate = lr / (1 + (t - 1) lr_decay). 20 bytes.
/// Source: Duchi, Hazan & Singer 2011.
struct WEFT_API AdagradRule {
  using Options = AdagradOptions;
  static constexpr const char* kName = "Adagrad";
  static constexpr const char* kKernelName = "weft::step::Adagrad";
  static constexpr int kState = 1;
  static constexpr const char* kStateNames[] = {"sum"};
  static void check(const Options& o) {
    detail::not_negative(kName, "lr_decay", o.lr_decay);
    detail::not_negative(kName, "eps", o.eps);
    detail::not_negative(kName, "weight_decay", o.weight_decay);
  }

  /// Without weight decay, a zero gradient changes neither the sum nor the parameter.
  static bool over_rows(const Options& o) { return o.weight_decay == 0; }

  Gradient gradient;
  Hyper rate, eps;
  AdagradRule(const Options& o, int64_t t)
      : gradient(o.maximize, o.weight_decay),
        rate(o.lr / (1 + static_cast<double>(t - 1) * o.lr_decay)),
        eps(o.eps) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] += d * d;
    p -= rate * d / (sqrt(s[0]) + eps);
  }
};

}  // namespace weft::optim
