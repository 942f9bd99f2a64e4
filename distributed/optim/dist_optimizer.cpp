// The distributed optimizer at its caller. Owners are grouped in the order of their first parameters, so
// construction, norms and states have one order. A call goes to all owners at once and waits for each. The
// error of one owner does not stop the calls of the others.
#include <weft/distributed/optim/dist_optimizer.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <weft/distributed/optim/inner/on_owners.h>
#include <weft/distributed/optim/inner/step_decisions.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/distributed/rpc/trace.h>

namespace weft::optim {
namespace {

struct AnyField {
  template <class T> operator T() const;
};
/// Number of fields of an aggregate.
template <class T, class... Some> consteval size_t field_count() {
  if constexpr (requires { T{Some()..., AnyField()}; }) return field_count<T, Some..., AnyField>();
  else return sizeof...(Some);
}
/// Number of names in a list with commas.
consteval size_t field_names(std::string_view list) {
  return 1 + static_cast<size_t>(std::count(list.begin(), list.end(), ','));
}

}  // namespace

#define WEFT_REGISTER_RULE(Name, ...)                                      \
  static_assert(field_count<Name##Options>() == field_names(#__VA_ARGS__), \
                "the row of the rule names every field of its options");   \
  WEFT_OPTIMIZER_RULE(Name##Rule);
WEFT_OPTIMIZER_RULES(WEFT_REGISTER_RULE)
#undef WEFT_REGISTER_RULE
}  // namespace weft::optim

namespace weft::dist_optim {
WEFT_RPC_CONSTRUCTOR(OwnerOptimizer, std::string, std::vector<std::string>,
                     std::vector<std::vector<RRef<Tensor>>>, StepOptions);
WEFT_RPC_CLASS(OwnerOptimizer, mark, step, step_in_turn, prepare, decide, end_doubt, versions, staleness,
               powers, scale, set_lr, set_options, lrs, state, load_state, save_shard, hold_shard,
               shard_piece, expect_shard, put_piece, read_shard, load_shard, end_shard);
bool detail::built_in_rules_are_linked() { return true; }

using detail::flagged;
using detail::on_owners;
using detail::OwnerErrors;

namespace {

/// The life that owns some of the parameters.
struct OwnerLife {
  std::string name;
  rpc::Life life;

  bool has(const RRef<Tensor>& p) const {
    const rpc::Life its = p.owner_life();
    return its.id == life.id &&
           (its.incarnation == life.incarnation || its.incarnation.value == 0 || life.incarnation.value == 0);
  }
};

}  // namespace

DistributedOptimizer::DistributedOptimizer(const char* rule, const std::vector<EncodedGroup>& groups,
                                           const StepOptions& how)
    : how_(how), rule_(rule) {
  struct Lists {
    std::vector<std::string> options;
    std::vector<std::vector<RRef<Tensor>>> params;
  };
  std::vector<Lists> lists;
  std::vector<OwnerLife> who;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].params.empty()) throw ValueError("distributed optimizer: the parameter list is empty");
    lrs_.push_back(groups[g].lr);
    options_.push_back(groups[g].options);
    for (const RRef<Tensor>& p : groups[g].params) {
      size_t o = 0;
      while (o < who.size() && !who[o].has(p)) ++o;
      if (o == who.size()) {
        who.push_back({p.owner().name, p.owner_life()});
        lists.emplace_back();
        owners_.emplace_back();
      }
      if (owners_[o].groups.empty() || owners_[o].groups.back() != g) {
        owners_[o].groups.push_back(g);
        lists[o].options.push_back(groups[g].options);
        lists[o].params.emplace_back();
      }
      lists[o].params.back().push_back(p);
      owners_[o].at.push_back(count_++);
    }
  }
  if (groups.empty()) throw ValueError("distributed optimizer: the parameter list is empty");
  OwnerErrors errors(who.size());
  for (size_t o = 0; o < who.size(); ++o) {
    owners_[o].name = who[o].name;
    try {
      owners_[o].optimizer =
          rpc::remote<OwnerOptimizer>(who[o].life, rule_, lists[o].options, lists[o].params, how);
    } catch (const std::exception&) {
      errors.note(o, who[o].name);
    }
  }
  for (size_t o = 0; o < who.size(); ++o) {
    try {
      if (owners_[o].optimizer) owners_[o].optimizer.created().wait();
    } catch (const std::exception&) {
      errors.note(o, who[o].name);
    }
  }
  errors.check("construction", "the other owners have ended theirs");
  // a mark stays, so there is none before every owner has accepted its parameters
  on_owners<bool>(
      owners_, "the mark of the parameters",
      [](const auto& o) { return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::mark>()); },
      "the other owners have marked theirs");
}

void DistributedOptimizer::step(int64_t context_id) {
  const rpc::TraceSpan span("step");
  if (how_.two_phase) return step_in_two_phases(context_id);
  on_owners<bool>(owners_, "step", [&](const auto& o) {
    return flagged(how_.wait ? o.optimizer.template rpc_async<&OwnerOptimizer::step_in_turn>(context_id)
                             : o.optimizer.template rpc_async<&OwnerOptimizer::step>(context_id));
  });
}

