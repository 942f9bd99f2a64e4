// Adam with decoupled weight decay: the parameter shrinks by lr * weight_decay, and the averages see the
// gradient alone.
#pragma once

#include <weft/optim/rules/adam.h>

namespace weft::optim {

/// As AdamOptions, but weight_decay is decoupled.
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false, master_weights = false;
};

/// Adam with decoupled weight decay: each step first multiplies p by 1 - lr * weight_decay.
/// Source: Loshchilov & Hutter 2019.
struct WEFT_API AdamWRule {
  using Options = AdamWOptions;
  static constexpr const char* kName = "AdamW";
  static void check(const Options& o) { detail::check_averages(kName, o); }

  template <bool kMax> struct Step : detail::AdamStep<kMax> {
    static constexpr const char* kKernelName = kMax ? "weft::step::AdamWAmsgrad" : "weft::step::AdamW";
    Step(const Options& o, int64_t t) : detail::AdamStep<kMax>(o, t, 0, 1 - o.lr * o.weight_decay) {}
  };
  using Functors = StepFunctors<Step<false>, Step<true>>;
  static size_t functor(const Options& o) { return o.amsgrad ? 1 : 0; }
};

}  // namespace weft::optim
