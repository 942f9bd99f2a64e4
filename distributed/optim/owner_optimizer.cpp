// The owner's part of a distributed optimizer: the registry of rules, steps, and shards of checkpoints. A
// shard is taken under the lock that steps take, so it is of one moment of this owner. Loading gives each
// parameter a new block, so graphs that are alive keep their values; the blocks before are kept until the
// caller has heard from all owners.
#include <weft/distributed/optim/owner_optimizer.h>

#include <algorithm>
#include <map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/distributed/optim/inner/step_ledger.h>
#include <weft/distributed/optim/inner/step_seam.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/kernels/backend.h>
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

/// A local optimizer of a rule over these parameters, group after group.
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& rule, const std::vector<Tensor>& params,
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

/// Copies contiguous values to an offset of a block of the same device.
void copy_into(Storage& block, int64_t offset, const Tensor& values) {
  const Shape bytes{values.numel() * size_of(values.dtype())}, one{1};
  Context context;
  backend(values.device())
      .copy(context, {values.raw(), kUInt8, bytes, one},
            {static_cast<char*>(block.data()) + offset, kUInt8, bytes, one});
}

/// Gives the parameters new blocks with these values. The caller holds their locks. `take`: nothing else uses
/// the blocks of the values, which become those of the parameters where they fit.
void replace_values(const std::vector<Tensor>& params, const std::vector<Tensor>& values, bool take = false) {
  std::map<Storage*, Ref<Storage>> fresh;
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    Storage& storage = *p.body().storage;
    Ref<Storage>& block = fresh[&storage];
    if (take && static_cast<size_t>(p.numel() * size_of(p.dtype())) == storage.bytes() &&
        values[i].body().storage->bytes() == storage.bytes()) {
      block = values[i].body().storage;
      continue;
    }
    if (!block) {
      block = Storage::allocate(p.device(), storage.bytes());
      if (static_cast<size_t>(p.numel() * size_of(p.dtype())) != storage.bytes()) {  // keep the rest of it
        const Shape bytes{static_cast<int64_t>(storage.bytes())}, one{1};
        Context context;
        backend(p.device())
            .copy(context, {storage.data(), kUInt8, bytes, one}, {block->data(), kUInt8, bytes, one});
      }
    }
    copy_into(*block, p.storage_offset() * size_of(p.dtype()), values[i]);
  }
  for (auto& [storage, block] : fresh) storage->replace_block(std::move(block));
}

}  // namespace

std::atomic<void (*)(const char*)> detail::at_step_point{nullptr};

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
    : maker_(calling()),
      rule_(std::move(rule)),
      how_(how),
      ledger_(detail::StepLedger::of(*rpc::current_agent())) {
  if (how_.max_staleness > detail::StepLedger::kMaxBound)
    throw ValueError(str("distributed optimizer: a staleness bound is at most ",
                         detail::StepLedger::kMaxBound, ", got ", how_.max_staleness));
  if (how_.lease_ms < 0) throw ValueError("distributed optimizer: a lease is not negative");
  if (groups.size() != options.size())
    throw ValueError(
        str("distributed optimizer: ", groups.size(), " groups with ", options.size(), " options"));
  for (const auto& group : groups) {
    group_sizes_.push_back(group.size());
    for (const RRef<Tensor>& p : group) {
      if (!p.is_owner())
        throw ValueError(str("distributed optimizer: ", p.str(), " is not owned by this worker"));
      params_.push_back(p.local_value());
    }
  }
  optimizer_ = make_optimizer(rule_, params_, group_sizes_, options);
  options_ = std::move(options);
  for (const Tensor& p : params_) mark_concurrent(p);
  versions_ = ledger_->records(params_);
}

rpc::Life OwnerOptimizer::calling() {
  const rpc::CallContext& call = rpc::call_context();
  return call.caller.value >= 0 ? rpc::Life{call.caller, call.caller_life} : rpc::current_agent()->life();
}

void OwnerOptimizer::check_caller() const {
  if (const rpc::Life caller = calling(); caller != maker_)
    throw rpc::NotAllowed(str("distributed optimizer: worker ", caller.id, " did not make the one it calls"));
}

optim::StateDict OwnerOptimizer::state() const {
  check_caller();
  return optimizer_->state_dict();
}

void OwnerOptimizer::load_state(optim::StateDict state) {
  check_caller();
  optimizer_->load_state_dict(state);
}

size_t OwnerOptimizer::checked(int64_t group) const {
  if (group < 0 || group >= static_cast<int64_t>(optimizer_->groups()))
    throw ValueError(
        str("distributed optimizer: group ", group, " of ", optimizer_->groups(), " on this worker"));
  return static_cast<size_t>(group);
}

void OwnerOptimizer::set_lr(int64_t group, double lr) {
  check_caller();
  rpc::MutexLock lock(mutex_);
  optimizer_->set_lr(checked(group), lr);
}

