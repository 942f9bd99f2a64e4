// The owner's part of a distributed optimizer: the registry of rules, construction and options.
// owner_steps.cpp has the steps, owner_shards.cpp the shards of checkpoints.
#include <weft/distributed/optim/owner_optimizer.h>

#include <map>

#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/optim/inner/owner_state.h>
#include <weft/distributed/optim/inner/step_ledger.h>

namespace weft::dist_optim {
namespace {

/// The rule of a name. Registration runs before main(), where it must not throw. So the use of a duplicate
/// name throws, not its registration.
struct Registered {
  const std::type_info* rule;
  Factory factory;
  OptionsSetter set_options;
  bool twice = false;
};
std::map<std::string, Registered>& registered() {
  static std::map<std::string, Registered> all;
  return all;
}

[[noreturn]] void throw_twice(const std::string& name) {
  throw ValueError("distributed optimizer: two rules are called '" + name +
                   "' on this worker; each needs a name (kName) of its own");
}

const Registered& find_rule(const std::string& name) {
  const auto found = registered().find(name);
  if (found == registered().end())
    throw ValueError("distributed optimizer: the rule '" + name +
                     "' is not registered on this worker (WEFT_OPTIMIZER_RULE)");
  if (found->second.twice) throw_twice(name);
  return found->second;
}

/// A message with these encoded options.
rpc::Message message_of(const std::string& options) {
  rpc::Message message;
  {
    rpc::Encoder out(message);
    out.raw(options.data(), options.size());
  }
  return message;
}

}  // namespace

std::unique_ptr<optim::Optimizer> detail::make_optimizer(const std::string& rule,
                                                         const std::vector<Tensor>& params,
                                                         const std::vector<size_t>& sizes,
                                                         const std::vector<std::string>& options) {
  GroupedParams groups;
  size_t next = 0;
  for (const size_t n : sizes) {
    groups.emplace_back();
    for (size_t k = 0; k < n; ++k) groups.back().push_back(params[next++]);
  }
  std::vector<rpc::Message> messages;
  std::vector<rpc::Decoder> in;
  messages.reserve(options.size());
  for (const std::string& o : options) in.emplace_back(messages.emplace_back(message_of(o)));
  return find_rule(rule).factory(groups, in);
}

bool register_rule(const char* name, const std::type_info& rule, Factory factory, OptionsSetter set_options) {
  const auto [at, fresh] = registered().emplace(name, Registered{&rule, factory, set_options});
  // the same rule in another library may have another factory address
  if (*at->second.rule == rule) return !at->second.twice;
  at->second.twice = true;
  return false;
}

void check_rule(const char* name, const std::type_info& rule) {
  const auto found = registered().find(name);
  if (found != registered().end() && (found->second.twice || *found->second.rule != rule)) throw_twice(name);
}

OwnerOptimizer::OwnerOptimizer(std::string rule, std::vector<std::string> options,
                               std::vector<std::vector<RRef<Tensor>>> groups, StepOptions how)
    : maker_(calling()), state_(std::make_shared<detail::OwnerState>()) {
  if (how.max_staleness > detail::StepLedger::kMaxBound)
    throw ValueError(str("distributed optimizer: a staleness bound is at most ",
                         detail::StepLedger::kMaxBound, ", got ", how.max_staleness));
  if (how.lease_ms < 0) throw ValueError("distributed optimizer: a lease is not negative");
  if (how.wait && how.max_staleness < 0)
    throw ValueError("distributed optimizer: steps that wait need a staleness bound");
  if (how.wait && how.two_phase)
    throw ValueError("distributed optimizer: a step in two phases does not wait for its turn");
  if (groups.size() != options.size())
    throw ValueError(
        str("distributed optimizer: ", groups.size(), " groups with ", options.size(), " options"));
  detail::OwnerState& s = *state_;
  for (const auto& group : groups) {
    s.group_sizes.push_back(group.size());
    for (const RRef<Tensor>& p : group) {
      if (!p.is_owner())
        throw ValueError(str("distributed optimizer: ", p.str(), " is not owned by this worker"));
      s.params.push_back(p.local_value());
    }
  }
  s.rule = std::move(rule);
  s.how = how;
  s.ledger = detail::StepLedger::of(*rpc::current_agent());
  s.runtime = rpc::current_agent()->runtime();
  s.optimizer = detail::make_optimizer(s.rule, s.params, s.group_sizes, options);
  s.versions = s.ledger->records(s.params);
  for (const Tensor& p : s.params) check_can_be_concurrent(p, "distributed optimizer");
  rpc::MutexLock lock(s.mutex);
  s.options = std::move(options);
}

OwnerOptimizer::~OwnerOptimizer() { state_->abandon(); }

rpc::Life OwnerOptimizer::calling() {
  const rpc::CallContext& call = rpc::call_context();
  return call.caller.value >= 0 ? rpc::Life{call.caller, call.caller_life} : rpc::current_agent()->life();
}

void OwnerOptimizer::check_caller() const {
  if (const rpc::Life caller = calling(); caller != maker_)
    throw rpc::NotAllowed(str("distributed optimizer: worker ", caller.id, " did not make the one it calls"));
}

void OwnerOptimizer::mark() {
  check_caller();
  for (const Tensor& p : state_->params) check_can_be_concurrent(p, "distributed optimizer");
  for (const Tensor& p : state_->params) mark_concurrent(p);
}

optim::StateDict OwnerOptimizer::state() const {
  check_caller();
  return state_->optimizer->state_dict();
}

void OwnerOptimizer::load_state(optim::StateDict state) {
  check_caller();
  state_->optimizer->load_state_dict(state);
}

size_t OwnerOptimizer::checked(int64_t group) const {
  if (group < 0 || group >= static_cast<int64_t>(state_->optimizer->groups()))
    throw ValueError(
        str("distributed optimizer: group ", group, " of ", state_->optimizer->groups(), " on this worker"));
  return static_cast<size_t>(group);
}

void OwnerOptimizer::set_lr(int64_t group, double lr) {
  check_caller();
  rpc::MutexLock lock(state_->mutex);
  state_->optimizer->set_lr(checked(group), lr);
}

void OwnerOptimizer::set_options(int64_t group, std::string options) {
  check_caller();
  const Registered& known = find_rule(state_->rule);
  if (!known.set_options)
    throw ValueError(str("set_options: ", state_->rule, " was registered without a setter"));
  rpc::Message message = message_of(options);
  rpc::Decoder in(message);
  rpc::MutexLock lock(state_->mutex);
  known.set_options(*state_->optimizer, checked(group), in);
  state_->options[static_cast<size_t>(group)] = std::move(options);
}

std::vector<double> OwnerOptimizer::lrs() const {
  check_caller();
  std::vector<double> out;
  rpc::MutexLock lock(state_->mutex);
  for (size_t g = 0; g < state_->optimizer->groups(); ++g) out.push_back(state_->optimizer->lr(g));
  return out;
}

void OwnerOptimizer::step(int64_t context_id) {
  check_caller();
  state_->step(context_id);
}

rpc::Future<void> OwnerOptimizer::step_in_turn(int64_t context_id) {
  check_caller();
  return state_->step_in_turn(context_id);
}

void OwnerOptimizer::prepare(int64_t context_id, int64_t number, std::string decision) {
  check_caller();
  state_->prepare(context_id, number, std::move(decision));
}

void OwnerOptimizer::decide(int64_t number, bool commit) {
  check_caller();
  state_->decide(number, commit);
}

void OwnerOptimizer::end_doubt() {
  check_caller();
  state_->end_doubt();
}

std::vector<int64_t> OwnerOptimizer::versions() const {
  check_caller();
  return state_->ledger->versions(state_->versions);
}

int64_t OwnerOptimizer::staleness(int64_t context_id) const {
  check_caller();
  return state_->ledger->staleness(state_->with_gradient(state_->gradients(context_id)), context_id);
}

std::vector<double> OwnerOptimizer::powers(int64_t context_id, double p) const {
  check_caller();
  return optim::grad_powers(state_->gradients(context_id), p);
}

void OwnerOptimizer::scale(int64_t context_id, double factor) {
  check_caller();
  optim::scale_grads(state_->gradients(context_id), factor);
}

}  // namespace weft::dist_optim