void DistributedOptimizer::decide(int64_t number, bool commit) {
  on_owners<bool>(owners_, commit ? "the commit of a prepared step" : "the end of a step",
                  [&](const auto& o) {
                    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::decide>(number, commit));
                  });
}

DistributedOptimizer::Steps::Steps() {
  static std::atomic<int64_t> made{0};
  optimizer = made.fetch_add(1);
}

void DistributedOptimizer::step_in_two_phases(int64_t context_id) {
  const auto agent = rpc::current_agent();
  rpc::Runtime& runtime = *agent->runtime();
  const auto store = detail::decision_store(*agent);
  const rpc::Duration lease = std::chrono::milliseconds(how_.lease_ms);
  if (store && how_.lease_ms <= 0)
    throw ValueError("step: two phases in an elastic group need a positive lease");
  const rpc::TimePoint end = runtime.now() + lease;
  for (int64_t attempt = 0;; ++attempt) {
    settle();
    const int64_t number = steps_->next.fetch_add(1);
    const rpc::TimePoint latest = runtime.now() + 2 * lease;  // of the decision
    const std::string key =
        store ? detail::decision_key(agent->life(), steps_->optimizer, number) : std::string();
    std::exception_ptr failed;
    try {
      on_owners<bool>(
          owners_, "the preparation of a step",
          [&](const auto& o) {
            return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::prepare>(context_id, number, key));
          },
          "no owner has stepped");
      if (store && runtime.now() >= latest)
        throw rpc::StepInDoubt("step: its preparation took longer than two leases");
      detail::check_fence(*agent);
    } catch (...) {
      failed = std::current_exception();
    }
    bool written = false;
    if (store && !failed) {
      written = true;
      if (!write_commit(*store, key, latest))
        failed = std::make_exception_ptr(
            rpc::StepInDoubt("step: an owner had no decision for a lease and keeps the old values"));
    }
    const std::exception_ptr untold = tell(number, !failed);
    if (written && !untold) {
      try {
        store->unset(key, runtime.now() + lease);
      } catch (const Error&) {  // it ends with its lease
      }
    }
    if (!failed) {
      if (untold) std::rethrow_exception(untold);
      return;
    }
    try {
      std::rethrow_exception(failed);
    } catch (const rpc::StepInDoubt&) {  // others step the parameters
      if (runtime.now() >= end) throw;
    }
    // different workers try again at different times
    const int64_t who = agent->self().id.value;
    runtime.sleep_for(std::chrono::microseconds(500 * (1 + (who * 7 + attempt * 5) % 13)));
  }
}

/// Writes the decision to commit. False: an owner in doubt has written that the step ends. Throws the error
/// of the store: the decision is then not known here, and the owners find it out without this worker.
bool DistributedOptimizer::write_commit(rpc::Store& store, const std::string& key, rpc::TimePoint latest) {
  try {
    const bool commit =
        detail::decide_at_store(store, key, true, std::chrono::milliseconds(how_.lease_ms), latest);
    if (rpc::current_agent()->runtime()->now() <= latest) return commit;
    throw Timeout("the answer of the store came too late");
  } catch (const Error&) {
    const std::exception_ptr error = std::current_exception();
    std::rethrow_exception(
        rpc::with_text(error, str("step: its decision is not known, and the owners ask the store for it: ",
                                  rpc::error_text(error))));
  }
}

std::exception_ptr DistributedOptimizer::tell(int64_t number, bool commit) {
  try {
    decide(number, commit);
    return nullptr;
  } catch (const std::exception&) {
    rpc::MutexLock lock(steps_->mutex);
    steps_->untold.emplace_back(number, commit);
    return std::current_exception();
  }
}

void DistributedOptimizer::settle() {
  std::vector<std::pair<int64_t, bool>> untold;
  {
    rpc::MutexLock lock(steps_->mutex);
    untold.swap(steps_->untold);
  }
  for (size_t i = 0; i < untold.size(); ++i) {
    for (const Owner& o : owners_) {
      try {
        o.optimizer.rpc_sync<&OwnerOptimizer::decide>(untold[i].first, untold[i].second);
      } catch (const PeerLost&) {  // its parameters are gone
      } catch (...) {
        rpc::MutexLock lock(steps_->mutex);
        steps_->untold.insert(steps_->untold.end(), untold.begin() + static_cast<std::ptrdiff_t>(i),
                              untold.end());
        throw;
      }
    }
  }
}

void DistributedOptimizer::end_doubt() {
  on_owners<bool>(owners_, "end_doubt", [](const auto& o) {
    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::end_doubt>());
  });
}

std::vector<int64_t> DistributedOptimizer::versions() const {
  const auto parts = on_owners<std::vector<int64_t>>(owners_, "versions", [](const auto& o) {
    return o.optimizer.template rpc_async<&OwnerOptimizer::versions>();
  });
  std::vector<int64_t> out(count_);
  for (size_t o = 0; o < owners_.size(); ++o)
    for (size_t k = 0; k < owners_[o].at.size(); ++k) out[owners_[o].at[k]] = parts[o].at(k);
  return out;
}

