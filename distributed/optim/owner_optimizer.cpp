// The owner's part of a distributed optimizer: the registry of rules, steps, and shards of checkpoints. A
// shard is taken under the lock that steps take, so it is of one moment of this owner. Loading gives each
// parameter a new block, so graphs that are alive keep their values. The blocks before are kept until the
// caller has heard from all owners.
#include <weft/distributed/optim/owner_optimizer.h>

#include <map>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/optim/inner/owner_state.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/distributed/optim/inner/step_ledger.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/io/inner/file_io.h>

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

const std::string kParametersPart = "parameters/", kOptimizerPart = "optimizer/",
                  kGeneratorPart = "generator/state";

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

// ---- shards

namespace {

using detail::OwnerState;

optim::StateDict shard_of(const OwnerState& s) WEFT_REQUIRES(s.mutex) {
  optim::StateDict out;
  for (size_t i = 0; i < s.params.size(); ++i)
    out.emplace_back(kParametersPart + std::to_string(i), weft::detail::held(s.params[i]));
  for (const auto& [name, value] : s.optimizer->state_dict())
    // a step writes the tensors of the state in place
    out.emplace_back(kOptimizerPart + name, weft::detail::host_copy(value).clone());
  out.emplace_back(kGeneratorPart, generator_state(default_generator()));
  return out;
}

Tensor kept_piece(const OwnerState& s, int64_t i, int64_t from, int64_t count) WEFT_REQUIRES(s.mutex) {
  if (i < 0 || i >= static_cast<int64_t>(s.kept.size()))
    throw ValueError(str("checkpoint: the kept shard has ", s.kept.size(), " tensors, asked for ", i));
  const Tensor& x = s.kept[static_cast<size_t>(i)].second;
  if (from < 0 || count < 0 || from > x.numel() || count > x.numel() - from)
    throw ValueError(str("checkpoint: elements ", from, " and ", count, " on of ", x.numel()));
  const NoGrad guard;
  return x.detach().reshape({x.numel()}).narrow(0, from, count);
}

void install_shard(OwnerState& s, const optim::StateDict& shard) WEFT_REQUIRES(s.mutex) {
  std::vector<Tensor> values(s.params.size());
  optim::StateDict state;
  Tensor generator;
  for (const auto& [name, value] : shard) {
    if (name == kGeneratorPart) generator = value;
    else if (name.starts_with(kOptimizerPart)) state.emplace_back(name.substr(kOptimizerPart.size()), value);
    for (size_t i = 0; i < s.params.size(); ++i)
      if (name == kParametersPart + std::to_string(i)) values[i] = value;
  }
  size_t stored = 0;
  for (const auto& entry : shard) stored += entry.first.starts_with(kParametersPart);
  if (stored != s.params.size())
    throw ValueError(str("checkpoint: a shard of ", stored, " parameters for an owner of ", s.params.size()));
  for (size_t i = 0; i < s.params.size(); ++i) {
    const Tensor& p = s.params[i];
    if (!values[i].defined()) throw ValueError(str("checkpoint: the shard has no parameter ", i));
    if (values[i].sizes() != p.sizes())
      throw ShapeError(
          str("checkpoint: parameter ", i, " is ", p.sizes(), " here, ", values[i].sizes(), " in the shard"));
    if (values[i].dtype() != p.dtype())
      throw DTypeError(
          str("checkpoint: parameter ", i, " is ", p.dtype(), " here, ", values[i].dtype(), " in the shard"));
    values[i] = values[i].detach().to(p.device());
    if (!values[i].is_contiguous()) values[i] = values[i].contiguous();
  }
  if (!generator.defined()) throw ValueError("checkpoint: the shard has no state of the generator");
  const Tensor was = generator_state(default_generator());
  set_generator_state(default_generator(), generator);
  try {
    s.optimizer->load_state_dict(state);
  } catch (...) {
    set_generator_state(default_generator(), was);
    throw;
  }
  const auto guards = lock_parameters(s.params);
  detail::replace_values(s.params, values);
}

}  // namespace

ShardFile OwnerOptimizer::save_shard(std::string folder, std::string name, int64_t set) const {
  check_caller();
  optim::StateDict taken;
  {
    rpc::MutexLock lock(state_->mutex);
    taken = shard_of(*state_);
  }
  return detail::write_shard(folder, name, set, taken);
}

std::vector<ShardEntry> OwnerOptimizer::hold_shard() {
  check_caller();
  rpc::MutexLock lock(state_->mutex);
  state_->kept = shard_of(*state_);
  std::vector<ShardEntry> out;
  for (auto& [name, value] : state_->kept) {
    value = weft::detail::host_copy(value);
    const Shape& sizes = value.sizes();
    out.push_back({name, static_cast<int64_t>(value.dtype()), {sizes.begin(), sizes.end()}});
  }
  return out;
}

Tensor OwnerOptimizer::shard_piece(int64_t i, int64_t from, int64_t count) const {
  check_caller();
  rpc::MutexLock lock(state_->mutex);
  return kept_piece(*state_, i, from, count);
}

void OwnerOptimizer::expect_shard(std::vector<ShardEntry> layout) {
  check_caller();
  optim::StateDict made;
  for (const ShardEntry& e : layout) made.emplace_back(e.name, detail::empty_entry(e));
  rpc::MutexLock lock(state_->mutex);
  state_->kept = std::move(made);
}

void OwnerOptimizer::put_piece(int64_t i, int64_t from, Tensor values) {
  check_caller();
  const NoGrad guard;
  rpc::MutexLock lock(state_->mutex);
  const Tensor to = kept_piece(*state_, i, from, values.numel());
  if (to.dtype() != values.dtype())
    throw DTypeError(str("checkpoint: a piece of ", values.dtype(), " for ", to.dtype()));
  Tensor(to).copy_(values.reshape({values.numel()}));
}

void OwnerOptimizer::read_shard(std::string folder, ShardFile file, int64_t set) {
  check_caller();
  optim::StateDict read = detail::read_shard(folder, file, set);
  rpc::MutexLock lock(state_->mutex);
  state_->kept = std::move(read);
}

void OwnerOptimizer::load_shard() {
  check_caller();
  const NoGrad guard;
  std::unique_ptr<OwnerState::Prepared> dropped;
  {
    rpc::MutexLock lock(state_->mutex);
    optim::StateDict before = shard_of(*state_);
    install_shard(*state_, state_->kept);
    state_->before = std::move(before);
    state_->kept.clear();
    dropped = std::move(state_->prepared);
  }
  state_->ledger->forget_prepared(state_->versions);
  state_->ledger->changed(state_->versions);
}

void OwnerOptimizer::end_shard(bool back) {
  check_caller();
  const NoGrad guard;
  bool went_back = false;
  {
    rpc::MutexLock lock(state_->mutex);
    if (back && !state_->before.empty()) {
      install_shard(*state_, state_->before);
      went_back = true;
    }
    state_->before.clear();
    state_->kept.clear();
  }
  if (went_back) state_->ledger->changed(state_->versions);
}

}  // namespace weft::dist_optim