void OwnerOptimizer::set_options(int64_t group, std::string options) {
  check_caller();
  const Registered& known = find_rule(rule_);
  if (!known.set_options) throw ValueError(str("set_options: ", rule_, " was registered without a setter"));
  rpc::Message message = message_of(options);
  rpc::Decoder in(message);
  rpc::MutexLock lock(mutex_);
  known.set_options(*optimizer_, checked(group), in);
  options_[static_cast<size_t>(group)] = std::move(options);
}

std::vector<double> OwnerOptimizer::lrs() const {
  check_caller();
  std::vector<double> out;
  rpc::MutexLock lock(mutex_);
  for (size_t g = 0; g < optimizer_->groups(); ++g) out.push_back(optimizer_->lr(g));
  return out;
}

std::vector<Tensor> OwnerOptimizer::gradients(int64_t context_id) const {
  std::vector<Tensor> out;
  for (const Tensor& p : params_) out.push_back(dist_autograd::get_gradient(context_id, p));
  return out;
}

void OwnerOptimizer::step(int64_t context_id) {
  check_caller();
  const std::vector<Tensor> grads = gradients(context_id);
  const std::vector<detail::VersionsPtr> stepped = with_gradient(grads);
  ledger_->begin(stepped, context_id, how_.max_staleness);
  try {
    rpc::MutexLock lock(mutex_);
    optimizer_->step(grads);
  } catch (...) {
    ledger_->end(stepped, false);
    throw;
  }
  ledger_->end(stepped, true);
}

// ---- two phases

OwnerOptimizer::Prepared OwnerOptimizer::shadow(const std::vector<Tensor>& grads) const {
  Prepared out;
  {
    const NoGrad guard;
    for (const Tensor& p : params_) out.values.push_back(snapshot(p).detach().clone());
  }
  out.optimizer = make_optimizer(rule_, out.values, group_sizes_, options_);
  out.optimizer->load_state_dict(optimizer_->state_dict());  // with the rates
  out.optimizer->step(grads);
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) out.at.push_back(i);
  return out;
}

void OwnerOptimizer::prepare(int64_t context_id, int64_t number) {
  check_caller();
  const std::vector<Tensor> grads = gradients(context_id);
  std::vector<detail::VersionsPtr> stepped = with_gradient(grads);
  detail::step_seam("prepare");
  ledger_->begin(stepped, context_id, how_.max_staleness, true);
  try {
    rpc::MutexLock lock(mutex_);
    if (std::find(decided_.begin(), decided_.end(), number) != decided_.end())
      throw ValueError(str("step: number ", number, " has been decided before its preparation"));
    if (prepared_) throw rpc::StepInDoubt("step: another step of this optimizer awaits its decision");
    auto made = std::make_unique<Prepared>(shadow(grads));
    made->number = number;
    made->stepped = stepped;
    prepared_ = std::move(made);
  } catch (...) {
    ledger_->end(stepped, false);
    throw;
  }
  detail::step_seam("prepared");
}

void OwnerOptimizer::decide(int64_t number, bool commit) {
  check_caller();
  detail::step_seam(commit ? "commit" : "abort");
  std::unique_ptr<Prepared> step;
  {
    const NoGrad guard;
    rpc::MutexLock lock(mutex_);
    if (!prepared_ || prepared_->number != number) {
      decided_.push_back(number);
      if (decided_.size() > 64) decided_.pop_front();
      return;
    }
    if (commit) {
      optimizer_->load_state_dict(prepared_->optimizer->state_dict());
      // others may have stepped the parameters that this step leaves alone
      std::vector<Tensor> params, values;
      for (const size_t i : prepared_->at) {
        params.push_back(params_[i]);
        values.push_back(prepared_->values[i]);
      }
      const auto guards = lock_parameters(params);
      replace_values(params, values, true);
    }
    step = std::move(prepared_);
  }
  ledger_->end(step->stepped, commit);
  detail::step_seam(commit ? "committed" : "aborted");
}

void OwnerOptimizer::end_doubt() {
  check_caller();
  std::unique_ptr<Prepared> dropped;
  {
    rpc::MutexLock lock(mutex_);
    dropped = std::move(prepared_);
  }
  ledger_->forget_prepared(versions_);
}

OwnerOptimizer::~OwnerOptimizer() {
  // without its caller the step stays undecided, for every later optimizer of its parameters
  rpc::MutexLock lock(mutex_);
  if (prepared_) ledger_->keep_doubt(params_, prepared_->stepped);
}

std::vector<detail::VersionsPtr> OwnerOptimizer::with_gradient(const std::vector<Tensor>& grads) const {
  std::vector<detail::VersionsPtr> out;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) out.push_back(versions_[i]);
  return out;
}

std::vector<int64_t> OwnerOptimizer::versions() const {
  check_caller();
  return ledger_->versions(versions_);
}

int64_t OwnerOptimizer::staleness(int64_t context_id) const {
  check_caller();
  return ledger_->staleness(with_gradient(gradients(context_id)), context_id);
}

std::vector<double> OwnerOptimizer::powers(int64_t context_id, double p) const {
  check_caller();
  return optim::grad_powers(gradients(context_id), p);
}

void OwnerOptimizer::scale(int64_t context_id, double factor) {
  check_caller();
  optim::scale_grads(gradients(context_id), factor);
}

