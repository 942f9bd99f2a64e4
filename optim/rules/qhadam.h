// Quasi-hyperbolic Adam: numerator and denominator of Adam are each a mean of the average and the current
// gradient.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// beta1, beta2 in [0, 1): factors of the averages of d and d^2. nu1, nu2: weights of the averages against d
/// and d^2. eps >= 0 is added to the root.
struct QHAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, nu1 = 1, nu2 = 1, eps = 1e-8, weight_decay = 0;
  WeightDecay weight_decay_type = WeightDecay::kGrad;
  bool master_weights = false;
};

/// m = a1 m + (1 - a1) d; v = a2 v + (1 - a2) d^2, where a1 and a2 correct the bias of the averages at step
/// t; p -= lr ((1 - nu1) d + nu1 m) / (sqrt((1 - nu2) d^2 + nu2 v) + eps). Decoupled decay first multiplies p
/// by 1 - lr * weight_decay. 28 bytes. Source: Ma & Yarats 2019, section 4.
struct WEFT_API QHAdamRule {
  using Options = QHAdamOptions;
  static constexpr const char* kName = "QHAdam";
  static constexpr const char* kKernelName = "weft::step::QhAdam";
  static constexpr int kState = 2;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};
  static void check(const Options& o) {
    detail::check_averages(kName, o);
    detail::finite(kName, "nu1", o.nu1);
    detail::finite(kName, "nu2", o.nu2);
    detail::known(kName, o.weight_decay_type);
  }

  Gradient gradient;
  Hyper lr, a1, enters1, a2, enters2, nu1, plain1, nu2, plain2, eps;
  Shrink shrink;
  QHAdamRule(const Options& o, int64_t t)
      : gradient(false, o.weight_decay_type == WeightDecay::kDirect ? 0 : o.weight_decay),
        lr(o.lr),
        a1(past(o.beta1, static_cast<double>(t))),
        enters1(1 - past(o.beta1, static_cast<double>(t))),
        a2(past(o.beta2, static_cast<double>(t))),
        enters2(1 - past(o.beta2, static_cast<double>(t))),
        nu1(o.nu1),
        plain1(1 - o.nu1),
        nu2(o.nu2),
        plain2(1 - o.nu2),
        eps(o.eps),
        shrink(o.weight_decay_type == WeightDecay::kDirect ? 1 - o.lr * o.weight_decay : 1) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    shrink(p);
    const V square = d * d;
    s[0] = a1 * s[0] + enters1 * d;
    s[1] = a2 * s[1] + enters2 * square;
    p -= lr * (plain1 * d + nu1 * s[0]) / (sqrt(plain2 * square + nu2 * s[1]) + eps);
  }

 private:
  /// The factor of an average with bias correction: 1 - 1 / w, where w = 1 + b + .. + b^(t-1) is the sum of
  /// weights after t steps.
  static double past(double b, double t) { return b == 1 ? 1 - 1.0 / t : 1 - (1 - b) / (1 - std::pow(b, t)); }
};

}  // namespace weft::optim
