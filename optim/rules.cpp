// Options to functors. Everything that depends on the step alone (bias corrections, decayed rates) is computed here in double.
#include <weft/optim/rules.h>

#include <cmath>

namespace weft::optim {
namespace {

template <class F> Variant builtin(std::vector<const char*> names) {
  return {step::builtin_kernel<F>(), sizeof(F), std::move(names)};
}

template <class F> void put(void* place, const F& functor) { new (place) F(functor); }

void not_negative(const char* rule, const char* what, double value) {
  if (!(value >= 0)) throw ValueError(str(rule, ": ", what, " must not be negative, got ", value));
}

void in_unit(const char* rule, const char* what, double value) {
  if (!(value >= 0 && value < 1)) throw ValueError(str(rule, ": ", what, " must be in [0, 1), got ", value));
}

void known(const char* rule, WeightDecay type) {
  if (type != WeightDecay::kGrad && type != WeightDecay::kDirect)
    throw ValueError(str(rule, ": unknown weight decay type ", static_cast<int>(type)));
}

double sign(bool maximize) { return maximize ? -1 : 1; }

template <class Options> void check_adam(const char* rule, const Options& o) {
  in_unit(rule, "beta1", o.beta1);
  in_unit(rule, "beta2", o.beta2);
  not_negative(rule, "eps", o.eps);
  not_negative(rule, "weight_decay", o.weight_decay);
}

Variant adam_variant(bool amsgrad) {
  if (amsgrad) return builtin<step::AdamAmsgrad>({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
  return builtin<step::Adam>({"exp_avg", "exp_avg_sq"});
}

template <class Options>
void construct_adam(void* place, const Options& o, int64_t t, double l2, double shrink) {
  const double n = static_cast<double>(t);
  const double rate = o.lr / (1 - std::pow(o.beta1, n)), root = std::sqrt(1 - std::pow(o.beta2, n));
  const step::Gradient gradient{sign(o.maximize), l2};
  if (o.amsgrad) put(place, step::AdamAmsgrad{gradient, rate, o.beta1, o.beta2, root, o.eps, shrink});
  else put(place, step::Adam{gradient, rate, o.beta1, o.beta2, root, o.eps, shrink});
}

}  // namespace

void SGDRule::check(const Options& o) {
  not_negative(kName, "momentum", o.momentum);
  not_negative(kName, "weight_decay", o.weight_decay);
  if (o.nesterov && !(o.momentum > 0 && o.dampening == 0))
    throw ValueError(
        str("SGD: nesterov needs momentum above 0 and no dampening, got ", o.momentum, " and ", o.dampening));
}
Variant SGDRule::variant(const Options& o) {
  return o.momentum == 0 ? builtin<step::Sgd>({}) : builtin<step::SgdMomentum>({"momentum_buffer"});
}
void SGDRule::construct(void* place, const Options& o, int64_t t) {
  const step::Gradient gradient{sign(o.maximize), o.weight_decay};
  if (o.momentum == 0) put(place, step::Sgd{gradient, o.lr});
  else put(place, step::SgdMomentum{gradient, o.lr, o.momentum, t == 1 ? 1 : 1 - o.dampening, o.nesterov});
}

WeightDecay weight_decay_type(const std::string& text) {
  if (text == "grad") return WeightDecay::kGrad;
  if (text == "direct") return WeightDecay::kDirect;
  throw ValueError("weight decay type must be 'grad' or 'direct', got '" + text + "'");
}

void QHMRule::check(const Options& o) {
  not_negative(kName, "momentum", o.momentum);
  not_negative(kName, "weight_decay", o.weight_decay);
  known(kName, o.weight_decay_type);
}
Variant QHMRule::variant(const Options&) { return builtin<step::Qhm>({"momentum_buffer"}); }
void QHMRule::construct(void* place, const Options& o, int64_t) {
  const bool direct = o.weight_decay_type == WeightDecay::kDirect;
  put(place,
      step::Qhm{
          {1, direct ? 0 : o.weight_decay}, o.lr, o.momentum, o.nu, direct ? 1 - o.lr * o.weight_decay : 1});
}

void AdamRule::check(const Options& o) { check_adam(kName, o); }
Variant AdamRule::variant(const Options& o) { return adam_variant(o.amsgrad); }
void AdamRule::construct(void* place, const Options& o, int64_t t) {
  construct_adam(place, o, t, o.weight_decay, 1);
}

void AdamWRule::check(const Options& o) { check_adam(kName, o); }
Variant AdamWRule::variant(const Options& o) { return adam_variant(o.amsgrad); }
void AdamWRule::construct(void* place, const Options& o, int64_t t) {
  construct_adam(place, o, t, 0, 1 - o.lr * o.weight_decay);
}

void QHAdamRule::check(const Options& o) {
  check_adam(kName, o);
  known(kName, o.weight_decay_type);
}
Variant QHAdamRule::variant(const Options&) { return builtin<step::QhAdam>({"exp_avg", "exp_avg_sq"}); }
void QHAdamRule::construct(void* place, const Options& o, int64_t t) {
  // The weight after t steps is 1 + b + ... + b^(t-1); its share of the past is 1 - 1 / weight.
  const auto past = [t](double b) {
    return b == 1 ? 1 - 1.0 / static_cast<double>(t)
                  : 1 - (1 - b) / (1 - std::pow(b, static_cast<double>(t)));
  };
  const bool direct = o.weight_decay_type == WeightDecay::kDirect;
  put(place, step::QhAdam{{1, direct ? 0 : o.weight_decay},
                          o.lr,
                          past(o.beta1),
                          past(o.beta2),
                          o.nu1,
                          o.nu2,
                          o.eps,
                          direct ? 1 - o.lr * o.weight_decay : 1});
}

void RMSpropRule::check(const Options& o) {
  not_negative(kName, "alpha", o.alpha);
  not_negative(kName, "eps", o.eps);
  not_negative(kName, "weight_decay", o.weight_decay);
  not_negative(kName, "momentum", o.momentum);
}
Variant RMSpropRule::variant(const Options&) {
  return builtin<step::RmsProp>({"square_avg", "momentum_buffer", "grad_avg"});
}
void RMSpropRule::construct(void* place, const Options& o, int64_t) {
  put(place, step::RmsProp{{sign(o.maximize), o.weight_decay}, o.lr, o.alpha, o.eps, o.momentum, o.centered});
}

void AdagradRule::check(const Options& o) {
  not_negative(kName, "lr_decay", o.lr_decay);
  not_negative(kName, "eps", o.eps);
  not_negative(kName, "weight_decay", o.weight_decay);
}
Variant AdagradRule::variant(const Options&) { return builtin<step::Adagrad>({"sum"}); }
void AdagradRule::construct(void* place, const Options& o, int64_t t) {
  put(place,
      step::Adagrad{
          {sign(o.maximize), o.weight_decay}, o.lr / (1 + static_cast<double>(t - 1) * o.lr_decay), o.eps});
}

void AdadeltaRule::check(const Options& o) {
  if (!(o.rho >= 0 && o.rho <= 1)) throw ValueError(str("Adadelta: rho must be in [0, 1], got ", o.rho));
  not_negative(kName, "eps", o.eps);
  not_negative(kName, "weight_decay", o.weight_decay);
}
Variant AdadeltaRule::variant(const Options&) { return builtin<step::Adadelta>({"square_avg", "acc_delta"}); }
void AdadeltaRule::construct(void* place, const Options& o, int64_t) {
  put(place, step::Adadelta{{sign(o.maximize), o.weight_decay}, o.lr, o.rho, o.eps});
}

void AdamaxRule::check(const Options& o) { check_adam(kName, o); }
Variant AdamaxRule::variant(const Options&) { return builtin<step::Adamax>({"exp_avg", "exp_inf"}); }
void AdamaxRule::construct(void* place, const Options& o, int64_t t) {
  const double rate = o.lr / (1 - std::pow(o.beta1, static_cast<double>(t)));
  put(place, step::Adamax{{sign(o.maximize), o.weight_decay}, rate, o.beta1, o.beta2, o.eps});
}

void RpropRule::check(const Options& o) {
  if (!(o.eta_minus > 0 && o.eta_minus < 1 && o.eta_plus > 1))
    throw ValueError(
        str("Rprop: needs 0 < eta_minus < 1 < eta_plus, got ", o.eta_minus, " and ", o.eta_plus));
  if (!(o.step_min >= 0 && o.step_min <= o.step_max))
    throw ValueError(str("Rprop: needs 0 <= step_min <= step_max, got ", o.step_min, " and ", o.step_max));
}
Variant RpropRule::variant(const Options&) { return builtin<step::Rprop>({"prev", "step_size"}); }
void RpropRule::construct(void* place, const Options& o, int64_t t) {
  put(place,
      step::Rprop{{sign(o.maximize), 0}, o.lr, o.eta_minus, o.eta_plus, o.step_min, o.step_max, t == 1});
}

namespace {
QHMOptions finite(const char* method, const QHMOptions& o) {
  if (!std::isfinite(o.lr) || !std::isfinite(o.momentum) || !std::isfinite(o.nu))
    throw ValueError(str(method, ": these values give lr ", o.lr, ", momentum ", o.momentum, ", nu ", o.nu));
  return o;
}
}  // namespace

QHMOptions qhm_from_pid(double kp, double ki, double kd) {
  return finite("qhm_from_pid", {.lr = ki, .momentum = kd / (kd - kp), .nu = kp * kp / (ki * kd)});
}

QHMOptions qhm_from_synthesized_nesterov(double alpha, double beta1, double beta2) {
  return finite("qhm_from_synthesized_nesterov",
                {.lr = alpha / (1 - beta1), .momentum = beta1, .nu = 1 - (1 - beta1) / beta1 * beta2});
}

QHMOptions qhm_from_robust_momentum(double l, double kappa, std::optional<double> rho) {
  const double r = rho ? *rho : 1 - 1 / std::sqrt(kappa), gap = (1 - r) * (1 - r) * (1 + r), cube = r * r * r;
  const double alpha = kappa * gap / l, beta1 = kappa * cube / (kappa - 1),
               beta2 = cube / ((kappa - 1) * gap);
  if (!std::isfinite(alpha) || !std::isfinite(beta1) || !std::isfinite(beta2))
    throw ValueError(str("qhm_from_robust_momentum: no setting for L ", l, ", kappa ", kappa, ", rho ", r));
  return qhm_from_synthesized_nesterov(alpha, beta1, beta2);
}

QHMOptions qhm_from_acc_sgd(double delta, double kappa, double xi, double eps) {
  return finite("qhm_from_acc_sgd", {.lr = delta * eps * (1 + xi) / (1 + eps),
                                     .momentum = (kappa - eps * eps * xi) / (kappa + eps * xi),
                                     .nu = (eps * xi - 1) / (eps * (1 + xi))});
}

}  // namespace weft::optim
