// SparseAdam: Adam for tables with row-wise gradients (autograd/tape/row_grad.h). It is lazy: only the steps
// that look a row up update it.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// beta1, beta2 in [0, 1): factors of the averages of d and d^2; eps >= 0 is added to the root.
struct SparseAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool maximize = false, master_weights = false;
};

/// m = b1 m + (1 - b1) d; v = b2 v + (1 - b2) d^2; p -= rate m / (sqrt(v) + eps), with rate =
/// lr sqrt(1 - b2^t) / (1 - b1^t), for the rows of the gradient. All other rows keep their averages, which
/// Adam would shrink and continue to apply. t counts the steps of the whole table. A dense gradient has all
/// rows. 28 bytes. Source: Kingma & Ba 2015, section 2, over rows as in PyTorch.
struct WEFT_API SparseAdamRule {
  using Options = SparseAdamOptions;
  static constexpr const char* kName = "SparseAdam";
  static constexpr const char* kKernelName = "weft::step::SparseAdam";
  static constexpr int kState = 2;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};
  static void check(const Options& o) {
    detail::in_unit(kName, "beta1", o.beta1);
    detail::in_unit(kName, "beta2", o.beta2);
    detail::not_negative(kName, "eps", o.eps);
  }
  static bool over_rows(const Options&) { return true; }

  Gradient gradient;
  Hyper rate, beta1, enters1, beta2, enters2, eps;
  SparseAdamRule(const Options& o, int64_t t)
      : gradient(o.maximize, 0),
        rate(o.lr * std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t))) /
             (1 - std::pow(o.beta1, static_cast<double>(t)))),
        beta1(o.beta1),
        enters1(1 - o.beta1),
        beta2(o.beta2),
        enters2(1 - o.beta2),
        eps(o.eps) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = beta1 * s[0] + enters1 * d;
    s[1] = beta2 * s[1] + enters2 * (d * d);
    p -= rate * s[0] / (sqrt(s[1]) + eps);
  }
};

}  // namespace weft::optim
