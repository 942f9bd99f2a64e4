// The options of QHM that reproduce other methods. Source: Ma & Yarats 2019, section 4.
// Throws: ValueError if the formula gives a number that is not finite.
#pragma once

#include <optional>

#include <weft/optim/rules/qhm.h>

namespace weft::optim {

/// PID control with gains kp, ki, kd.
WEFT_API QHMOptions qhm_from_pid(double kp, double ki, double kd);
/// Synthesized Nesterov variants. Source: Lessard, Recht & Packard 2016, section 6.
WEFT_API QHMOptions qhm_from_synthesized_nesterov(double alpha, double beta1, double beta2);
/// Robust momentum for an L-smooth function of condition number kappa. rho lies between 1 - 1 / sqrt(kappa)
/// (fast, the default) and 1 - 1 / kappa (robust). Source: Cyrus, Hu, Van Scoy & Lessard 2018.
WEFT_API QHMOptions qhm_from_robust_momentum(double l, double kappa, std::optional<double> rho = {});
/// Accelerated SGD. Source: Jain et al. 2018, with delta, kappa, xi, eps.
WEFT_API QHMOptions qhm_from_acc_sgd(double delta, double kappa, double xi, double eps = 0.7);

}  // namespace weft::optim
