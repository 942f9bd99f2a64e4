// Rows for optimizers over several steps, schedules and clipping. The request's tensors are the parameters
// and their gradients of each step; an undefined tensor is an absent gradient. The outputs are the parameters
// after the last step.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

template <class O, class Options>
Outputs steps(const Options& options, const std::vector<Tensor>& params, const std::vector<Tensor>& grads) {
  std::vector<Tensor> own;
  for (const Tensor& p : params) own.push_back(p.detach().requires_grad_());
  O optimizer(own, options);
  for (size_t at = 0; at + own.size() <= grads.size(); at += own.size())
    optimizer.step(std::span(grads).subspan(at, own.size()));
  Outputs after;
  for (const Tensor& p : own) after.push_back(p.detach());
  return after;
}

using List = std::vector<Tensor>;

void add_optimizers(Rows& rows) {
  row(rows, "optim.SGD",
      [](double lr, double momentum, double dampening, double decay, bool nesterov, bool maximize, List p,
         List g) {
        return steps<optim::SGD>(optim::SGDOptions{lr, momentum, dampening, decay, nesterov, maximize}, p, g);
      });
  row(rows, "optim.Adam",
      [](double lr, double b1, double b2, double eps, double decay, bool amsgrad, bool maximize, List p,
         List g) {
        return steps<optim::Adam>(optim::AdamOptions{lr, b1, b2, eps, decay, amsgrad, maximize}, p, g);
      });
  row(rows, "optim.AdamW",
      [](double lr, double b1, double b2, double eps, double decay, bool amsgrad, bool maximize, List p,
         List g) {
        return steps<optim::AdamW>(optim::AdamWOptions{lr, b1, b2, eps, decay, amsgrad, maximize}, p, g);
      });
  row(rows, "optim.RMSprop",
      [](double lr, double alpha, double eps, double decay, double momentum, bool centered, bool maximize,
         List p, List g) {
        return steps<optim::RMSprop>(
            optim::RMSpropOptions{lr, alpha, eps, decay, momentum, centered, maximize}, p, g);
      });
  row(rows, "optim.Adagrad",
      [](double lr, double lr_decay, double decay, double eps, bool maximize, List p, List g) {
        return steps<optim::Adagrad>(optim::AdagradOptions{lr, lr_decay, decay, eps, maximize}, p, g);
      });
  row(rows, "optim.Adadelta",
      [](double lr, double rho, double eps, double decay, bool maximize, List p, List g) {
        return steps<optim::Adadelta>(optim::AdadeltaOptions{lr, rho, eps, decay, maximize}, p, g);
      });
  row(rows, "optim.Adamax",
      [](double lr, double b1, double b2, double eps, double decay, bool maximize, List p, List g) {
        return steps<optim::Adamax>(optim::AdamaxOptions{lr, b1, b2, eps, decay, maximize}, p, g);
      });
  row(rows, "optim.Rprop",
      [](double lr, double minus, double plus, double low, double high, bool maximize, List p, List g) {
        return steps<optim::Rprop>(optim::RpropOptions{lr, minus, plus, low, high, maximize}, p, g);
      });
  row(rows, "optim.SparseAdam",
      [](double lr, double b1, double b2, double eps, bool maximize, List p, List g) {
        return steps<optim::SparseAdam>(optim::SparseAdamOptions{lr, b1, b2, eps, maximize}, p, g);
      });
  row(rows, "optim.QHM",
      [](double lr, double momentum, double nu, double decay, bool direct, List p, List g) {
        const auto type = direct ? optim::WeightDecay::kDirect : optim::WeightDecay::kGrad;
        return steps<optim::QHM>(optim::QHMOptions{lr, momentum, nu, decay, type}, p, g);
      });
  row(rows, "optim.QHAdam",
      [](double lr, double b1, double b2, double nu1, double nu2, double eps, double decay, List p, List g) {
        return steps<optim::QHAdam>(optim::QHAdamOptions{lr, b1, b2, nu1, nu2, eps, decay}, p, g);
      });
}

/// The learning rate before and after each of `count` steps of a schedule over one SGD.
template <class F> std::vector<double> rates_of(double lr, int64_t count, F make) {
  optim::SGD sgd({zeros({1}, {.requires_grad = true})}, {.lr = lr});
  auto schedule = make(optim::rates(sgd));
  std::vector<double> seen{sgd.lr()};
  for (int64_t i = 0; i < count; ++i) {
    schedule.step();
    seen.push_back(sgd.lr());
  }
  return seen;
}

