// DistributedOptimizer: one local optimizer on each worker that owns parameters, stepped together.
//
//   dist_optim::DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(parameter_rrefs, {.lr = 0.05});
//   ... context.backward({loss});
//   opt.clip_grad_norm(context.id(), 0.25);   // over all owners, bit for bit like a local clip
//   opt.step(context.id());                   // each owner steps its parameters with its own gradients
//   optim::StepLR schedule(optim::rates(opt), {.step_size = 30});      // sets the rates on all owners
//
// A user's update rule is registered by WEFT_OPTIMIZER_RULE (owner_optimizer.h). dist_checkpoint.h saves an
// optimizer with its parameters.
// Parameters become concurrent (autograd/tape/concurrent_parameter.h) once all owners have accepted their
// parameters. Forward passes and steps of several trainers may overlap, and each graph keeps the parameter
// values it was built with. A step skips parameters without a gradient in the context. Every member that
// calls the owners blocks until all have answered, at most for the default timeout. Thread safety: several
// threads may call step of one optimizer; each owner serialises the steps. Use its other members from one
// thread. Different optimizers run concurrently, without a global lock.
#pragma once

#include <weft/distributed/launch/store.h>
#include <weft/distributed/optim/owner_optimizer.h>

namespace weft::dist_optim {

/// An optimizer of parameters on several owners. Copies share the remote state.
class WEFT_API DistributedOptimizer {
 public:
  /// One owner of parameters, in the order of the owners' first parameters in the list.
  struct Owner {
    RRef<OwnerOptimizer> optimizer{};
    std::string name{};
    std::vector<size_t> at{};      ///< positions of its parameters in the list
    std::vector<size_t> groups{};  ///< the groups with parameters there, in order
  };
  /// A group of parameters with encoded options.
  struct EncodedGroup {
    std::vector<RRef<Tensor>> params;
    std::string options;
    double lr = 0;
  };

  /// Called by `make` below. Throws an owner's error once every owner has answered, as step() does;
  /// ValueError for an empty group. When an owner refuses, no parameter is marked. An owner that is lost
  /// after it has accepted may leave the others marked.
  DistributedOptimizer(const char* rule, const std::vector<EncodedGroup>& groups,
                       const StepOptions& how = {});
  DistributedOptimizer(const char* rule, std::string options, double lr,
                       const std::vector<RRef<Tensor>>& params)
      : DistributedOptimizer(rule, {EncodedGroup{params, std::move(options), lr}}) {}

  /// Steps all owners concurrently with the gradients of the context, and waits for each, even if an owner
  /// fails or is lost. Throws (as all below): the first error in the order of owners, with its type. With
  /// several owners its text names all owners that failed; the others have stepped. In two phases no owner
  /// has stepped, unless the error is of the commit. StaleStep: an owner refused gradients of parameters
  /// older than StepOptions::max_staleness; without two phases each owner decides by itself. With
  /// StepOptions::wait also Timeout that names the awaited workers, and PeerLost for the loss of one of them.
  void step(int64_t context_id);
  /// Resends decisions that an owner did not acknowledge; a step in two phases begins with this.
  /// Throws: the error of an owner that does not answer.
  void settle();
  /// Two phases: ends a step that a lost caller left undecided on the owners, which keep their values. In an
  /// elastic group the owners ask the store first. A step on which the store gives no answer is abandoned.
  /// Some owners may have made the step visible: versions() shows them, and a checkpoint restores one common
  /// step.
  void end_doubt();
  /// The steps that each parameter of the list has taken on its owner, by any optimizer. A loaded checkpoint
  /// counts as one.
  std::vector<int64_t> versions() const;
  /// The most steps that a parameter with a gradient in the context has taken since the context first reached
  /// its owner. Throws: AutogradError for a context that an owner does not know.
  int64_t staleness(int64_t context_id) const;
  /// Scales all gradients of the context so that their total p-norm is at most max_norm. Returns the norm
  /// before the scaling. Throws: ValueError for a negative max_norm or p <= 0, before it calls any owner.
  double clip_grad_norm(int64_t context_id, double max_norm, double p = 2);
  size_t groups() const { return lrs_.size(); }
  /// Throws: IndexError for an unknown group.
  double lr(size_t group = 0) const {
    check_group(group);
    return lrs_[group];
  }
  /// Sets the learning rate of a group on its owners; done on return. When it throws, the owners that answer
  /// have the earlier rate. Throws: ValueError for a rate that is negative, not finite, or refused by the
  /// rule; IndexError for an unknown group.
  void set_lr(size_t group, double lr);
  /// Sets the learning rate of all groups.
  void set_lr(double lr);
  /// Sets the encoded options of a group on its owners; dist_optim::set_options calls it. Throws: as set_lr.
  void set_encoded_options(size_t group, const EncodedGroup& options);
  /// The state of every owner, in the order of the owners' first parameters in the list.
  std::vector<optim::StateDict> state_dict() const;
  /// Loads the states of state_dict. Throws: ValueError for another number of owners; as
  /// Optimizer::load_state_dict.
  void load_state_dict(const std::vector<optim::StateDict>& state);

