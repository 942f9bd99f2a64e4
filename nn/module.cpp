// Module: walks over the tree of modules. One visitor serves names, state, moves and counts. A moved module
// updates the pointers to it in its parents and children. load_state_dict checks everything before it copies.
#include <weft/nn/module.h>

#include <algorithm>
#include <cstring>
#include <ostream>

#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/io/safetensors.h>
#include <weft/tensor/random_state.h>

namespace weft::nn {
namespace {

/// Bitwise equality, in which a NaN equals itself.
bool same_values(const Tensor& a, const Tensor& b) {
  if (a.is_same(b) || (a.address() == b.address() && a.dtype() == b.dtype() && a.strides() == b.strides()))
    return true;
  NoGrad guard;
  const Tensor x = a.detach().to(kCpu).contiguous(), y = b.detach().to(kCpu).to(a.dtype()).contiguous();
  return std::memcmp(x.address(), y.address(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0;
}

/// Throws the error that writing `value` into `own` would throw. Writes nothing.
void check_takes(const std::string& name, const Tensor& own, const Tensor& value) {
  const std::string about = str("load_state_dict: ", name);
  launch::check_writable(about.c_str(), own);
  if (own.body().storage->is_read_only())
    throw ValueError(str(about, " ", own.body().storage->read_only_reason()));
  if (own.dtype() == value.dtype()) return;
  const Tensor cast = value.to(own.dtype());
  if (is_floating(own.dtype()) ? formula::overflowed(value, cast) : !same_values(value, cast))
    throw DTypeError(str("load_state_dict: ", name, " is ", own.dtype(),
                         " here, which does not hold the state's ", value.dtype(), " values"));
}

}  // namespace

Module::Module(Module&& from) noexcept
    : slots_(std::move(from.slots_)),
      children_(std::move(from.children_)),
      parents_(std::move(from.parents_)),
      own_generator_(from.own_generator_),
      seeded_(from.seeded_),
      training_(from.training_) {
  // the members move after this; a Module made of the base alone keeps their tensors
  for (Slot& slot : slots_)
    if (slot.locate)
      if (const Tensor* const member = slot.locate(from)) slot.tensor = *member;
  for (Module* const parent : parents_)
    for (auto& child : parent->children_)
      if (child.second == &from) child.second = this;
  for (const auto& child : children_)
    for (Module*& parent : child.second->parents_)
      if (parent == &from) parent = this;
}

// Member modules are destroyed before this destructor of the base runs; the children still listed live on.
Module::~Module() {
  for (Module* const parent : parents_)
    std::erase_if(parent->children_, [this](const auto& child) { return child.second == this; });
  for (const auto& child : children_) std::erase(child.second->parents_, this);
}

template <class F> void Module::visit(const std::string& prefix, bool recurse, F&& f) const {
  for (const Slot& slot : slots_)
    if (const Tensor& tensor = tensor_of(slot); tensor.defined())
      f(prefix + slot.name, tensor, slot.is_buffer);
  if (!recurse) return;
  for (const auto& [name, child] : children_) child->visit(prefix + name + ".", true, f);
}

const Tensor& Module::tensor_of(const Slot& slot) const {
  const Tensor* const member = slot.locate ? slot.locate(*this) : nullptr;
  return member ? *member : slot.tensor;
}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    throw ValueError(
        str(this->name(), ": a registered name must be non-empty and without dots, got '", name, "'"));
  const bool taken =
      std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.name == name; }) ||
      std::any_of(children_.begin(), children_.end(), [&](const auto& c) { return c.first == name; });
  if (taken) throw ValueError(str(this->name(), ": the name '", name, "' is registered twice"));
}

Tensor Module::add(std::string name, Tensor parameter) {
  check_name(name);
  if (!parameter.requires_grad()) parameter.requires_grad_();
  slots_.push_back({std::move(name), parameter, false});
  return parameter;
}

void Module::add_slot(std::string name, Locate locate, bool is_buffer) {
  check_name(name);
  if (!locate(*this))
    throw ValueError(str(this->name(), ": the member of '", name, "' belongs to another class"));
  slots_.push_back({std::move(name), Tensor(), is_buffer, std::move(locate)});
}

Tensor Module::add_buffer(std::string name, Tensor buffer) {
  check_name(name);
  slots_.push_back({std::move(name), buffer, true});
  return buffer;
}

