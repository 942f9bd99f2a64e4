// Hyper-parameters that are NaN or infinite, groups that do not exist, undefined parameters: the errors name
// the optimizer or schedule and the option.
#include <cmath>

#include <weft/weft.h>

#include "../support/errors.h"

namespace weft {
namespace {

using namespace optim;
using test::error_of;
using test::has;

const double kBad[] = {std::nan(""), INFINITY, -INFINITY};

Tensor one_parameter() { return ones({1}).requires_grad_(); }

/// Every floating field of the rule's options refuses each bad number; Rprop's step_max may be infinite.
template <class Rule, class... Field> void refuses(Field... field) {
  const auto one = [](auto member) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(typename Rule::Options().*member)>, double>)
      for (const double bad : kBad) {
        typename Rule::Options options;
        options.*member = bad;
        const Tensor p = one_parameter();
        const std::string text = error_of<ValueError>([&] { Fused<Rule>({p}, options); });
        EXPECT_TRUE(has(text, str(Rule::kName, ": "))) << bad;
        Fused<Rule> good({p});
        EXPECT_THROW(good.set_options(0, options), ValueError);
      }
  };
  (one(field), ...);
}

TEST(BadNumbers, are_refused_by_every_optimizer) {
  refuses<SGDRule>(&SGDOptions::lr, &SGDOptions::momentum, &SGDOptions::dampening, &SGDOptions::weight_decay);
  refuses<QHMRule>(&QHMOptions::lr, &QHMOptions::momentum, &QHMOptions::nu, &QHMOptions::weight_decay);
  refuses<AdamRule>(&AdamOptions::lr, &AdamOptions::beta1, &AdamOptions::beta2, &AdamOptions::eps,
                    &AdamOptions::weight_decay);
  refuses<AdamWRule>(&AdamWOptions::lr, &AdamWOptions::beta1, &AdamWOptions::beta2, &AdamWOptions::eps,
                     &AdamWOptions::weight_decay);
  refuses<QHAdamRule>(&QHAdamOptions::lr, &QHAdamOptions::beta1, &QHAdamOptions::beta2, &QHAdamOptions::nu1,
                      &QHAdamOptions::nu2, &QHAdamOptions::eps, &QHAdamOptions::weight_decay);
  refuses<RMSpropRule>(&RMSpropOptions::lr, &RMSpropOptions::alpha, &RMSpropOptions::eps,
                       &RMSpropOptions::weight_decay, &RMSpropOptions::momentum);
  refuses<AdagradRule>(&AdagradOptions::lr, &AdagradOptions::lr_decay, &AdagradOptions::weight_decay,
                       &AdagradOptions::eps);
  refuses<AdadeltaRule>(&AdadeltaOptions::lr, &AdadeltaOptions::rho, &AdadeltaOptions::eps,
                        &AdadeltaOptions::weight_decay);
  refuses<AdamaxRule>(&AdamaxOptions::lr, &AdamaxOptions::beta1, &AdamaxOptions::beta2, &AdamaxOptions::eps,
                      &AdamaxOptions::weight_decay);
  refuses<SparseAdamRule>(&SparseAdamOptions::lr, &SparseAdamOptions::beta1, &SparseAdamOptions::beta2,
                          &SparseAdamOptions::eps);
  refuses<RpropRule>(&RpropOptions::lr, &RpropOptions::eta_minus, &RpropOptions::eta_plus,
                     &RpropOptions::step_min);
  const Tensor p = one_parameter();
  EXPECT_EQ(error_of<ValueError>([&] { SGD({p}, {.lr = INFINITY}); }), "SGD: lr must be finite, got inf");
  EXPECT_EQ(error_of<ValueError>([&] { Adam({p}, {.eps = INFINITY}); }), "Adam: eps must be finite, got inf");
  EXPECT_THROW(SGD({p}).set_lr(0, INFINITY), ValueError);
  EXPECT_EQ(error_of<ValueError>([&] { SGD({p}, {.lr = -1}); }), "SGD: lr must not be negative, got -1");
  EXPECT_NO_THROW(Rprop({p}, {.step_max = INFINITY}));
  EXPECT_THROW(Rprop({p}, {.step_max = std::nan("")}), ValueError);
}