  /// Asks the owners for the rates, which something other than this object may have set.
  void fetch_rates();
  const std::vector<Owner>& owners() const { return owners_; }
  /// The name of the rule.
  const std::string& rule() const { return rule_; }

 private:
  void check_group(size_t group) const;
  void step_in_two_phases(int64_t context_id);
  bool write_commit(rpc::Store& store, const std::string& key, rpc::TimePoint latest);
  void decide(int64_t number, bool commit);
  std::exception_ptr tell(int64_t number, bool commit);
  /// Two phases: shared by copies and threads.
  struct Steps {
    Steps();
    int64_t optimizer = 0;  ///< its number on this worker
    std::atomic<int64_t> next{1};
    rpc::Mutex mutex;
    std::vector<std::pair<int64_t, bool>> untold WEFT_GUARDED_BY(mutex);  // decisions, in order
  };
  std::shared_ptr<Steps> steps_ = std::make_shared<Steps>();
  StepOptions how_;
  std::vector<Owner> owners_;
  std::string rule_;
  size_t count_ = 0;
  std::vector<double> lrs_;
  std::vector<std::string> options_;  // encoded, by group
};

/// A group of parameters with separate options.
template <class Options> struct RemoteGroup {
  std::vector<RRef<Tensor>> params;
  Options options;
};

namespace detail {
template <class Options>
DistributedOptimizer::EncodedGroup encoded(const std::vector<RRef<Tensor>>& params, const Options& options) {
  rpc::Message message;
  {
    rpc::Encoder out(message);
    out.put(options);
  }
  return {params, std::string(message.body()), options.lr};
}
}  // namespace detail

/// Makes an optimizer of a rule over parameters on any workers. Throws: ValueError for an empty list, bad
/// options, or a rule name that is not unique; errors of the owners.
template <class Rule>
DistributedOptimizer make(const std::vector<RRef<Tensor>>& params, const typename Rule::Options& options = {},
                          const StepOptions& how = {}) {
  check_rule(Rule::kName, typeid(Rule));
  return DistributedOptimizer(Rule::kName, {detail::encoded(params, options)}, how);
}
/// The same with groups. A group may have parameters on several owners; the order of its parameters is kept.
template <class Rule>
DistributedOptimizer make(const std::vector<RemoteGroup<typename Rule::Options>>& groups,
                          const StepOptions& how = {}) {
  check_rule(Rule::kName, typeid(Rule));
  std::vector<DistributedOptimizer::EncodedGroup> all;
  for (const auto& group : groups) all.push_back(detail::encoded(group.params, group.options));
  return DistributedOptimizer(Rule::kName, all, how);
}

/// Sets all options of a group on its owners; the state stays. Throws: ValueError for an optimizer of another
/// rule, an unknown group, or options that the rule refuses. Then the owners that answer get back their old
/// options and rate.
template <class Rule>
void set_options(DistributedOptimizer& optimizer, size_t group, const typename Rule::Options& options) {
  check_rule(Rule::kName, typeid(Rule));
  if (optimizer.rule() != Rule::kName)
    throw ValueError(
        str("set_options: the optimizer is ", optimizer.rule(), ", the options are those of ", Rule::kName));
  optimizer.set_encoded_options(group, detail::encoded({}, options));
}

namespace detail {
template <class Rule>
std::unique_ptr<optim::Optimizer> make_rule(const GroupedParams& groups, std::vector<rpc::Decoder>& in) {
  using Options = typename Rule::Options;
  std::vector<optim::ParamGroup<Options>> all;
  for (size_t g = 0; g < groups.size(); ++g) all.push_back({groups[g], in[g].get<Options>()});
  return std::make_unique<optim::Fused<Rule>>(all);
}
template <class Rule> void set_rule_options(optim::Optimizer& optimizer, size_t group, rpc::Decoder& in) {
  dynamic_cast<optim::Fused<Rule>&>(optimizer).set_options(group, in.get<typename Rule::Options>());
}
}  // namespace detail

/// Registers a rule, so that owners can make its optimizer. Its Options need WEFT_FIELDS.
#define WEFT_OPTIMIZER_RULE(Rule)                                                             \
  [[maybe_unused]] inline const bool weft_rule_of_##Rule = ::weft::dist_optim::register_rule( \
      Rule::kName, typeid(Rule), &::weft::dist_optim::detail::make_rule<Rule>,                \
      &::weft::dist_optim::detail::set_rule_options<Rule>)

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