void Module::add(std::string name, Module& child) {
  check_name(name);
  for (const auto& [path, below] : child.named_modules())
    if (below == this) throw ValueError(str(this->name(), ": '", name, "' is this module, or contains it"));
  child.parents_.reserve(child.parents_.size() + 1);  // so that nothing below throws
  children_.emplace_back(std::move(name), &child);
  if (std::find(child.parents_.begin(), child.parents_.end(), this) == child.parents_.end())
    child.parents_.push_back(this);
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  visit("", true, [&](const std::string&, const Tensor& tensor, bool is_buffer) {
    if (is_buffer) return;
    if (std::none_of(out.begin(), out.end(), [&](const Tensor& t) { return t.is_same(tensor); }))
      out.push_back(tensor);
  });
  return out;
}

NamedTensors Module::named_parameters(bool recurse) const {
  NamedTensors out;
  visit("", recurse, [&](const std::string& name, const Tensor& tensor, bool is_buffer) {
    if (!is_buffer) out.emplace_back(name, tensor);
  });
  return out;
}

NamedTensors Module::named_buffers(bool recurse) const {
  NamedTensors out;
  visit("", recurse, [&](const std::string& name, const Tensor& tensor, bool is_buffer) {
    if (is_buffer) out.emplace_back(name, tensor);
  });
  return out;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> out{{"", this}};
  for (const auto& [name, child] : children_)
    for (const auto& [below, module] : child->named_modules())
      out.emplace_back(below.empty() ? name : name + "." + below, module);
  return out;
}

Module& Module::train(bool on) {
  if (training_ != on) weft::detail::note_mode_change();
  training_ = on;
  for (const auto& child : children_) child.second->train(on);
  return *this;
}

void Module::copy_modes(const Module& source) {
  if (training_ != source.training_) weft::detail::note_mode_change();
  training_ = source.training_;
  const NamedTensors theirs = source.named_parameters(false);
  for (auto& [name, tensor] : named_parameters(false))
    for (const auto& [other, value] : theirs)
      if (name == other) tensor.requires_grad_(value.requires_grad());
  for (const auto& [name, child] : children_)
    for (const auto& [other, module] : source.children_)
      if (name == other) child->copy_modes(*module);
}

void Module::zero_grad() const {
  for (const Tensor& p : parameters()) p.zero_grad();
}

void Module::requires_grad(bool on) const {
  for (Tensor& p : parameters()) p.requires_grad_(on);
}

void Module::freeze() const {
  std::vector<Tensor> all;
  visit("", true, [&](const std::string&, const Tensor& tensor, bool) { all.push_back(tensor); });
  for (const Tensor& t : all)
    if (t.body().storage->lock()) t.freeze();  // throws before any change
  for (const Tensor& t : all) t.freeze();
}

StateDict Module::state_dict() const {
  StateDict out;
  visit("", true, [&](const std::string& name, const Tensor& tensor, bool) {
    out.emplace_back(name, tensor.detach());
  });
  return out;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  const auto find = [](const StateDict& in, const std::string& name) {
    return std::find_if(in.begin(), in.end(), [&](const auto& entry) { return entry.first == name; });
  };
  StateDict own;
  visit("", true,
        [&](const std::string& name, const Tensor& tensor, bool) { own.emplace_back(name, tensor); });
  for (auto it = state.begin(); it != state.end(); ++it) {
    if (!it->second.defined())
      throw ValueError(str("load_state_dict: ", it->first, " is an undefined tensor"));
    if (find(state, it->first) != it)
      throw ValueError(str("load_state_dict: the state has ", it->first, " twice"));
  }
  std::string missing, unexpected;
  for (const auto& [name, tensor] : own) {
    const auto found = find(state, name);
    if (found == state.end()) {
      missing += " " + name;
    } else if (found->second.sizes() != tensor.sizes()) {
      throw ShapeError(str("load_state_dict: ", name, " is ", tensor.sizes(), " here and ",
                           found->second.sizes(), " in the state"));
    }
  }
  for (const auto& entry : state)
    if (find(own, entry.first) == own.end()) unexpected += " " + entry.first;
  if (strict && !(missing.empty() && unexpected.empty()))
    throw ValueError(str("load_state_dict of ", name(), ":", missing.empty() ? "" : " missing:" + missing,
                         missing.empty() || unexpected.empty() ? "" : ";",
                         unexpected.empty() ? "" : " unexpected:" + unexpected));
  for (const auto& [name, tensor] : own)
    if (const auto found = find(state, name); found != state.end()) check_takes(name, tensor, found->second);
  for (size_t i = 0; i < own.size(); ++i)
    for (size_t k = 0; k < i; ++k) {
      if (!own[i].second.is_same(own[k].second)) continue;
      const auto a = find(state, own[k].first), b = find(state, own[i].first);
      if (a != state.end() && b != state.end() && !same_values(a->second, b->second))
        throw ValueError(str("load_state_dict: ", a->first, " and ", b->first,
                             " are one tensor here, and have different values in the state"));
      break;
    }
  NoGrad guard;
  std::vector<std::pair<Tensor, Tensor>> writes;  // a value that lies in memory to be written is copied first
  for (const auto& [name, tensor] : own) {
    const auto found = find(state, name);
    if (found == state.end()) continue;
    const Tensor& value = found->second;
    const bool itself = value.address() == tensor.address() && value.strides() == tensor.strides();
    const bool overwritten = !itself && std::any_of(own.begin(), own.end(), [&](const auto& entry) {
      return launch::share_memory(entry.second, value);
    });
    writes.emplace_back(tensor, overwritten ? value.clone() : value);
  }
  for (auto& [tensor, value] : writes) tensor.copy_(value);
}

