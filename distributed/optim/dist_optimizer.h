// DistributedOptimizer: one local optimizer on each worker that owns parameters, stepped together.
//
//   dist_optim::DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(parameter_rrefs, {.lr = 0.05});
//   ... context.backward({loss});
//   opt.clip_grad_norm(context.id(), 0.25);   // over all owners, bit for bit like a local clip
//   opt.step(context.id());                   // each owner steps its parameters with its own gradients
//
// A user's update rule is registered by WEFT_OPTIMIZER_RULE (owner_optimizer.h). dist_checkpoint.h saves an
// optimizer with its parameters.
// Parameters become concurrent (autograd/tape/inner/parameter_lock.h): forward passes and steps of several
// trainers may overlap, and each graph keeps the parameter values it was built with. A step skips parameters
// without a gradient in the context. Every member that calls the owners blocks until all have answered or the
// default timeout. Thread safety: several threads may call step of one optimizer; each owner serialises the
// steps. Use its other members from one thread. Different optimizers run concurrently, without a global lock.
#pragma once

#include <weft/distributed/optim/owner_optimizer.h>

namespace weft::dist_optim {

/// An optimizer of parameters on several owners. Copies share the remote state.
class WEFT_API DistributedOptimizer {
 public:
  /// One owner of parameters, in the order of the owners' first parameters in the list.
  struct Owner {
    RRef<OwnerOptimizer> optimizer{};
    std::string name{};
    std::vector<size_t> at{};  ///< positions of its parameters in the list
  };

  /// Called by `make` below. Throws the error of an owner when every owner has answered, as step() does.
  DistributedOptimizer(const char* rule, std::string options, double lr,
                       const std::vector<RRef<Tensor>>& params);

  /// Steps all owners concurrently with the gradients of the context, and waits for each, even when one fails
  /// or is lost. Throws (as all below): the first error in the order of owners, with its type. With several
  /// owners its text names all that failed; the others have stepped.
  void step(int64_t context_id);
  /// Scales all gradients of the context so that their total p-norm is at most max_norm. Returns the norm
  /// before the scaling. Throws: ValueError for a negative max_norm or p <= 0, before it calls any owner.
  double clip_grad_norm(int64_t context_id, double max_norm, double p = 2);
  size_t groups() const { return 1; }
  double lr(size_t = 0) const { return lr_; }
  /// Sets the learning rate on all owners; done on return. Throws: ValueError for a negative rate.
  void set_lr(size_t, double lr) { set_lr(lr); }
  void set_lr(double lr);
  /// The state of every owner, in the order of the owners' first parameters in the list.
  std::vector<optim::StateDict> state_dict() const;
  /// Loads the states of state_dict. Throws: ValueError for another number of owners; as
  /// Optimizer::load_state_dict.
  void load_state_dict(const std::vector<optim::StateDict>& state);

  /// Asks the owners for the rates, which something else than this object may have set.
  void fetch_rates();
  const std::vector<Owner>& owners() const { return owners_; }

 private:
  std::vector<Owner> owners_;
  size_t count_ = 0;
  double lr_ = 0;
};

/// Makes an optimizer of a rule over parameters on any workers. Throws: ValueError for an empty list, bad
/// options, or a rule name that is not unique; errors of the owners.
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

/// Registers a rule, so that owners can make its optimizer. Its Options need WEFT_FIELDS.
#define WEFT_OPTIMIZER_RULE(Rule)                                                             \
  [[maybe_unused]] inline const bool weft_rule_of_##Rule = ::weft::dist_optim::register_rule( \
      Rule::kName, typeid(Rule), &::weft::dist_optim::detail::make_rule<Rule>)

}  // namespace weft::dist_optim

namespace weft::optim {
#define WEFT_RULE_FIELDS(Name, ...) WEFT_FIELDS(Name##Options, __VA_ARGS__)
WEFT_OPTIMIZER_RULES(WEFT_RULE_FIELDS)
#undef WEFT_RULE_FIELDS
}  // namespace weft::optim

namespace weft::dist_optim::detail {
/// Only dist_optimizer.cpp registers the rules above and OwnerOptimizer. This call makes every program that
/// includes the header link that file.
WEFT_API bool built_in_rules_are_linked();
[[maybe_unused]] inline const bool weft_built_in_rules = built_in_rules_are_linked();
}  // namespace weft::dist_optim::detail
