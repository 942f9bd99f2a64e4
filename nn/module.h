// Module: the base of layers and models. A module registers its tensors and children by name in the
// constructor. Parameters, dotted names, train/eval, state, device moves, seeding and printing follow from
// that. Children are plain members, registered by reference. A moved module takes its registrations along, so
// a std::vector may hold modules. Modules are not copied; clone() creates another module. forward is not
// virtual: each layer declares its own.
//   struct Policy : nn::Module {
//     nn::Linear affine1{4, 128}, affine2{128, 2};
//     Policy() { add("affine1", affine1); add("affine2", affine2); }
//     Tensor forward(const Tensor& x) { return softmax(affine2.forward(relu(affine1.forward(x))), -1); }
//   };
// A tensor is registered with its member: add("scale", &Policy::scale, ones({2})). The module always lists
// the tensor that the member holds at that moment. So weights are tied by `b.weight = a.weight`; create the
// optimizer afterwards, since it keeps the tensors that it gets.
// Thread safety: reading (forward, parameters) from several threads is safe; registering, loading and moving
// to a device are not.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/autograd/tape/callback.h>
#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn {

/// Tensors by dotted name, in registration order.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StateDict = NamedTensors;

/// The base of layers and models: parameters and children by name, state, device moves.
class WEFT_API Module {
 public:
  Module() = default;
  virtual ~Module();
  /// Takes over the contents of `from`, and its place in the modules that registered it.
  Module(Module&& from) noexcept;
  // The compiler shows these lines, with their comments, for a copy, an assignment and a call. Instead, a
  // reference or pointer refers to this module, and an optional or unique_ptr can hold a new module.
  Module(const Module&) = delete;             // not copied: nn::clone creates another one
  Module& operator=(const Module&) = delete;  // not assigned: load_state_dict() copies values

  template <class... A> void operator()(A&&...) const = delete;  // not called: write module.forward(...)