void add_schedules(Rows& rows) {
  row(rows, "schedule.StepLR", [](double lr, int64_t count, int64_t size, double gamma) {
    return rates_of(lr, count, [&](optim::Rates r) { return optim::StepLR(std::move(r), {size, gamma}); });
  });
  row(rows, "schedule.MultiStepLR", [](double lr, int64_t count, Shape milestones, double gamma) {
    const optim::MultiStepLROptions options{{milestones.begin(), milestones.end()}, gamma};
    return rates_of(lr, count, [&](optim::Rates r) { return optim::MultiStepLR(std::move(r), options); });
  });
  row(rows, "schedule.ExponentialLR", [](double lr, int64_t count, double gamma) {
    return rates_of(lr, count, [&](optim::Rates r) { return optim::ExponentialLR(std::move(r), gamma); });
  });
  row(rows, "schedule.LinearLR", [](double lr, int64_t count, double start, double end, int64_t total) {
    return rates_of(lr, count, [&](optim::Rates r) {
      return optim::LinearLR(std::move(r), {start, end, total});
    });
  });
  row(rows, "schedule.SequentialLR", [](double lr, int64_t count, double start, int64_t total, double gamma) {
    const optim::SequentialLROptions options{
        .factors = {optim::linear_factor({start, 1, total}), optim::exponential_factor(gamma)},
        .milestones = {total}};
    return rates_of(lr, count, [&](optim::Rates r) { return optim::SequentialLR(std::move(r), options); });
  });
  row(rows, "schedule.CosineLR", [](double lr, int64_t count, int64_t t_max, double min_factor) {
    return rates_of(lr, count, [&](optim::Rates r) {
      return optim::CosineLR(std::move(r), {t_max, min_factor});
    });
  });
  row(rows, "schedule.WarmupLR",
      [](double lr, int64_t count, int64_t rise, double start, bool decays, double gamma) {
        return rates_of(lr, count, [&](optim::Rates r) {
          const optim::WarmupLROptions options{rise, start,
                                               decays ? optim::exponential_factor(gamma) : optim::Factor()};
          return optim::WarmupLR(std::move(r), options);
        });
      });
  row(rows, "schedule.ReduceOnPlateau",
      [](double lr, Tensor metrics, bool maximize, double factor, int64_t patience, double threshold,
         bool absolute, int64_t cooldown, double min_lr) {
        optim::SGD sgd({zeros({1}, {.requires_grad = true})}, {.lr = lr});
        optim::ReduceOnPlateau plateau(optim::rates(sgd), {.maximize = maximize,
                                                           .factor = factor,
                                                           .patience = patience,
                                                           .threshold = threshold,
                                                           .threshold_absolute = absolute,
                                                           .cooldown = cooldown,
                                                           .min_lr = min_lr});
        std::vector<double> seen;
        for (const double metric : metrics.to_vector<double>()) {
          plateau.step(metric);
          seen.push_back(sgd.lr());
        }
        return seen;
      });
}

/// Makes one parameter for each gradient, and sets its grad.
List params_with(const List& grads) {
  List params;
  for (const Tensor& g : grads) {
    Tensor p = zeros_like(g);
    p.requires_grad_().set_grad(g.clone());
    params.push_back(p);
  }
  return params;
}

void add_clipping(Rows& rows) {
  row(rows, "clip_grad_norm", [](List grads, double max_norm, double p, bool strict) {
    const List params = params_with(grads);
    Outputs out{scalar_tensor(optim::clip_grad_norm(params, max_norm, p, strict), {.dtype = kFloat64})};
    for (const Tensor& x : params) out.push_back(x.grad());
    return out;
  });
  row(rows, "clip_grad_value", [](List grads, double limit) {
    const List params = params_with(grads);
    optim::clip_grad_value(params, limit);
    Outputs out;
    for (const Tensor& x : params) out.push_back(x.grad());
    return out;
  });
}

}  // namespace

void add_training(Rows& rows) {
  add_optimizers(rows);
  add_schedules(rows);
  add_clipping(rows);
}

}  // namespace weft::test
