// Adam, with and without the maximum of AMSGrad, and the step that AdamW shares with it. Each form has a
// functor, since they differ in their state.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

namespace detail {
/// p *= shrink; m = b1 m + (1 - b1) d; v = b2 v + (1 - b2) d^2; p -= lr / (1 - b1^t) m / (sqrt(v) / root +
/// eps), with root = sqrt(1 - b2^t). Numerator and denominator are multiplied by root, so that an element
/// needs one division: rate = root lr / (1 - b1^t), floor = root eps. 28 bytes. kMax (AMSGrad): the largest
/// v so far replaces v under the root. 36 bytes.
template <bool kMax> struct AdamStep {
  static constexpr int kState = kMax ? 3 : 2;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  Gradient gradient;
  Hyper rate, beta1, enters1, beta2, enters2, floor;
  Shrink shrink;
  template <class Options>
  AdamStep(const Options& o, int64_t t, double l2, double shrink_by)
      : AdamStep(o, t, l2, shrink_by, std::sqrt(1 - std::pow(o.beta2, static_cast<double>(t)))) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    shrink(p);
    s[0] = beta1 * s[0] + enters1 * d;
    s[1] = beta2 * s[1] + enters2 * (d * d);
    if constexpr (kMax) s[2] = max(s[2], s[1]);
    p -= rate * s[0] / (sqrt(s[kState - 1]) + floor);
  }

 private:
  template <class Options>
  AdamStep(const Options& o, int64_t t, double l2, double shrink_by, double root)
      : gradient(o.maximize, l2),
        rate(root * o.lr / (1 - std::pow(o.beta1, static_cast<double>(t)))),
        beta1(o.beta1),
        enters1(1 - o.beta1),
        beta2(o.beta2),
        enters2(1 - o.beta2),
        floor(root * o.eps),
        shrink(shrink_by) {}
};
}  // namespace detail

/// beta1, beta2 in [0, 1): factors of the averages of d and d^2. eps >= 0 is added to the root. amsgrad: uses
/// the largest average of d^2 so far.
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false, master_weights = false;
};

/// Adam, with L2 weight decay. Source: Kingma & Ba 2015, algorithm 1; amsgrad: Reddi et al. 2018.
struct WEFT_API AdamRule {
  using Options = AdamOptions;
  static constexpr const char* kName = "Adam";
  static void check(const Options& o) { detail::check_averages(kName, o); }

  template <bool kMax> struct Step : detail::AdamStep<kMax> {
    static constexpr const char* kKernelName = kMax ? "weft::step::AdamAmsgrad" : "weft::step::Adam";
    Step(const Options& o, int64_t t) : detail::AdamStep<kMax>(o, t, o.weight_decay, 1) {}
  };
  using Functors = StepFunctors<Step<false>, Step<true>>;
  static size_t functor(const Options& o) { return o.amsgrad ? 1 : 0; }
};

}  // namespace weft::optim