  /// All parameters in registration order, the children's parameters last. A tensor registered under two
  /// names is listed once.
  std::vector<Tensor> parameters() const;
  /// The same with dotted names ("rnn.weight_ih_l0"), a tied tensor under each of its names; without
  /// `recurse` only the parameters of this module.
  NamedTensors named_parameters(bool recurse = true) const;
  /// The same for buffers: tensors of the state that are not trained.
  NamedTensors named_buffers(bool recurse = true) const;
  /// This module ("") and all its descendants, with dotted names.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Sets training mode, which dropout obeys, for this module and its descendants.
  Module& train(bool on = true);
  /// As train(false).
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }
  /// Copies the training mode of each module and requires_grad of each parameter from the namesakes in
  /// `source`.
  void copy_modes(const Module& source);

  /// Clears the gradients of all parameters.
  void zero_grad() const;
  /// Sets requires_grad of all parameters.
  void requires_grad(bool on) const;

  /// Freezes all parameters and buffers (Tensor::freeze): no write through weft changes them any more, to()
  /// included. Throws, before any change: ValueError for a parameter marked concurrent.
  void freeze() const;

  /// Parameters and buffers by name, shared, not copied; a tied tensor appears under each of its names.
  StateDict state_dict() const;
  /// Copies the values into the parameters and buffers. Throws, before any change: ValueError that lists
  /// missing and unexpected names (if strict), or names a repeated name. ValueError for two names of one
  /// tensor with different values. ShapeError that names a tensor of other sizes. DTypeError for values that
  /// the dtype cannot hold.
  void load_state_dict(const StateDict& state, bool strict = true);
  /// state_dict() as a safetensors file. Throws: IoError, and load() as load_state_dict.
  void save(const std::string& path) const;
  /// Loads a file of save() or another safetensors file, as load_state_dict.
  void load(const std::string& path, bool strict = true);

  /// Moves all parameters and buffers in place, so that other handles to them change too, and clears their
  /// gradients.
  void to(Device device);
  /// The same, but converts the floating parameters and buffers to `dtype`.
  void to(DType dtype);

  /// Gives this module and each descendant a separate random stream, keyed by the seed, `prefix` and the
  /// dotted name. Dropout then draws the same numbers when parts of the model run in different processes.
  void seed(uint64_t seed, std::string_view prefix = {});
  /// The states of the streams set by seed(), by dotted module name ("" for this module), each int64 [2]
  /// (tensor/random_state.h).
  StateDict generator_state() const;
  /// Restores the streams of the named modules; all other modules then use default_generator(). Throws,
  /// before any change: ValueError that names an unknown module or a tensor that is no stream.
  void load_generator_state(const StateDict& state);
  /// This module's generator: its stream from seed(), else default_generator().
  Generator& generator() const;

  /// Class name with arguments, "Linear(in=4, out=128)".
  virtual std::string name() const { return "Module"; }
  /// The tree of modules, one per line.
  std::string to_string() const;
  /// As to_string.
  friend WEFT_API std::ostream& operator<<(std::ostream& out, const Module& module);

 protected:
  /// Assigns the parameter (requires grad) to the member and registers the member. While the member is
  /// undefined, the module does not list it. A tensor assigned to the member later trains if it requires
  /// grad. Throws: ValueError for a name that is already used.
  template <class M> void add(std::string name, Tensor M::*member, Tensor parameter) {
    if (parameter.defined() && !parameter.requires_grad()) parameter.requires_grad_();
    add_member(std::move(name), member, std::move(parameter), false);
  }
  /// Registers a buffer with its member, as add().
  template <class M> void add_buffer(std::string name, Tensor M::*member, Tensor buffer) {
    add_member(std::move(name), member, std::move(buffer), true);
  }
  /// Registers a parameter (requires grad) and returns it. The module keeps listing this tensor, even if a
  /// member that held it is assigned another tensor.
  Tensor add(std::string name, Tensor parameter);
  /// Registers a buffer and returns it, as add().
  Tensor add_buffer(std::string name, Tensor buffer);
  /// Registers a child; its destructor removes it. Throws: ValueError for a name that is already used.
  void add(std::string name, Module& child);

 private:
  /// Called when to() has moved all parameters and buffers, if one of this module's own is among them.
  virtual void parameters_moved() {}
  template <class F> void move_all(const F& moved);
  template <class F> void visit(const std::string& prefix, bool recurse, F&& f) const;
  void check_name(const std::string& name) const;
  // The member of a module. Null if the module is not of the member's class: its derived part is gone.
  using Locate = Callback<const Tensor*(const Module&)>;
  struct Slot {
    std::string name;
    Tensor tensor;
    bool is_buffer;
    Locate locate{};  // null: the slot's own tensor counts
  };
  const Tensor& tensor_of(const Slot& slot) const;
  void add_slot(std::string name, Locate locate, bool is_buffer);
  template <class M> void add_member(std::string name, Tensor M::*member, Tensor value, bool is_buffer) {
    M* const self = dynamic_cast<M*>(this);
    add_slot(
        std::move(name),
        [member](const Module& module) -> const Tensor* {
          const M* const of = dynamic_cast<const M*>(&module);
          return of ? &(of->*member) : nullptr;
        },
        is_buffer);
    self->*member = std::move(value);
  }
  std::vector<Slot> slots_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<Module*> parents_;  ///< modules that registered this one as a child
  // mutable: drawing does not change the module, and is safe from several threads
  mutable Generator own_generator_;
  bool seeded_ = false;
  bool training_ = true;
};

/// Walks over a container of modules by number.
template <class Container> struct ModuleIterator {
  const Container* in;
  int64_t at;
  Module& operator*() const { return (*in)[at]; }
  ModuleIterator& operator++() {
    ++at;
    return *this;
  }
  bool operator==(const ModuleIterator&) const = default;
};

/// A new module with the same values: constructs M(args...), then copies the state. Each child has the
/// training mode of its counterpart, each parameter its requires_grad.
template <class M, class... Args> std::unique_ptr<M> clone(const M& source, Args&&... args) {
  auto copy = std::make_unique<M>(std::forward<Args>(args)...);
  copy->load_state_dict(source.state_dict());
  copy->copy_modes(source);
  return copy;
}

/// A hash of the name, the same on every machine (FNV-1a); keys random streams.
constexpr uint64_t name_key(std::string_view name) {
  uint64_t h = 1469598103934665603ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

}  // namespace weft::nn
