// Stochastic gradient descent, plain and with momentum. Each form has a functor, since the plain one keeps
// no state.
#pragma once

#include <weft/optim/rules/rule.h>

namespace weft::optim {

/// momentum >= 0: factor of the momentum buffer; 0: no buffer. dampening: the gradient enters the buffer with
/// weight 1 - dampening. nesterov: Nesterov's momentum, which needs momentum > 0 and dampening 0.
struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false, master_weights = false;
};

/// Stochastic gradient descent.
/// Source: Robbins & Monro 1951; momentum: Polyak 1964, in the form of Sutskever et al. 2013.
struct WEFT_API SGDRule {
  using Options = SGDOptions;
  static constexpr const char* kName = "SGD";
  static void check(const Options& o) {
    detail::not_negative(kName, "momentum", o.momentum);
    detail::finite(kName, "dampening", o.dampening);
    detail::not_negative(kName, "weight_decay", o.weight_decay);
    if (o.nesterov && !(o.momentum > 0 && o.dampening == 0))
      throw ValueError(str("SGD: nesterov needs momentum above 0 and no dampening, got ", o.momentum, " and ",
                           o.dampening));
  }

  /// p -= lr d. 12 bytes.
  struct Plain {
    static constexpr const char* kKernelName = "weft::step::Sgd";
    static constexpr int kState = 0;
    Gradient gradient;
    Hyper lr;
    Plain(const Options& o, int64_t) : gradient(o.maximize, o.weight_decay), lr(o.lr) {}
    template <class V> WEFT_HD void operator()(V& p, const V& g, V*) const { p -= lr * gradient(p, g); }
  };

  /// buf = m buf + (1 - dampening) d, but buf = d at t = 1; p -= lr (nesterov ? d + m buf : buf). 20 bytes.
  struct Momentum {
    static constexpr const char* kKernelName = "weft::step::SgdMomentum";
    static constexpr int kState = 1;
    static constexpr const char* kStateNames[] = {"momentum_buffer"};
    Gradient gradient;
    Hyper lr, momentum, keep;
    bool nesterov;
    Momentum(const Options& o, int64_t t)
        : gradient(o.maximize, o.weight_decay),
          lr(o.lr),
          momentum(o.momentum),
          keep(t == 1 ? 1 : 1 - o.dampening),
          nesterov(o.nesterov) {}
    template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
      const V d = gradient(p, g);
      s[0] = momentum * s[0] + keep * d;
      p -= lr * (nesterov ? d + momentum * s[0] : s[0]);
    }
  };

  /// Without momentum and weight decay, only the gradient moves a parameter.
  static bool over_rows(const Options& o) { return o.momentum == 0 && o.weight_decay == 0; }
  /// With g = 0, d is decay p.
  static MissedStep missed(const Options& o, int64_t t) {
    if (o.momentum == 0) return {.pp = 1 - o.lr * o.weight_decay};
    const double m = o.momentum, enters = (t == 1 ? 1 : 1 - o.dampening) * o.weight_decay;
    const double from_d = o.nesterov ? o.weight_decay : 0, from_buf = o.nesterov ? m : 1;
    return {.pp = 1 - o.lr * (from_d + from_buf * enters), .ps = -o.lr * from_buf * m, .sp = enters, .ss = m};
  }
  using Functors = StepFunctors<Plain, Momentum>;
  static size_t functor(const Options& o) { return o.momentum == 0 ? 0 : 1; }
};

}  // namespace weft::optim
