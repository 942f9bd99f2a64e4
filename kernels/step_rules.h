// The update rules that come with weft, each one screen: what is in the struct is what one tensor's step needs, precomputed by
// optim/rules.cpp in double. g is the gradient (with weight decay of the L2 kind added, its sign flipped when maximising), s the state.
// Sources: the papers named at each rule in optim/rules.h.
#pragma once

#include <weft/kernels/step.h>

namespace weft::step {

/// d = sign * g + decay * p.
struct Gradient {
  double sign = 1, decay = 0;
  template <class V> WEFT_HD V operator()(const V& p, const V& g) const {
    V d = g;
    if (sign < 0) d = -d;
    if (decay != 0) d += decay * p;
    return d;
  }
};

/// p -= lr d. 12 bytes per float element.
struct Sgd {
  static constexpr int kState = 0;
  Gradient gradient;
  double lr = 0;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V*) const { p -= lr * gradient(p, g); }
};

/// buf = m buf + (1 - dampening) d, the first time buf = d; p -= lr (nesterov ? d + m buf : buf). 20 bytes.
struct SgdMomentum {
  static constexpr int kState = 1;
  Gradient gradient;
  double lr = 0, momentum = 0, keep = 1;  // keep = 1 - dampening, 1 on the first step
  bool nesterov = false;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = momentum * s[0] + keep * d;
    p -= lr * (nesterov ? d + momentum * s[0] : s[0]);
  }
};

/// buf = b buf + (1 - b) d; p -= lr ((1 - nu) d + nu buf), after p *= shrink for decay of the direct kind. 20 bytes.
struct Qhm {
  static constexpr int kState = 1;
  Gradient gradient;
  double lr = 0, momentum = 0, nu = 0, shrink = 1;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    if (shrink != 1) p *= shrink;
    s[0] = momentum * s[0] + (1 - momentum) * d;
    p -= lr * ((1 - nu) * d + nu * s[0]);
  }
};

/// m, v averages; p -= rate m / (sqrt(v) / root + eps), rate = lr / (1 - b1^t), root = sqrt(1 - b2^t). 28 bytes.
/// kMax: the largest v so far stands under the root. 36 bytes.
template <bool kMax> struct AdamStep {
  static constexpr int kState = kMax ? 3 : 2;
  Gradient gradient;
  double rate = 0, beta1 = 0, beta2 = 0, root = 1, eps = 0, shrink = 1;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    if (shrink != 1) p *= shrink;
    s[0] = beta1 * s[0] + (1 - beta1) * d;
    s[1] = beta2 * s[1] + (1 - beta2) * (d * d);
    if constexpr (kMax) s[2] = max(s[2], s[1]);
    p -= rate * s[0] / (sqrt(s[kState - 1]) / root + eps);
  }
};
using Adam = AdamStep<false>;
using AdamAmsgrad = AdamStep<true>;

/// Averages with the step's own weights a1, a2; p -= lr ((1-nu1) d + nu1 m) / (sqrt((1-nu2) d^2 + nu2 v) + eps). 28 bytes.
struct QhAdam {
  static constexpr int kState = 2;
  Gradient gradient;
  double lr = 0, a1 = 0, a2 = 0, nu1 = 1, nu2 = 1, eps = 0, shrink = 1;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    if (shrink != 1) p *= shrink;
    const V square = d * d;
    s[0] = a1 * s[0] + (1 - a1) * d;
    s[1] = a2 * s[1] + (1 - a2) * square;
    p -= lr * ((1 - nu1) * d + nu1 * s[0]) / (sqrt((1 - nu2) * square + nu2 * s[1]) + eps);
  }
};

/// s0 = a s0 + (1-a) d^2; s1 momentum; s2 mean when centred; p -= lr buf.
struct RmsProp {
  static constexpr int kState = 3;
  Gradient gradient;
  double lr = 0, alpha = 0, eps = 0, momentum = 0;
  bool centered = false;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = alpha * s[0] + (1 - alpha) * (d * d);
    V spread = s[0];
    if (centered) {
      s[2] = alpha * s[2] + (1 - alpha) * d;
      spread = max(spread - s[2] * s[2], V(0.0));
    }
    s[1] = momentum * s[1] + d / (sqrt(spread) + eps);
    p -= lr * s[1];
  }
};

/// sum += d^2; p -= rate d / (sqrt(sum) + eps). 20 bytes.
struct Adagrad {
  static constexpr int kState = 1;
  Gradient gradient;
  double rate = 0, eps = 0;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] += d * d;
    p -= rate * d / (sqrt(s[0]) + eps);
  }
};

/// a, b averages of d^2 and of the squared changes; change = sqrt(b + eps) / sqrt(a + eps) d with b as it was; p -= lr change. 28 bytes.
struct Adadelta {
  static constexpr int kState = 2;
  Gradient gradient;
  double lr = 0, rho = 0, eps = 0;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = rho * s[0] + (1 - rho) * (d * d);
    const V change = sqrt(s[1] + eps) / sqrt(s[0] + eps) * d;
    s[1] = rho * s[1] + (1 - rho) * (change * change);
    p -= lr * change;
  }
};

/// m average; u = max(b2 u, |d| + eps); p -= rate m / u, rate = lr / (1 - b1^t). 28 bytes.
struct Adamax {
  static constexpr int kState = 2;
  Gradient gradient;
  double rate = 0, beta1 = 0, beta2 = 0, eps = 0;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g);
    s[0] = beta1 * s[0] + (1 - beta1) * d;
    s[1] = max(beta2 * s[1], abs(d) + eps);
    p -= rate * s[0] / s[1];
  }
};

/// s0 the gradient before, s1 the length of an element's step, `start` the first time: it grows by `up` while the gradient keeps its sign
/// and shrinks by `down` when that turns; p -= length sign(d), but not where the sign has just turned: there s0 becomes 0. 28 bytes.
struct Rprop {
  static constexpr int kState = 2;
  Gradient gradient;
  double start = 0, down = 1, up = 1, least = 0, most = 0;
  bool first = false;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* s) const {
    const V d = gradient(p, g), agreement = d * s[0];
    const auto turned = agreement < 0;
    if (first) s[1] = V(start);
    s[1] = min(max(s[1] * select(agreement > 0, V(up), select(turned, V(down), V(1))), V(least)), V(most));
    s[0] = select(turned, V(0), d);
    p -= select(s[0] > 0, s[1], select(s[0] < 0, -s[1], V(0)));
  }
};

/// The kernel of a built-in rule; it picks the instruction set at each call.
template <class Rule> StepKernel builtin_kernel();
#define WEFT_STEP_RULES(X)                                                                           \
  X(Sgd)                                                                                             \
  X(SgdMomentum) X(Qhm) X(Adam) X(AdamAmsgrad) X(QhAdam) X(RmsProp) X(Adagrad) X(Adadelta) X(Adamax) \
      X(Rprop)
#define WEFT_DECLARE_RULE(Rule) template <> WEFT_API StepKernel builtin_kernel<Rule>();
WEFT_STEP_RULES(WEFT_DECLARE_RULE)
#undef WEFT_DECLARE_RULE

}  // namespace weft::step
