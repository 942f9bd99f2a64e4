// An optimizer rule that is not weft's own, as a user would write one: a step along the sign of a running
// mean. user_rule.cu has its CUDA form.
#pragma once

#include <weft/optim/optim.h>

namespace weft::test {

struct SignMomentum {
  struct Options {
    double lr = 0.01, momentum = 0.9, weight_decay = 0;
  };
  static constexpr const char* kName = "SignMomentum";
  static constexpr int kState = 1;
  double lr, momentum, shrink;
  SignMomentum(const Options& o, int64_t)
      : lr(o.lr), momentum(o.momentum), shrink(1 - o.lr * o.weight_decay) {}
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* state) const {
    state[0] = momentum * state[0] + (1 - momentum) * g;
    const V sign = select(state[0] > 0, V(1), select(state[0] < 0, V(-1), V(0)));
    p = shrink * p - lr * sign * min(sqrt(abs(state[0])), V(1));
  }
};

}  // namespace weft::test
