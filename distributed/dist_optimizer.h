// DistributedOptimizer: one optimizer per worker that owns parameters, stepped together.
//
//   dist_optim::DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(parameter_rrefs, {.lr = 0.05});
//   ... context.backward({loss});
//   opt.clip_grad_norm(context.id(), 0.25);      // the norm over all owners, in the order of the list: the bits of a local clip
//   opt.step(context.id());                      // each owner steps its parameters with its own gradients of the context
//
// A rule of one's own (optim/optimizer.h) works after
//   WEFT_FIELDS(SignMomentum::Options, lr, momentum)   and   WEFT_OPTIMIZER_RULE(SignMomentum);
// in a header that all workers include, under a name of its own (kName): owners find the rule by it. Parameters become concurrent
// (autograd/parameter_lock.h): forward passes and steps of several trainers may overlap, each graph keeps the values it was built with. A
// parameter without a gradient in the context is left alone.
// Thread safety: steps of one optimizer are serialised at each owner; different optimizers run at once, there is no process-wide lock.
#pragma once

#include <typeinfo>

#include <weft/distributed/dist_autograd.h>
#include <weft/optim/optim.h>

namespace weft::dist_optim {

using rpc::RRef;

/// Makes the local optimizer of a rule from encoded options; found by the rule's name.
using Factory = std::unique_ptr<optim::Optimizer> (*)(const std::vector<Tensor>& params,
                                                      rpc::Decoder& options);
/// False when the name is taken by another rule: then neither can be used here. The same rule may come again.
WEFT_API bool register_rule(const char* name, const std::type_info& rule, Factory factory);
/// Throws: ValueError when owners would take another rule by that name: one of that name is registered here that is not `rule`, or two are.
WEFT_API void check_rule(const char* name, const std::type_info& rule);

/// The part of a DistributedOptimizer on one owner (its methods are called remotely).
class WEFT_API OwnerOptimizer {
 public:
  /// Throws: ValueError for an unknown rule or two of that name, bad options, or a reference that is not owned here.
  OwnerOptimizer(std::string rule, std::string options, std::vector<RRef<Tensor>> params);
  /// Throws: AutogradError for an unknown context.
  void step(int64_t context_id);
  /// Sum of |g|^p of each parameter, 0 without a gradient.
  std::vector<double> powers(int64_t context_id, double p) const;
  void scale(int64_t context_id, double factor);
  void set_lr(double lr) { optimizer_->set_lr(lr); }
  double lr() const { return optimizer_->lr(0); }
  optim::StateDict state() const { return optimizer_->state_dict(); }
  void load_state(optim::StateDict state) { optimizer_->load_state_dict(state); }

 private:
  std::vector<Tensor> gradients(int64_t context_id) const;
  std::vector<Tensor> params_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// Steps parameters on several owners. Copies share the remote state.
class WEFT_API DistributedOptimizer {
 public:
  /// What `make` below calls. An error of one owner is thrown when every owner has answered, as by step().
  DistributedOptimizer(const char* rule, std::string options, double lr,
                       const std::vector<RRef<Tensor>>& params);

  /// All owners at once; every one is attempted and awaited, also where another fails or is lost. Throws (as all below): the first error in the order
  /// of owners, with its type; with several owners its text names all that failed, and the others have stepped.
  void step(int64_t context_id);
  /// Scales all gradients of the context so that their total norm is at most max_norm; returns the norm before. Throws: ValueError for a negative
  /// max_norm or p <= 0, before any owner is asked.
  double clip_grad_norm(int64_t context_id, double max_norm, double p = 2);
  size_t groups() const { return 1; }
  double lr(size_t = 0) const { return lr_; }
  /// On all owners, done on return. Throws: ValueError for a negative rate.
  void set_lr(size_t, double lr) { set_lr(lr); }
  void set_lr(double lr);
  /// State of every owner in order of first appearance in the parameter list.
  std::vector<optim::StateDict> state_dict() const;
  void load_state_dict(const std::vector<optim::StateDict>& state);

 private:
  struct Owner {
    RRef<OwnerOptimizer> optimizer{};
    std::string name{};
    std::vector<size_t> at{};  // positions of its parameters in the list
  };
  template <class R, class Call> std::vector<R> on_all(const char* what, Call&& call) const;
  std::vector<Owner> owners_;
  size_t count_ = 0;
  double lr_ = 0;
};

/// An optimizer of a rule over parameters wherever they live. Throws: ValueError for an empty list, bad options, or a name that another rule has too;
/// errors of the owners.
template <class Rule>
DistributedOptimizer make(const std::vector<RRef<Tensor>>& params,
                          const typename Rule::Options& options = {}) {
  check_rule(Rule::kName, typeid(Rule));
  rpc::Message message;
  {
    rpc::Encoder out(message);
    out.put(options);
  }
  return DistributedOptimizer(Rule::kName, std::string(message.body()), options.lr, params);
}

namespace detail {
template <class Rule>
std::unique_ptr<optim::Optimizer> make_rule(const std::vector<Tensor>& params, rpc::Decoder& in) {
  return std::make_unique<optim::Fused<Rule>>(params, in.get<typename Rule::Options>());
}
}  // namespace detail

/// Lets owners make optimizers of a rule; its Options need WEFT_FIELDS.
#define WEFT_OPTIMIZER_RULE(Rule)                                                             \
  [[maybe_unused]] inline const bool weft_rule_of_##Rule = ::weft::dist_optim::register_rule( \
      Rule::kName, typeid(Rule), &::weft::dist_optim::detail::make_rule<Rule>)

}  // namespace weft::dist_optim

namespace weft::optim {
WEFT_FIELDS(SGDOptions, lr, momentum, dampening, weight_decay, nesterov, maximize)
WEFT_FIELDS(QHMOptions, lr, momentum, nu, weight_decay, weight_decay_type)
WEFT_FIELDS(AdamOptions, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize)
WEFT_FIELDS(AdamWOptions, lr, beta1, beta2, eps, weight_decay, amsgrad, maximize)
WEFT_FIELDS(QHAdamOptions, lr, beta1, beta2, nu1, nu2, eps, weight_decay, weight_decay_type)
WEFT_FIELDS(RMSpropOptions, lr, alpha, eps, weight_decay, momentum, centered, maximize)
WEFT_FIELDS(AdagradOptions, lr, lr_decay, weight_decay, eps, maximize)
WEFT_FIELDS(AdadeltaOptions, lr, rho, eps, weight_decay, maximize)
WEFT_FIELDS(AdamaxOptions, lr, beta1, beta2, eps, weight_decay, maximize)
WEFT_FIELDS(RpropOptions, lr, eta_minus, eta_plus, step_min, step_max, maximize)
}  // namespace weft::optim

namespace weft::dist_optim::detail {
/// The rules above and OwnerOptimizer are registered in dist_optimizer.cpp alone; this makes every program that includes the header link it.
WEFT_API bool built_in_rules_are_linked();
[[maybe_unused]] inline const bool weft_built_in_rules = built_in_rules_are_linked();
}  // namespace weft::dist_optim::detail
