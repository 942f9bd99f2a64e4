// The optimizers that come with weft: options, and how a step's functor (kernels/step_rules.h) is made from them. State names are
// PyTorch's. Every option has a default; lr is in units of the parameter per gradient.
#pragma once

#include <optional>

#include <weft/kernels/step_rules.h>
#include <weft/optim/optimizer.h>

namespace weft::optim {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
/// Stochastic gradient descent. Source: Robbins & Monro 1951; momentum: Polyak 1964, the form of Sutskever et al. 2013.
struct WEFT_API SGDRule {
  using Options = SGDOptions;
  static constexpr const char* kName = "SGD";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

enum class WeightDecay : uint8_t {
  kGrad,    ///< L2: added to the gradient
  kDirect,  ///< decoupled: the parameter shrinks by lr * weight_decay before the update
};
/// From "grad" or "direct". Throws: ValueError for another word.
WEFT_API WeightDecay weight_decay_type(const std::string& text);

struct QHMOptions {
  double lr = 1e-3, momentum = 0.999, nu = 0.7, weight_decay = 0;
  WeightDecay weight_decay_type = WeightDecay::kGrad;
};
/// Quasi-hyperbolic momentum. Source: Ma & Yarats 2019, algorithm 1; nu = 0 is SGD, nu = 1 dampened momentum.
struct WEFT_API QHMRule {
  using Options = QHMOptions;
  static constexpr const char* kName = "QHM";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false;
};
/// Source: Kingma & Ba 2015, algorithm 1; amsgrad: Reddi et al. 2018.
struct WEFT_API AdamRule {
  using Options = AdamOptions;
  static constexpr const char* kName = "Adam";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;
};
/// Adam with decoupled weight decay. Source: Loshchilov & Hutter 2019.
struct WEFT_API AdamWRule {
  using Options = AdamWOptions;
  static constexpr const char* kName = "AdamW";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct QHAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, nu1 = 1, nu2 = 1, eps = 1e-8, weight_decay = 0;
  WeightDecay weight_decay_type = WeightDecay::kGrad;
};
/// Source: Ma & Yarats 2019, section 4.
struct WEFT_API QHAdamRule {
  using Options = QHAdamOptions;
  static constexpr const char* kName = "QHAdam";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
};
/// Source: Tieleman & Hinton 2012; centred form: Graves 2013.
struct WEFT_API RMSpropRule {
  using Options = RMSpropOptions;
  static constexpr const char* kName = "RMSprop";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, eps = 1e-10;
  bool maximize = false;
};
/// Source: Duchi, Hazan & Singer 2011.
struct WEFT_API AdagradRule {
  using Options = AdagradOptions;
  static constexpr const char* kName = "Adagrad";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
};
/// Source: Zeiler 2012, algorithm 1, its change times lr.
struct WEFT_API AdadeltaRule {
  using Options = AdadeltaOptions;
  static constexpr const char* kName = "Adadelta";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct AdamaxOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
};
/// Adam with the largest gradient so far, fading, in place of the root. Source: Kingma & Ba 2015, algorithm 2.
struct WEFT_API AdamaxRule {
  using Options = AdamaxOptions;
  static constexpr const char* kName = "Adamax";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

struct RpropOptions {
  double lr = 1e-2;  ///< the length of the first step, in units of the parameter; not used later
  double eta_minus = 0.5, eta_plus = 1.2, step_min = 1e-6, step_max = 50;
  bool maximize = false;
};
/// Each element's step has a length of its own, and only the gradient's sign counts: for gradients of the whole data set.
/// Source: Riedmiller & Braun 1993, without weight backtracking.
struct WEFT_API RpropRule {
  using Options = RpropOptions;
  static constexpr const char* kName = "Rprop";
  static void check(const Options&);
  static Variant variant(const Options&);
  static void construct(void*, const Options&, int64_t t);
};

using SGD = Fused<SGDRule>;
using QHM = Fused<QHMRule>;
using Adam = Fused<AdamRule>;
using AdamW = Fused<AdamWRule>;
using QHAdam = Fused<QHAdamRule>;
using RMSprop = Fused<RMSpropRule>;
using Adagrad = Fused<AdagradRule>;
using Adadelta = Fused<AdadeltaRule>;
using Adamax = Fused<AdamaxRule>;
using Rprop = Fused<RpropRule>;

// Settings of other methods written as QHM. Source: Ma & Yarats 2019, section 4. Throws: ValueError where the formula gives no finite setting.
/// PID control with gains kp, ki, kd.
WEFT_API QHMOptions qhm_from_pid(double kp, double ki, double kd);
/// Synthesized Nesterov variants. Source: Lessard, Recht & Packard 2016, section 6.
WEFT_API QHMOptions qhm_from_synthesized_nesterov(double alpha, double beta1, double beta2);
/// Robust momentum for an L-smooth function of condition number kappa, rho between 1 - 1 / sqrt(kappa) (fast, the default) and
/// 1 - 1 / kappa (robust). Source: Cyrus, Hu, Van Scoy & Lessard 2018.
WEFT_API QHMOptions qhm_from_robust_momentum(double l, double kappa, std::optional<double> rho = {});
/// Accelerated SGD. Source: Jain et al. 2018, with delta, kappa, xi, eps.
WEFT_API QHMOptions qhm_from_acc_sgd(double delta, double kappa, double xi, double eps = 0.7);

}  // namespace weft::optim
