// Module: the base of layers and models. A module registers its tensors and children by name in the constructor; parameters, dotted
// names, train/eval, state, moving, seeding and printing are derived from that. Children are plain members, registered by reference,
// which is why a module is neither copyable nor movable. There is no virtual forward: each layer has the one that fits it.
//   struct Policy : nn::Module {
//     nn::Linear affine1{4, 128}, affine2{128, 2};
//     Policy() { add("affine1", affine1); add("affine2", affine2); }
//     Tensor forward(const Tensor& x) { return softmax(affine2.forward(relu(affine1.forward(x))), -1); }
//   };
// Thread safety: reading (forward, parameters) from several threads is safe; registering, loading and moving are not.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn {

/// Tensors by dotted name, in registration order.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StateDict = NamedTensors;

class WEFT_API Module {
 public:
  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Every parameter once, in registration order, children after own; a tensor registered under two names is listed once.
  std::vector<Tensor> parameters() const;
  /// With dotted names ("rnn.weight_ih_l0"); `recurse = false` lists this module's own alone.
  NamedTensors named_parameters(bool recurse = true) const;
  NamedTensors named_buffers(bool recurse = true) const;
  /// This module ("") and all below it with dotted names.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Switches dropout and the like here and below.
  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }

  /// Drops the gradients of all parameters.
  void zero_grad() const;
  /// Switches gradients of all parameters on or off.
  void requires_grad(bool on) const;

  /// Values (shared, not copied) by name; a tied tensor appears under each of its names.
  StateDict state_dict() const;
  /// Copies values in. Throws: ValueError naming missing and unexpected names (strict), ShapeError naming a tensor whose sizes differ;
  /// nothing is changed then.
  void load_state_dict(const StateDict& state, bool strict = true);
  /// Through safetensors. Throws: IoError, and as load_state_dict.
  void save(const std::string& path) const;
  void load(const std::string& path, bool strict = true);

  /// Moves all parameters and buffers; handles held elsewhere follow.
  void to(Device device);
  void to(DType dtype);

  /// Gives this module and every one below a random stream of its own, keyed by seed and dotted name (behind `prefix`), so that
  /// dropout draws the same numbers wherever a part of a model lives.
  void seed(uint64_t seed, std::string_view prefix = {});
  /// The stream of this module: its own once seeded, else the process's default.
  Generator& generator();

  /// Class name with arguments, "Linear(in=4, out=128)".
  virtual std::string name() const { return "Module"; }
  /// The tree of modules, one per line.
  std::string to_string() const;

 protected:
  /// Registers a parameter (requires grad) and returns it.
  Tensor add(std::string name, Tensor parameter);
  Tensor add_buffer(std::string name, Tensor buffer);
  /// Registers a child member. Throws: ValueError on a second use of a name.
  void add(std::string name, Module& child);

 private:
  template <class F> void visit(const std::string& prefix, bool recurse, F&& f) const;
  void check_name(const std::string& name) const;
  struct Slot {
    std::string name;
    Tensor tensor;
    bool is_buffer;
  };
  std::vector<Slot> slots_;
  std::vector<std::pair<std::string, Module*>> children_;
  Generator own_generator_;
  bool seeded_ = false;
  bool training_ = true;
};

/// A module of the same kind with the same values: constructs M(args...) and copies the state.
template <class M, class... Args> std::unique_ptr<M> clone(const M& source, Args&&... args) {
  auto copy = std::make_unique<M>(std::forward<Args>(args)...);
  copy->load_state_dict(source.state_dict());
  copy->train(source.is_training());
  return copy;
}

/// A number for a name, the same on every machine (FNV-1a): keys random streams.
constexpr uint64_t name_key(std::string_view name) {
  uint64_t h = 1469598103934665603ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

}  // namespace weft::nn
