// The distributed optimizer: the registry of rules, the owner's part and the caller's part. Owners
// are grouped in the order of their first parameters, so construction, norms and states have one
// order. A call goes to all owners at once and waits for each: the error of one owner does not stop
// the calls of the others.
#include <weft/distributed/optim/dist_optimizer.h>

#include <algorithm>
#include <map>
#include <string_view>

#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/distributed/rpc/rpc_error.h>

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
WEFT_RPC_CLASS(OwnerOptimizer, step, powers, scale, set_lr, lr, state, load_state);
bool detail::built_in_rules_are_linked() { return true; }
}  // namespace weft::dist_optim

namespace weft::dist_optim {
namespace {

/// The rule of a name. Registration runs before main(), where it must not throw. So the use of a duplicate
/// name throws, not its registration.
struct Registered {
  const std::type_info* rule;
  Factory factory;
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

Factory find_rule(const std::string& name) {
  const auto found = registered().find(name);
  if (found == registered().end())
    throw ValueError("distributed optimizer: the rule '" + name +
                     "' is not registered on this worker (WEFT_OPTIMIZER_RULE)");
  if (found->second.twice) throw_twice(name);
  return found->second.factory;
}

/// The errors of a call to all owners.
class Errors {
 public:
  explicit Errors(size_t owners) : errors_(owners) {}
  /// Records the current exception of an owner; its later ones are ignored.
  void note(size_t owner, const std::string& name) {
    if (errors_[owner].first) return;
    errors_[owner] = {std::current_exception(), name};
  }
  /// Throws: the first error in the order of owners. With several owners its text names all that failed.
  void check(const char* what) const {
    std::exception_ptr first;
    std::string failed;
    size_t count = 0;
    for (const auto& [error, name] : errors_) {
      if (!error) continue;
      if (!first) first = error;
      failed += str(count++ == 0 ? "" : "; ", "'", name, "': ", rpc::error_text(error));
    }
    if (!first) return;
    if (errors_.size() == 1) std::rethrow_exception(first);
    std::rethrow_exception(rpc::with_text(
        first,
        str("distributed optimizer: ", what, " failed on ", count == errors_.size() ? "every owner, " : "",
            failed, count == errors_.size() ? "" : " (the other owners have done it)")));
  }

 private:
  std::vector<std::pair<std::exception_ptr, std::string>> errors_;
};

}  // namespace

bool register_rule(const char* name, const std::type_info& rule, Factory factory) {
  const auto [at, fresh] = registered().emplace(name, Registered{&rule, factory});
  // the same rule in another library may have another factory address
  if (*at->second.rule == rule) return !at->second.twice;
  at->second.twice = true;
  return false;
}

void check_rule(const char* name, const std::type_info& rule) {
  const auto found = registered().find(name);
  if (found != registered().end() && (found->second.twice || *found->second.rule != rule)) throw_twice(name);
}

OwnerOptimizer::OwnerOptimizer(std::string rule, std::string options, std::vector<RRef<Tensor>> params) {
  const Factory factory = find_rule(rule);
  for (const RRef<Tensor>& p : params) {
    if (!p.is_owner())
      throw ValueError(str("distributed optimizer: ", p.str(), " is not owned by this worker"));
    params_.push_back(p.local_value());
  }
  rpc::Message message;
  {
    rpc::Encoder out(message);
    out.raw(options.data(), options.size());
  }
  rpc::Decoder in(message);
  optimizer_ = factory(params_, in);
  for (const Tensor& p : params_) mark_concurrent(p);
}

std::vector<Tensor> OwnerOptimizer::gradients(int64_t context_id) const {
  std::vector<Tensor> out;
  for (const Tensor& p : params_) out.push_back(dist_autograd::get_gradient(context_id, p));
  return out;
}

void OwnerOptimizer::step(int64_t context_id) { optimizer_->step(gradients(context_id)); }

std::vector<double> OwnerOptimizer::powers(int64_t context_id, double p) const {
  return optim::grad_powers(gradients(context_id), p);
}

void OwnerOptimizer::scale(int64_t context_id, double factor) {
  optim::scale_grads(gradients(context_id), factor);
}

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
  Errors errors(who.size());
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

template <class R, class Call>
std::vector<R> DistributedOptimizer::on_all(const char* what, Call&& call) const {
  Errors errors(owners_.size());
  std::vector<std::optional<rpc::Future<R>>> futures(owners_.size());
  for (size_t o = 0; o < owners_.size(); ++o) {
    try {
      futures[o] = call(owners_[o]);
    } catch (const std::exception&) {  // for example, an owner known to be lost
      errors.note(o, owners_[o].name);
    }
  }
  std::vector<R> out;
  for (size_t o = 0; o < owners_.size(); ++o) {
    try {
      if (futures[o]) out.push_back(futures[o]->take());
    } catch (const std::exception&) {
      errors.note(o, owners_[o].name);
    }
  }
  errors.check(what);
  return out;
}

namespace {
/// Gives a void call a value, so that one loop serves both.
rpc::Future<bool> flagged(rpc::Future<void> f) {
  return f.then_inline([] { return true; });
}
}  // namespace

void DistributedOptimizer::step(int64_t context_id) {
  on_all<bool>("step", [&](const Owner& o) {
    return flagged(o.optimizer.rpc_async<&OwnerOptimizer::step>(context_id));
  });
}

double DistributedOptimizer::clip_grad_norm(int64_t context_id, double max_norm, double p) {
  optim::check_clip_norm(max_norm, p);
  const auto parts = on_all<std::vector<double>>("clip_grad_norm", [&](const Owner& o) {
    return o.optimizer.rpc_async<&OwnerOptimizer::powers>(context_id, p);
  });
  std::vector<double> powers(count_, 0.0);
  for (size_t o = 0; o < owners_.size(); ++o)
    for (size_t k = 0; k < owners_[o].at.size(); ++k) powers[owners_[o].at[k]] = parts[o].at(k);
  const double total = optim::total_norm(powers, p), factor = optim::clip_factor(total, max_norm);
  on_all<bool>("clip_grad_norm", [&](const Owner& o) {
    return flagged(o.optimizer.rpc_async<&OwnerOptimizer::scale>(context_id, factor));
  });
  return total;
}

void DistributedOptimizer::set_lr(double lr) {
  if (!(lr >= 0)) throw ValueError(str("set_lr: the rate must not be negative, got ", lr));
  on_all<bool>("set_lr",
               [&](const Owner& o) { return flagged(o.optimizer.rpc_async<&OwnerOptimizer::set_lr>(lr)); });
  lr_ = lr;
}

std::vector<optim::StateDict> DistributedOptimizer::state_dict() const {
  return on_all<optim::StateDict>(
      "state_dict", [](const Owner& o) { return o.optimizer.rpc_async<&OwnerOptimizer::state>(); });
}

void DistributedOptimizer::load_state_dict(const std::vector<optim::StateDict>& state) {
  if (state.size() != owners_.size())
    throw ValueError(str("load_state_dict: ", state.size(), " states for ", owners_.size(), " owners"));
  size_t next = 0;
  on_all<bool>("load_state_dict", [&](const Owner& o) {
    return flagged(o.optimizer.rpc_async<&OwnerOptimizer::load_state>(state[next++]));
  });
}

}  // namespace weft::dist_optim