void Module::save(const std::string& path) const { save_safetensors(path, state_dict(), {{"format", "pt"}}); }

void Module::load(const std::string& path, bool strict) {
  load_state_dict(load_safetensors(path).tensors, strict);
}

template <class F> void Module::move_all(const F& moved) {
  std::vector<Module*> changed;
  for (const auto& entry : named_modules()) {
    bool any = false;
    entry.second->visit("", false, [&](const std::string&, const Tensor& tensor, bool) {
      const Storage* const before = tensor.body().storage.get();
      set_data(tensor, moved(tensor.detach()));
      any = any || tensor.body().storage.get() != before;
    });
    if (any) changed.push_back(entry.second);
  }
  for (Module* const module : changed) module->parameters_moved();
}

void Module::to(Device device) {
  move_all([&](const Tensor& tensor) { return tensor.to(device); });
}

void Module::to(DType dtype) {
  move_all([&](const Tensor& tensor) { return tensor.is_floating_point() ? tensor.to(dtype) : tensor; });
}

void Module::seed(uint64_t seed, std::string_view prefix) {
  for (const auto& [name, module] : named_modules()) {
    std::string full(prefix);
    if (!full.empty() && !name.empty()) full += ".";
    module->own_generator_ = Generator(seed).fork(name_key(full + name));
    module->seeded_ = true;
  }
}

StateDict Module::generator_state() const {
  StateDict out;
  if (seeded_) out.emplace_back("", weft::generator_state(own_generator_));
  for (const auto& [name, child] : children_)
    for (const auto& [below, state] : child->generator_state())
      out.emplace_back(below.empty() ? name : name + "." + below, state);
  return out;
}

void Module::load_generator_state(const StateDict& state) {
  const auto modules = named_modules();
  std::vector<std::pair<Module*, Generator>> streams;
  for (const auto& [name, tensor] : state) {
    const auto found = std::find_if(modules.begin(), modules.end(),
                                    [&name = name](const auto& m) { return m.first == name; });
    if (found == modules.end())
      throw ValueError(str("load_generator_state: there is no module '", name, "'"));
    set_generator_state(streams.emplace_back(found->second, Generator()).second, tensor);
  }
  for (const auto& entry : modules) entry.second->seeded_ = false;
  for (const auto& [module, generator] : streams) {
    module->own_generator_ = generator;
    module->seeded_ = true;
  }
}

Generator& Module::generator() const { return seeded_ ? own_generator_ : default_generator(); }

std::string Module::to_string() const {
  if (children_.empty()) return name();
  std::string out = name() + "(\n";
  for (const auto& [label, child] : children_) {
    std::string below = child->to_string();
    for (size_t at = below.find('\n'); at != std::string::npos; at = below.find('\n', at + 3))
      below.replace(at, 1, "\n  ");
    out += "  (" + label + "): " + below + "\n";
  }
  return out + ")";
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << module.to_string(); }

}  // namespace weft::nn
