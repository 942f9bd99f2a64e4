// The saved state of an optimizer. It has the state tensors themselves, and new tensors where the next step
// would create them. Loading copies. All entries are checked before anything changes.
#include <weft/optim/optimizer.h>

#include <algorithm>
#include <cstring>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/optim/inner/row_arrears.h>
#include <weft/tensor/factories.h>

namespace weft::optim {
namespace {

// prefix of the entry with the rule's name; its value is the number of parameters
constexpr const char* kRule = "rule.";
constexpr const char* kMaster = "master_param";

}  // namespace

void Optimizer::check_origin(const std::string& rule, int64_t parameters) const {
  if (rule != name())
    throw ValueError(str("load_state_dict: the state is of ", rule, ", this optimizer is ", name()));
  if (parameters != static_cast<int64_t>(params_.size()))
    throw ValueError(str("load_state_dict: the state is of ", parameters, " parameters, this optimizer has ",
                         params_.size()));
}

StateDict Optimizer::state_dict() const {
  settle();
  const auto own = [](const Tensor& t) {  // steps write to it and do not count
    if (!t.is_frozen()) t.body().storage->expose();
    return t;
  };
  StateDict out{
      {kRule + std::string(name()), scalar_tensor(static_cast<int64_t>(params_.size()), {.dtype = kInt64})}};
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].steps == 0) continue;
    const std::string prefix = std::to_string(i) + ".";
    out.emplace_back(prefix + "step", scalar_tensor(slots_[i].steps, {.dtype = kInt64}));
    const Variant v = variant(slots_[i].group);
    // Since the last step, other options may have given the rule less state or more, or the parameter may
    // have got a half type. The entries are those with which the next step would begin.
    const Slot& slot = slots_[i];
    const Tensor& p = params_[i];
    const TensorOptions like{.dtype = state_type(p), .device = p.device()};
    for (size_t s = 0; s < v.state_names.size(); ++s)
      out.emplace_back(prefix + v.state_names[s],
                       s < slot.state.size() ? own(slot.state[s]) : zeros(p.sizes(), like));
    if (needs_master(i))
      out.emplace_back(prefix + kMaster,
                       slot.master.defined() ? own(slot.master) : snapshot(p).detach().to(state_type(p)));
  }
  for (size_t g = 0; g < groups(); ++g)
    out.emplace_back("group" + std::to_string(g) + ".lr", scalar_tensor(lr(g), {.dtype = kFloat64}));
  return out;
}

void Optimizer::load_state_dict(const StateDict& state) {
  settle();
  for (const Slot& slot : slots_)
    if (slot.behind) slot.behind->settle();
  std::vector<Slot> loaded = slots_;
  std::vector<std::pair<size_t, double>> rates;
  std::vector<size_t> found(loaded.size());
  bool of_a_rule = false;
  for (Slot& slot : loaded) {
    slot.steps = 0;
    slot.state.clear();
    slot.master = Tensor();
    slot.behind = nullptr;
  }
  // the tensor of an entry in the form of the state of parameter i
  const auto read = [&](const std::string& name, const Tensor& tensor, size_t i) {
    const Tensor& p = params_[i];
    if (tensor.sizes() != p.sizes())
      throw ShapeError(str("load_state_dict: ", name, " is ", tensor.sizes(), ", the parameter ", p.sizes()));
    const Tensor value = tensor.to(state_type(p));
    if (formula::overflowed(tensor, value))
      throw DTypeError(str("load_state_dict: ", name, " has values that ", state_type(p),
                           ", the type of the parameter's state, does not hold"));
    ++found[i];
    return value.to(p.device()).clone();
  };
  for (size_t n = 0; n < state.size(); ++n) {
    const auto& [name, tensor] = state[n];
    if (!tensor.defined()) throw ValueError(str("load_state_dict: ", name, " is an undefined tensor"));
    if (std::any_of(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(n),
                    [&, &name = name](const auto& before) { return before.first == name; }))
      throw ValueError(str("load_state_dict: the state has ", name, " twice"));
    if (name.starts_with(kRule)) {
      of_a_rule = true;
      check_origin(name.substr(std::strlen(kRule)), tensor.item<int64_t>());
      continue;
    }
    bool known = false;
    for (size_t g = 0; g < groups() && !known; ++g)
      if (name == "group" + std::to_string(g) + ".lr") {
        rates.emplace_back(g, tensor.item<double>());
        known = true;
      }
    for (size_t i = 0; i < loaded.size() && !known; ++i) {
      const std::string prefix = std::to_string(i) + ".";
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      const std::string key = name.substr(prefix.size());
      if (key == "step") {
        loaded[i].steps = tensor.item<int64_t>();
        if (loaded[i].steps < 0)
          throw ValueError(str("load_state_dict: ", name, " is ", loaded[i].steps, ", below 0"));
        known = true;
        continue;
      }
      if (key == kMaster && needs_master(i)) {
        loaded[i].master = read(name, tensor, i);
        known = true;
      }
      const Variant v = variant(loaded[i].group);
      loaded[i].state.resize(v.state_names.size());
      for (size_t s = 0; s < v.state_names.size(); ++s) {
        if (key != v.state_names[s]) continue;
        loaded[i].state[s] = read(name, tensor, i);
        known = true;
      }
    }
    if (!known) throw ValueError(str("load_state_dict: ", this->name(), " has no state called '", name, "'"));
  }
  if (!of_a_rule)
    throw ValueError(str("load_state_dict: the state has no entry '", kRule, this->name(), "'"));
  if (rates.size() != groups())
    throw ValueError(str("load_state_dict: the state has the rates of ", rates.size(),
                         " groups, this optimizer has ", groups()));
  for (size_t i = 0; i < loaded.size(); ++i) {
    if (loaded[i].steps == 0 && found[i] > 0)
      throw ValueError(str("load_state_dict: parameter ", i, " has tensors in the state, and no step"));
    const size_t own = variant(loaded[i].group).state_names.size() + (needs_master(i) ? 1 : 0);
    const size_t needed = loaded[i].steps > 0 ? own : 0;
    if (found[i] < needed)
      throw ValueError(str("load_state_dict: parameter ", i, " has taken ", loaded[i].steps, " steps, and ",
                           found[i], " of its ", needed, " tensors are in the state"));
  }
  // the rule may refuse a rate: then restore the rates set so far
  std::vector<std::pair<size_t, double>> before;
  try {
    for (const auto& [group, rate] : rates) {
      before.emplace_back(group, lr(group));
      set_lr(group, rate);
    }
  } catch (...) {
    for (auto old = before.rbegin(); old != before.rend(); ++old) set_lr(old->first, old->second);
    throw;
  }
  slots_ = std::move(loaded);
}

}  // namespace weft::optim