TEST(BadNumbers, are_refused_by_every_schedule_by_name) {
  SGD sgd({one_parameter()}, {.lr = 2});
  for (const double bad : kBad) {
    const auto refused = [&](const std::string& option, auto make) {
      EXPECT_EQ(error_of<ValueError>(make), str(option, " must be finite, got ", bad));
      EXPECT_EQ(sgd.lr(), 2);
    };
    refused("StepLR: gamma", [&] { StepLR(rates(sgd), {.gamma = bad}); });
    refused("MultiStepLR: gamma", [&] { MultiStepLR(rates(sgd), {.milestones = {1}, .gamma = bad}); });
    refused("ExponentialLR: gamma", [&] { ExponentialLR(rates(sgd), bad); });
    refused("LinearLR: start_factor", [&] { LinearLR(rates(sgd), {.start_factor = bad}); });
    refused("LinearLR: end_factor", [&] { LinearLR(rates(sgd), {.end_factor = bad}); });
    refused("CosineLR: min_factor", [&] { CosineLR(rates(sgd), {.min_factor = bad}); });
    refused("WarmupLR: start_factor", [&] { WarmupLR(rates(sgd), {.start_factor = bad}); });
    refused("ReduceOnPlateau: threshold", [&] { ReduceOnPlateau(rates(sgd), {.threshold = bad}); });
    refused("ReduceOnPlateau: min_lr", [&] { ReduceOnPlateau(rates(sgd), {.min_lr = bad}); });
    refused("ReduceOnPlateau: eps", [&] { ReduceOnPlateau(rates(sgd), {.eps = bad}); });
    EXPECT_THROW(ReduceOnPlateau(rates(sgd), {.factor = bad}), ValueError);
    EXPECT_THROW(GradScaler({.init_scale = bad}), ValueError);
    EXPECT_THROW(GradScaler({.growth = bad}), ValueError);
    EXPECT_THROW(GradScaler({.backoff = bad}), ValueError);
  }
}

TEST(BadNumbers, an_infinite_limit_of_clipping_clips_nothing) {
  const Tensor p = one_parameter();
  p.set_grad(full({1}, 3.0));
  EXPECT_EQ(clip_grad_norm(std::vector<Tensor>{p}, INFINITY), 3);
  clip_grad_value(std::vector<Tensor>{p}, INFINITY);
  EXPECT_EQ(p.grad().item<float>(), 3);
}

TEST(BadNumbers, a_group_or_parameter_that_does_not_exist_is_an_index_error) {
  SGD sgd({one_parameter()}, {.lr = 2});
  const std::string text = "SGD: there is no group 3; it has 1 of them";
  EXPECT_EQ(error_of<IndexError>([&] { sgd.set_lr(3, 1); }), text);
  EXPECT_EQ(error_of<IndexError>([&] { sgd.lr(3); }), text);
  EXPECT_EQ(error_of<IndexError>([&] { sgd.options(3); }), text);
  EXPECT_EQ(error_of<IndexError>([&] { sgd.set_options(3, {}); }), text);
  EXPECT_EQ(error_of<IndexError>([&] { sgd.lr(static_cast<size_t>(-1)); }),
            "SGD: there is no group -1; it has 1 of them");
  EXPECT_EQ(error_of<IndexError>([&] { sgd.steps(1); }), "SGD: there is no parameter 1; it has 1 of them");
  const StepLR schedule(rates(sgd), {});
  EXPECT_EQ(error_of<IndexError>([&] { schedule.base(1); }),
            "schedule: there is no group 1; it has 1 of them");
  EXPECT_EQ(schedule.base(), 2);
}

TEST(BadNumbers, an_undefined_parameter_is_named) {
  const Tensor p = one_parameter();
  EXPECT_EQ(error_of<ValueError>([] { SGD({Tensor()}); }), "SGD: parameter 0 is undefined");
  EXPECT_EQ(error_of<ValueError>([&] { Adam({p, Tensor()}); }), "Adam: parameter 1 is undefined");
  EXPECT_EQ(error_of<ValueError>([] { RMSprop(std::vector<Tensor>()); }),
            "RMSprop: the parameter list is empty");
  SGD sgd({p});
  EXPECT_EQ(error_of<ValueError>([&] { sgd.add_group({{Tensor()}, {}}); }), "SGD: parameter 1 is undefined");
  EXPECT_EQ(sgd.groups(), 1u);
}

}  // namespace
}  // namespace weft