int64_t DistributedOptimizer::staleness(int64_t context_id) const {
  const auto parts = on_owners<int64_t>(owners_, "staleness", [&](const auto& o) {
    return o.optimizer.template rpc_async<&OwnerOptimizer::staleness>(context_id);
  });
  return *std::max_element(parts.begin(), parts.end());
}

double DistributedOptimizer::clip_grad_norm(int64_t context_id, double max_norm, double p) {
  optim::check_clip_norm(max_norm, p);
  const auto parts = on_owners<std::vector<double>>(owners_, "clip_grad_norm", [&](const auto& o) {
    return o.optimizer.template rpc_async<&OwnerOptimizer::powers>(context_id, p);
  });
  std::vector<double> powers(count_, 0.0);
  for (size_t o = 0; o < owners_.size(); ++o)
    for (size_t k = 0; k < owners_[o].at.size(); ++k) powers[owners_[o].at[k]] = parts[o].at(k);
  const double total = optim::total_norm(powers, p), factor = optim::clip_factor(total, max_norm);
  on_owners<bool>(owners_, "clip_grad_norm", [&](const auto& o) {
    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::scale>(context_id, factor));
  });
  return total;
}

namespace {

using GroupOwner = DistributedOptimizer::Owner;

/// The owners with parameters of a group, each with the number of the group there.
std::vector<GroupOwner> owners_of(const std::vector<GroupOwner>& owners, size_t group) {
  std::vector<GroupOwner> out;
  for (const GroupOwner& o : owners) {
    const auto found = std::find(o.groups.begin(), o.groups.end(), group);
    if (found == o.groups.end()) continue;
    out.push_back({o.optimizer, o.name, {}, {static_cast<size_t>(found - o.groups.begin())}});
  }
  return out;
}

/// Calls all with `fresh`. When one fails, those that answer are called with `old`.
template <auto M, class V>
void set_or_restore(const std::vector<GroupOwner>& owners, const char* what, const V& fresh, const V& old) {
  const auto call = [&](const V& value) {
    on_owners<bool>(
        owners, what,
        [&](const auto& o) {
          return flagged(o.optimizer.template rpc_async<M>(static_cast<int64_t>(o.groups[0]), value));
        },
        "the other owners go back");
  };
  try {
    call(fresh);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      call(old);
    } catch (const std::exception&) {  // the owner that failed
    }
    std::rethrow_exception(error);
  }
}

}  // namespace

void DistributedOptimizer::check_group(size_t group) const {
  if (group >= lrs_.size())
    throw IndexError(str("distributed optimizer: there is no group ", static_cast<int64_t>(group),
                         "; it has ", lrs_.size(), " of them"));
}

void DistributedOptimizer::set_lr(size_t group, double lr) {
  check_group(group);
  if (!(lr >= 0 && std::isfinite(lr)))
    throw ValueError(str("set_lr: the rate must be finite and not negative, got ", lr));
  set_or_restore<&OwnerOptimizer::set_lr>(owners_of(owners_, group), "set_lr", lr, lrs_[group]);
  lrs_[group] = lr;
}

void DistributedOptimizer::set_lr(double lr) {
  for (size_t g = 0; g < groups(); ++g) set_lr(g, lr);
}

void DistributedOptimizer::set_encoded_options(size_t group, const EncodedGroup& options) {
  check_group(group);
  const std::vector<GroupOwner> owners = owners_of(owners_, group);
  try {
    set_or_restore<&OwnerOptimizer::set_options>(owners, "set_options", options.options, options_[group]);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {  // the kept options have the rate of their time
      set_or_restore<&OwnerOptimizer::set_lr>(owners, "set_options", lrs_[group], lrs_[group]);
    } catch (const std::exception&) {
    }
    std::rethrow_exception(error);
  }
  options_[group] = options.options;
  lrs_[group] = options.lr;
}

std::vector<optim::StateDict> DistributedOptimizer::state_dict() const {
  return on_owners<optim::StateDict>(owners_, "state_dict", [](const auto& o) {
    return o.optimizer.template rpc_async<&OwnerOptimizer::state>();
  });
}

void DistributedOptimizer::load_state_dict(const std::vector<optim::StateDict>& state) {
  if (state.size() != owners_.size())
    throw ValueError(str("load_state_dict: ", state.size(), " states for ", owners_.size(), " owners"));
  size_t next = 0;
  on_owners<bool>(owners_, "load_state_dict", [&](const auto& o) {
    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::load_state>(state[next++]));
  });
  fetch_rates();
}

void DistributedOptimizer::fetch_rates() {
  const auto found = on_owners<std::vector<double>>(owners_, "fetch_rates", [](const auto& o) {
    return o.optimizer.template rpc_async<&OwnerOptimizer::lrs>();
  });
  for (size_t o = 0; o < owners_.size(); ++o)
    for (size_t k = 0; k < owners_[o].groups.size(); ++k) lrs_[owners_[o].groups[k]] = found[o].at(k);
}

}  // namespace weft::dist_optim
