// The derived half of Module: walking the tree. One visitor serves names, state, moving and counting.
#include <weft/nn/module.h>

#include <algorithm>

#include <weft/autograd/grad_mode.h>
#include <weft/autograd/set_data.h>
#include <weft/tensor/safetensors.h>

namespace weft::nn {

Module::~Module() = default;

template <class F> void Module::visit(const std::string& prefix, bool recurse, F&& f) const {
  for (const Slot& slot : slots_) f(prefix + slot.name, slot);
  if (!recurse) return;
  for (const auto& [name, child] : children_) child->visit(prefix + name + ".", true, f);
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

Tensor Module::add_buffer(std::string name, Tensor buffer) {
  check_name(name);
  slots_.push_back({std::move(name), buffer, true});
  return buffer;
}

void Module::add(std::string name, Module& child) {
  check_name(name);
  children_.emplace_back(std::move(name), &child);
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  visit("", true, [&](const std::string&, const Slot& slot) {
    if (slot.is_buffer) return;
    if (std::none_of(out.begin(), out.end(), [&](const Tensor& t) { return t.is_same(slot.tensor); }))
      out.push_back(slot.tensor);
  });
  return out;
}

NamedTensors Module::named_parameters(bool recurse) const {
  NamedTensors out;
  visit("", recurse, [&](const std::string& name, const Slot& slot) {
    if (!slot.is_buffer) out.emplace_back(name, slot.tensor);
  });
  return out;
}

NamedTensors Module::named_buffers(bool recurse) const {
  NamedTensors out;
  visit("", recurse, [&](const std::string& name, const Slot& slot) {
    if (slot.is_buffer) out.emplace_back(name, slot.tensor);
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
  training_ = on;
  for (const auto& child : children_) child.second->train(on);
  return *this;
}

void Module::zero_grad() const {
  for (const Tensor& p : parameters()) p.zero_grad();
}

void Module::requires_grad(bool on) const {
  for (Tensor& p : parameters()) p.requires_grad_(on);
}

StateDict Module::state_dict() const {
  StateDict out;
  visit("", true,
        [&](const std::string& name, const Slot& slot) { out.emplace_back(name, slot.tensor.detach()); });
  return out;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  const auto find = [](const StateDict& in, const std::string& name) {
    return std::find_if(in.begin(), in.end(), [&](const auto& entry) { return entry.first == name; });
  };
  StateDict own;
  visit("", true, [&](const std::string& name, const Slot& slot) { own.emplace_back(name, slot.tensor); });
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
  NoGrad guard;
  for (auto& [name, tensor] : own)
    if (const auto found = find(state, name); found != state.end()) tensor.copy_(found->second);
}

void Module::save(const std::string& path) const { save_safetensors(path, state_dict(), {{"format", "pt"}}); }

void Module::load(const std::string& path, bool strict) {
  load_state_dict(load_safetensors(path).tensors, strict);
}

void Module::to(Device device) {
  visit("", true, [&](const std::string&, const Slot& slot) {
    set_data(slot.tensor, slot.tensor.detach().to(device));
  });
}

void Module::to(DType dtype) {
  visit("", true, [&](const std::string&, const Slot& slot) {
    if (slot.tensor.is_floating_point()) set_data(slot.tensor, slot.tensor.detach().to(dtype));
  });
}

void Module::seed(uint64_t seed, std::string_view prefix) {
  for (const auto& [name, module] : named_modules()) {
    std::string full(prefix);
    if (!full.empty() && !name.empty()) full += ".";
    module->own_generator_ = Generator(seed).fork(name_key(full + name));
    module->seeded_ = true;
  }
}

Generator& Module::generator() { return seeded_ ? own_generator_ : default_generator(); }

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

}  // namespace weft::nn
