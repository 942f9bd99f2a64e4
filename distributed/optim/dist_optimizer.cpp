// The distributed optimizer at its caller. Owners are grouped in the order of their first parameters, so
// construction, norms and states have one order. A call goes to all owners at once and waits for each: the
// error of one owner does not stop the calls of the others.
#include <weft/distributed/optim/dist_optimizer.h>

#include <algorithm>
#include <string_view>

#include <weft/distributed/optim/inner/on_owners.h>

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
WEFT_RPC_CONSTRUCTOR(OwnerOptimizer, std::string, std::string, std::vector<RRef<Tensor>>);
WEFT_RPC_CLASS(OwnerOptimizer, step, powers, scale, set_lr, lr, state, load_state, save_shard, hold_shard,
               shard_piece, expect_shard, put_piece, read_shard, load_shard, end_shard);
bool detail::built_in_rules_are_linked() { return true; }

using detail::flagged;
using detail::on_owners;
using detail::OwnerErrors;

DistributedOptimizer::DistributedOptimizer(const char* rule, std::string options, double lr,
                                           const std::vector<RRef<Tensor>>& params)
    : count_(params.size()), lr_(lr) {
  if (params.empty()) throw ValueError("distributed optimizer: the parameter list is empty");
  std::vector<std::vector<RRef<Tensor>>> lists;
  std::vector<rpc::WorkerInfo> who;
  for (size_t i = 0; i < params.size(); ++i) {
    size_t o = 0;
    while (o < who.size() && who[o].id != params[i].owner().id) ++o;
    if (o == who.size()) {
      who.push_back(params[i].owner());
      lists.emplace_back();
      owners_.emplace_back();
    }
    lists[o].push_back(params[i]);
    owners_[o].at.push_back(i);
  }
  OwnerErrors errors(who.size());
  for (size_t o = 0; o < who.size(); ++o) {
    owners_[o].name = who[o].name;
    try {
      owners_[o].optimizer = rpc::remote<OwnerOptimizer>(who[o], std::string(rule), options, lists[o]);
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
  errors.check("construction");
}

void DistributedOptimizer::step(int64_t context_id) {
  on_owners<bool>(owners_, "step", [&](const auto& o) {
    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::step>(context_id));
  });
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

void DistributedOptimizer::set_lr(double lr) {
  if (!(lr >= 0)) throw ValueError(str("set_lr: the rate must not be negative, got ", lr));
  on_owners<bool>(owners_, "set_lr", [&](const auto& o) {
    return flagged(o.optimizer.template rpc_async<&OwnerOptimizer::set_lr>(lr));
  });
  lr_ = lr;
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
  lr_ = on_owners<double>(owners_, "fetch_rates", [](const auto& o) {
          return o.optimizer.template rpc_async<&OwnerOptimizer::lr>();
        }).at(0);
}

}  // namespace weft::dist_optim