// ---- shards

optim::StateDict OwnerOptimizer::shard() const {
  optim::StateDict out;
  for (size_t i = 0; i < params_.size(); ++i)
    out.emplace_back(kParametersPart + std::to_string(i), weft::detail::held(params_[i]));
  for (const auto& [name, value] : optimizer_->state_dict())
    // a step writes the tensors of the state in place
    out.emplace_back(kOptimizerPart + name, weft::detail::host_copy(value).clone());
  out.emplace_back(kGeneratorPart, generator_state(default_generator()));
  return out;
}

ShardFile OwnerOptimizer::save_shard(std::string folder, std::string name, int64_t set) const {
  check_caller();
  optim::StateDict taken;
  {
    rpc::MutexLock lock(mutex_);
    taken = shard();
  }
  return detail::write_shard(folder, name, set, taken);
}

std::vector<ShardEntry> OwnerOptimizer::hold_shard() {
  check_caller();
  rpc::MutexLock lock(mutex_);
  kept_ = shard();
  std::vector<ShardEntry> out;
  for (auto& [name, value] : kept_) {
    value = weft::detail::host_copy(value);
    const Shape& sizes = value.sizes();
    out.push_back({name, static_cast<int64_t>(value.dtype()), {sizes.begin(), sizes.end()}});
  }
  return out;
}

Tensor OwnerOptimizer::piece(int64_t i, int64_t from, int64_t count) const {
  if (i < 0 || i >= static_cast<int64_t>(kept_.size()))
    throw ValueError(str("checkpoint: the kept shard has ", kept_.size(), " tensors, asked for ", i));
  const Tensor& x = kept_[static_cast<size_t>(i)].second;
  if (from < 0 || count < 0 || from > x.numel() || count > x.numel() - from)
    throw ValueError(str("checkpoint: elements ", from, " and ", count, " on of ", x.numel()));
  const NoGrad guard;
  return x.detach().reshape({x.numel()}).narrow(0, from, count);
}

Tensor OwnerOptimizer::shard_piece(int64_t i, int64_t from, int64_t count) const {
  check_caller();
  rpc::MutexLock lock(mutex_);
  return piece(i, from, count);
}

void OwnerOptimizer::expect_shard(std::vector<ShardEntry> layout) {
  check_caller();
  optim::StateDict made;
  for (const ShardEntry& e : layout) made.emplace_back(e.name, detail::empty_entry(e));
  rpc::MutexLock lock(mutex_);
  kept_ = std::move(made);
}

void OwnerOptimizer::put_piece(int64_t i, int64_t from, Tensor values) {
  check_caller();
  const NoGrad guard;
  rpc::MutexLock lock(mutex_);
  const Tensor to = piece(i, from, values.numel());
  if (to.dtype() != values.dtype())
    throw DTypeError(str("checkpoint: a piece of ", values.dtype(), " for ", to.dtype()));
  Tensor(to).copy_(values.reshape({values.numel()}));
}

void OwnerOptimizer::read_shard(std::string folder, ShardFile file, int64_t set) {
  check_caller();
  optim::StateDict read = detail::read_shard(folder, file, set);
  rpc::MutexLock lock(mutex_);
  kept_ = std::move(read);
}

void OwnerOptimizer::install(const optim::StateDict& shard) {
  std::vector<Tensor> values(params_.size());
  optim::StateDict state;
  Tensor generator;
  for (const auto& [name, value] : shard) {
    if (name == kGeneratorPart) generator = value;
    else if (name.starts_with(kOptimizerPart)) state.emplace_back(name.substr(kOptimizerPart.size()), value);
    for (size_t i = 0; i < params_.size(); ++i)
      if (name == kParametersPart + std::to_string(i)) values[i] = value;
  }
  size_t stored = 0;
  for (const auto& entry : shard) stored += entry.first.starts_with(kParametersPart);
  if (stored != params_.size())
    throw ValueError(str("checkpoint: a shard of ", stored, " parameters for an owner of ", params_.size()));
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& p = params_[i];
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
    optimizer_->load_state_dict(state);
  } catch (...) {
    set_generator_state(default_generator(), was);
    throw;
  }
  const auto guards = lock_parameters(params_);
  replace_values(params_, values);
}

void OwnerOptimizer::load_shard() {
  check_caller();
  const NoGrad guard;
  std::unique_ptr<Prepared> dropped;
  {
    rpc::MutexLock lock(mutex_);
    optim::StateDict before = shard();
    install(kept_);
    before_ = std::move(before);
    kept_.clear();
    dropped = std::move(prepared_);
  }
  ledger_->forget_prepared(versions_);
  ledger_->changed(versions_);
}

void OwnerOptimizer::end_shard(bool back) {
  check_caller();
  const NoGrad guard;
  bool went_back = false;
  {
    rpc::MutexLock lock(mutex_);
    if (back && !before_.empty()) {
      install(before_);
      went_back = true;
    }
    before_.clear();
    kept_.clear();
  }
  if (went_back) ledger_->changed(versions_);
}

}  // namespace weft::dist_optim
