// The shards of an owner. A shard is made under the lock that steps take, so it shows one moment of this
// owner. Loading gives each parameter of the optimizer a new block, so living graphs keep their values. Other
// tensors of modules are written in place, as Module::load_state_dict does. The previous state is kept until
// the caller has the answers of all owners.
#include <algorithm>
#include <map>
#include <set>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/optim/inner/edge_errors.h>
#include <weft/distributed/optim/inner/owner_state.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/distributed/rpc/rpc_error.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/parameter_lock.h>
#include <weft/tensor/io/inner/file_io.h>

namespace weft::dist_optim {
namespace {

using detail::OwnerState;

const std::string kParametersPart = "parameters/", kOptimizerPart = "optimizer/",
                  kGeneratorPart = "generator/state", kModulesPart = "modules/", kEdgesPart = "edges/",
                  kState = "state/", kStreams = "streams/", kEntries = "entries";

/// The parameters and buffers of a module that the optimizer does not have.
nn::NamedTensors beside(const OwnerState& s, const nn::Module& module) {
  nn::NamedTensors all = module.named_parameters();
  for (auto& entry : module.named_buffers()) all.push_back(std::move(entry));
  std::erase_if(all, [&](const auto& entry) {
    return std::any_of(s.params.begin(), s.params.end(),
                       [&](const Tensor& p) { return p.is_same(entry.second); });
  });
  return all;
}

/// The modules of the terms, by name. Throws: ValueError for one of another worker.
std::map<std::string, nn::Module*> modules_of(const ShardTerms& terms) {
  std::map<std::string, nn::Module*> out;
  for (size_t k = 0; k < terms.modules.size() && k < terms.names.size(); ++k) {
    if (!terms.modules[k].is_owner())
      throw ValueError(str("checkpoint: the module '", terms.names[k], "' is not on this worker"));
    out[terms.names[k]] = &terms.modules[k].local_value();
  }
  return out;
}

/// The part of a shard whose names begin with `part`, without that beginning.
optim::StateDict below(const optim::StateDict& shard, const std::string& part) {
  optim::StateDict out;
  for (const auto& [name, value] : shard)
    if (name.starts_with(part)) out.emplace_back(name.substr(part.size()), value);
  return out;
}

optim::StateDict shard_of(const OwnerState& s, const ShardTerms& terms) WEFT_REQUIRES(s.mutex) {
  optim::StateDict out;
  for (size_t i = 0; i < s.params.size(); ++i)
    out.emplace_back(kParametersPart + std::to_string(i), weft::detail::held(s.params[i]));
  for (const auto& [name, value] : s.optimizer->state_dict())
    // a step writes the tensors of the state in place
    out.emplace_back(kOptimizerPart + name, weft::detail::host_copy(value).clone());
  out.emplace_back(kGeneratorPart, generator_state(default_generator()));
  for (const auto& [name, module] : modules_of(terms)) {
    const std::string part = kModulesPart + name + "/";
    const size_t first = out.size();
    for (const auto& [entry, value] : beside(s, *module))
      out.emplace_back(part + kState + entry, weft::detail::host_copy(value).clone());
    for (const auto& [entry, value] : module->generator_state())
      out.emplace_back(part + kStreams + entry, value);
    const auto entries = static_cast<int64_t>(out.size() - first);
    out.emplace_back(part + kEntries, from_vector(std::vector<int64_t>{entries}, {1}));
  }
  for (const auto& [name, value] : detail::edge_errors(detail::members_of(terms)))
    out.emplace_back(kEdgesPart + name, value);
  return out;
}

/// Throws: ValueError with the names that only one of the two has.
void compare_names(const char* what, const optim::StateDict& own, const optim::StateDict& stored) {
  const auto without = [](const auto& in, const auto& other) {
    std::string names;
    for (const auto& entry : in)
      if (std::none_of(other.begin(), other.end(), [&](const auto& o) { return o.first == entry.first; }))
        names += " '" + entry.first + "'";
    return names;
  };
  const std::string missing = without(own, stored), unknown = without(stored, own);
  if (!missing.empty() || !unknown.empty())
    throw ValueError(str(what, missing.empty() ? "" : " missing:" + missing,
                         missing.empty() || unknown.empty() ? "" : ";",
                         unknown.empty() ? "" : " unexpected:" + unknown));
}

/// Loads the part of one module. Throws: as load_state_dict and load_generator_state, with nothing changed;
/// ValueError for other names, DTypeError for other types.
void load_module(const OwnerState& s, nn::Module& module, const optim::StateDict& part) {
  const nn::NamedTensors own = beside(s, module);
  const optim::StateDict state = below(part, kState), streams = module.generator_state(),
                         stored_streams = below(part, kStreams);
  compare_names("state", own, state);
  if (!streams.empty() && !stored_streams.empty()) compare_names("streams", streams, stored_streams);
  for (const auto& [name, x] : own)
    for (const auto& [stored_name, value] : state)
      if (name == stored_name && x.dtype() != value.dtype())
        throw DTypeError(str(name, " is ", x.dtype(), " here, ", value.dtype(), " in the shard"));
  module.load_generator_state(stored_streams);
  try {
    module.load_state_dict(state, false);
  } catch (...) {
    module.load_generator_state(streams);
    throw;
  }
}

/// Compares the modules of a shard with those of the terms. Throws: ValueError that names one.
void check_modules(const std::map<std::string, nn::Module*>& modules, const optim::StateDict& shard) {
  std::set<std::string> stored;
  for (const auto& entry : below(shard, kModulesPart))
    stored.insert(entry.first.substr(0, entry.first.find('/')));
  for (const auto& entry : modules)
    if (!stored.contains(entry.first))
      throw ValueError(
          str("checkpoint: the shard has no module '", entry.first, "'; it was saved without that"));
  for (const std::string& name : stored)
    if (!modules.contains(name))
      throw ValueError(str("checkpoint: the shard has the module '", name,
                           "', which the call does not name (CheckpointOptions::modules)"));
}

/// Throws: the error of a module, with its name; those before it are changed then.
void load_modules(const OwnerState& s, const std::map<std::string, nn::Module*>& modules,
                  const optim::StateDict& shard) {
  for (const auto& [name, module] : modules) {
    try {
      load_module(s, *module, below(shard, kModulesPart + name + "/"));
    } catch (const std::exception&) {
      const std::exception_ptr error = std::current_exception();
      std::rethrow_exception(
          rpc::with_text(error, str("checkpoint: the module '", name, "': ", rpc::error_text(error))));
    }
  }
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

/// Goes back to a shard, as far as memory allows; the parameters have not been changed.
void take_back(OwnerState& s, const std::map<std::string, nn::Module*>& modules,
               const optim::StateDict& before, std::vector<dist_autograd::detail::KeptError> owed)
    WEFT_REQUIRES(s.mutex) {
  const auto each = [](auto&& f) {
    try {
      f();
    } catch (const std::exception&) {  // the caller throws the first error
    }
  };
  for (const auto& entry : modules) each([&] { load_modules(s, {entry}, before); });
  each([&] { s.optimizer->load_state_dict(below(before, kOptimizerPart)); });
  each([&] { detail::set_edge_errors(std::move(owed)); });
}

/// Makes a shard current. `before`: that of the same terms from before, to which it goes back if it throws.
void install_shard(OwnerState& s, const ShardTerms& terms, const optim::StateDict& shard,
                   const optim::StateDict* before = nullptr) WEFT_REQUIRES(s.mutex) {
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
  const auto modules = modules_of(terms);
  check_modules(modules, shard);
  const optim::StateDict edges = below(shard, kEdgesPart);
  const std::vector<rpc::Life> members = detail::members_of(terms);
  auto errors = detail::read_edge_errors(edges, members);
  std::vector<dist_autograd::detail::KeptError> owed;
  if (before) owed = detail::read_edge_errors(below(*before, kEdgesPart), members);
  const Tensor was = generator_state(default_generator());
  try {
    load_modules(s, modules, shard);
    set_generator_state(default_generator(), generator);
    s.optimizer->load_state_dict(state);
    if (!edges.empty()) detail::set_edge_errors(std::move(errors));  // an older shard does not have them
    const auto guards = lock_parameters(s.params);
    detail::replace_values(s.params, values);  // all or none; nothing throws after it
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    set_generator_state(default_generator(), was);
    if (before) take_back(s, modules, *before, std::move(owed));
    std::rethrow_exception(error);
  }
}

/// Ends an earlier load whose end was not reported.
void forget_before(OwnerState& s) {
  ShardTerms terms;  // its references end after the lock
  rpc::MutexLock lock(s.mutex);
  s.before.clear();
  terms = std::exchange(s.before_terms, {});
}

}  // namespace

ShardFile OwnerOptimizer::save_shard(std::string folder, std::string name, int64_t set,
                                     ShardTerms terms) const {
  check_caller();
  optim::StateDict taken;
  {
    rpc::MutexLock lock(state_->mutex);
    taken = shard_of(*state_, terms);
  }
  return detail::write_shard(folder, name, set, taken);
}

std::vector<ShardEntry> OwnerOptimizer::hold_shard(ShardTerms terms) {
  check_caller();
  rpc::MutexLock lock(state_->mutex);
  state_->kept = shard_of(*state_, terms);
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
  forget_before(*state_);
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
  forget_before(*state_);
  optim::StateDict read = detail::read_shard(folder, file, set);
  rpc::MutexLock lock(state_->mutex);
  state_->kept = std::move(read);
}

void OwnerOptimizer::load_shard(ShardTerms terms) {
  check_caller();
  const NoGrad guard;
  std::unique_ptr<OwnerState::Prepared> dropped;
  {
    rpc::MutexLock lock(state_->mutex);
    optim::StateDict before = shard_of(*state_, terms);
    install_shard(*state_, terms, state_->kept, &before);
    state_->before = std::move(before);
    state_->before_terms = std::move(terms);
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
  ShardTerms terms;
  {
    rpc::MutexLock lock(state_->mutex);
    if (back && !state_->before.empty()) {
      install_shard(*state_, state_->before_terms, state_->before);
      went_back = true;
    }
    state_->before.clear();
    terms = std::exchange(state_->before_terms, {});  // the references end after the lock
    state_->kept.clear();
  }
  if (went_back) state_->ledger->changed(state_->versions);
}

}  // namespace weft::dist_optim
