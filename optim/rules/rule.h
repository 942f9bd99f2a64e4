// Shared parts of the built-in update rules. Each rule is one file of this folder, with its options and the
// rule (optim/optimizer.h). The rule's constructor precomputes the numbers of a step in double. In the
// formulas p is the parameter, g its gradient and d = sign * g + decay * p. The number of the step from 1 is
// t, and s the state, which has PyTorch's names. "28 bytes" is the memory traffic per float32 element and
// step.
//
// Common options, all with defaults: lr >= 0 is the learning rate, in units of the parameter per unit of the
// gradient. weight_decay >= 0 is the L2 factor. maximize makes a step ascend. master_weights allows
// parameters of a half type (optim/optimizer.h). A kKernelName begins with weft::, so a rule of the user may
// have the same kName. The numbers of a formula are members of type Hyper, and so is 1 - beta where a formula
// uses it often.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <weft/kernels/error.h>
#include <weft/kernels/macros.h>
#include <weft/kernels/step_functor.h>
#include <weft/optim/rules/missed_step.h>

namespace weft::optim {

/// d of the formulas: the gradient, negated to maximise, plus L2 weight decay.
struct Gradient {
  bool negated, decays;
  Hyper decay;
  Gradient(bool maximize, double l2) : negated(maximize), decays(l2 != 0), decay(l2) {}
  template <class V> WEFT_HD V operator()(const V& p, const V& g) const {
    V d = g;
    if (negated) d = -d;
    if (decays) d += decay * p;
    return d;
  }
};

/// Decoupled weight decay: p times a factor.
struct Shrink {
  bool acts;
  Hyper factor;
  explicit Shrink(double by) : acts(by != 1), factor(by) {}
  template <class V> WEFT_HD void operator()(V& p) const {
    if (acts) p *= factor;
  }
};

/// The form of weight decay.
enum class WeightDecay : uint8_t {
  kGrad,    ///< L2: added to the gradient
  kDirect,  ///< decoupled: the parameter shrinks by lr * weight_decay before the update
};
/// The type for "grad" or "direct". Throws: ValueError for other text.
WEFT_API WeightDecay weight_decay_type(const std::string& text);

// Checks of options. Throws: ValueError that names the rule, the option and the value.
namespace detail {

inline void finite(const char* rule, const char* option, double value) {
  if (!std::isfinite(value)) throw ValueError(str(rule, ": ", option, " must be finite, got ", value));
}

inline void not_negative(const char* rule, const char* option, double value) {
  finite(rule, option, value);
  if (value < 0) throw ValueError(str(rule, ": ", option, " must not be negative, got ", value));
}

inline void in_unit(const char* rule, const char* option, double value) {
  if (!(value >= 0 && value < 1))
    throw ValueError(str(rule, ": ", option, " must be in [0, 1), got ", value));
}

inline void known(const char* rule, WeightDecay type) {
  if (type != WeightDecay::kGrad && type != WeightDecay::kDirect)
    throw ValueError(str(rule, ": unknown weight decay type ", static_cast<int>(type)));
}

/// Checks the options of rules with two averages.
template <class Options> void check_averages(const char* rule, const Options& o) {
  in_unit(rule, "beta1", o.beta1);
  in_unit(rule, "beta2", o.beta2);
  not_negative(rule, "eps", o.eps);
  not_negative(rule, "weight_decay", o.weight_decay);
}

}  // namespace detail

}  // namespace weft::optim
