// The parameters of each method as lr, momentum and nu of QHM. A formula without a finite result throws and
// names the method.
#include <weft/optim/qhm_settings.h>

#include <cmath>

namespace weft::optim {

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
