// RemoteModule<M>: a handle to a module on another worker. M derives from nn::Module and is registered
// with its forward:
//
//   struct Net : nn::Module { Net(int64_t in, int64_t out); Tensor forward(const Tensor& x); };
//   WEFT_RPC_CLASS(Net, forward);
//   RemoteModule<Net> net("ps", 4, 2);                      // constructs the module on "ps"
//   Tensor y = net.forward(x);                              // runs on "ps"; forward_async returns a Future
//   DistributedOptimizer(..., net.remote_parameters(), ...)
//   net.eval();                                             // switches the module on "ps"
//   RemoteModule<Net> fast("ps/cuda:0", 4, 2);   // on a device; "rank:1/cuda:0" names the worker by rank
//
// A module on a device gets its inputs on that device. Its results follow the device map; without an entry
// they return on the CPU. RemoteModule is a thin layer over RRef<M>: get_module_rref() returns the reference,
// and a RemoteModule can be made from a reference. Other methods of M are called through the reference. A
// program that names RemoteModule<M> needs no registration of train, eval, parameters, state and seeds. A
// program that only serves writes WEFT_REMOTE_MODULE(Net) as well.
// Thread safety: as RRef. Concurrent calls of forward and train are as safe as on a local module. Every
// function that calls the owner blocks until the reply, at most for the default timeout, and throws as
// RRef::rpc_sync.
#pragma once

#include <weft/distributed/rref/rref.h>
#include <weft/nn/module.h>

namespace weft::nn {
/// The class name in references to a module of any class.
inline const char* weft_rpc_class_name(const ::weft::rpc::detail::TypeTag<Module>&) { return "nn::Module"; }
}  // namespace weft::nn

namespace weft::rpc {

/// Classes that RemoteModule accepts.
template <class M>
concept HeldRemotely = std::is_base_of_v<nn::Module, M> && requires {
  &M::forward;
};

namespace detail {

/// References to the parameters of a module of this worker.
WEFT_API std::vector<RRef<Tensor>> parameter_rrefs(const nn::Module& module, bool recurse);
/// The module's state_dict, with all tensors on the CPU.
WEFT_API nn::NamedTensors state_on_cpu(const nn::Module& module);
/// Splits "ps/cuda:0" or "rank:1/cuda:0" into worker and device; without a slash the device is the CPU.
/// Throws: ValueError for another form, DeviceError for an unknown kind of device.
WEFT_API std::pair<Destination, Device> split_remote_device(const Destination& to);

// Functions that run on the owner.
template <class M> std::vector<RRef<Tensor>> module_parameters(const RRef<M>& m, bool recurse) {
  return parameter_rrefs(m.local_value(), recurse);
}
template <class M> void module_train(const RRef<M>& m, bool on) { m.local_value().train(on); }
template <class M> bool module_is_training(const RRef<M>& m) { return m.local_value().is_training(); }
template <class M> nn::NamedTensors module_state(const RRef<M>& m) { return state_on_cpu(m.local_value()); }
template <class M> void module_to(const RRef<M>& m, const std::string& device) {
  m.local_value().to(Device(device));
}
template <class M> void module_load(const RRef<M>& m, const nn::NamedTensors& state) {
  m.local_value().load_state_dict(state);
}
template <class M> void module_seed(const RRef<M>& m, uint64_t seed, const std::string& prefix) {
  m.local_value().seed(seed, prefix);
}
template <class M> nn::StateDict module_streams(const RRef<M>& m) {
  return m.local_value().generator_state();
}
template <class M> void module_load_streams(const RRef<M>& m, const nn::StateDict& state) {
  m.local_value().load_generator_state(state);
}
/// The module as its base class, for code without M.
template <class M> RRef<nn::Module> module_base(const RRef<M>& m) {
  return RRef<nn::Module>(std::shared_ptr<nn::Module>(m.local_ptr()));
}

/// Registers these functions for M, once.
template <class M> bool register_module() {
  const std::string of = "RemoteModule<" + type_name<M>() + ">::";
  return register_function<&module_parameters<M>>((of + "remote_parameters").c_str()) &&
         register_function<&module_train<M>>((of + "train").c_str()) &&
         register_function<&module_is_training<M>>((of + "is_training").c_str()) &&
         register_function<&module_state<M>>((of + "state_dict").c_str()) &&
         register_function<&module_load<M>>((of + "load_state_dict").c_str()) &&
         register_function<&module_seed<M>>((of + "seed").c_str()) &&
         register_function<&module_streams<M>>((of + "generator_state").c_str()) &&
         register_function<&module_load_streams<M>>((of + "load_generator_state").c_str()) &&
         register_function<&module_base<M>>((of + "base").c_str()) &&
         register_function<&module_to<M>>((of + "to").c_str());
}
template <class M> inline const bool module_registered = register_module<M>();

}  // namespace detail

/// A handle to a module of class M on another worker; see the head of this file.
template <class M> class RemoteModule {
 public:
  using module_type = M;
  /// As a CheckpointPart: a load that throws may have taken effect.
  static constexpr bool kLoadsRemotely = true;

  /// Constructs M(args...) on `to`, "worker" or "worker/device". Without a device it returns at once, and an
  /// error of M's constructor is thrown at the first use. With a device it blocks until the module is there,
  /// and throws that error and the DeviceError of a missing device. Throws: as remote<M>; ValueError or
  /// DeviceError for a malformed device.
  template <class... A>
  requires std::is_constructible_v<M, constructor_argument_t<A>...>
  explicit RemoteModule(const Destination& to, A&&... args)
      : RemoteModule(detail::split_remote_device(to), std::forward<A>(args)...) {}
  /// A handle to an existing module on `device` of its worker.
  explicit RemoteModule(RRef<M> module, Device device = {}) : module_(std::move(module)), device_(device) {
    static_assert(HeldRemotely<M>,
                  "a RemoteModule holds a class that derives from nn::Module and has a forward");
    (void)detail::module_registered<M>;
  }
  /// The empty handle. It can be sent; any use throws RpcError.
  RemoteModule() = default;

  /// Runs the module's forward on its worker. Shapes as M::forward. Throws: as RRef::rpc_sync.
  template <class... A> auto forward(A&&... args) const {
    return forward_async(std::forward<A>(args)...).take();
  }
  template <class... A> auto operator()(A&&... args) const { return forward(std::forward<A>(args)...); }
  /// The same without waiting; returns a Future.
  template <class... A> auto forward_async(A&&... args) const {
    if (device_.is_cpu()) return module_.template rpc_async<&M::forward>(std::forward<A>(args)...);
    return module_.template rpc_async_on<&M::forward>(device_, std::forward<A>(args)...);
  }

  /// A reference to each parameter, owned by the module's worker, in the order of Module::parameters.
  std::vector<RRef<Tensor>> remote_parameters(bool recurse = true) const {
    return call<&detail::module_parameters<M>>(recurse);
  }
  /// Switches the module and its submodules to training or evaluation mode; done on return.
  void train(bool on = true) const { call<&detail::module_train<M>>(on); }
  void eval() const { train(false); }
  bool is_training() const { return call<&detail::module_is_training<M>>(); }
  /// CPU copies of parameters and buffers by dotted name.
  nn::NamedTensors state_dict() const { return call<&detail::module_state<M>>(); }
  /// Loads parameters and buffers by dotted name. Throws, with nothing changed: as Module::load_state_dict.
  void load_state_dict(const nn::NamedTensors& state) const { call<&detail::module_load<M>>(state); }
  /// As Module::seed on the owner.
  void seed(uint64_t seed, const std::string& prefix = {}) const {
    call<&detail::module_seed<M>>(seed, prefix);
  }
  /// The streams set by seed(), by dotted module name. This function and the next one make RemoteModule a
  /// CheckpointPart.
  nn::StateDict generator_state() const { return call<&detail::module_streams<M>>(); }
  /// Restores the streams. Throws, with nothing changed: as Module::load_generator_state.
  void load_generator_state(const nn::StateDict& state) const {
    call<&detail::module_load_streams<M>>(state);
  }

  /// The reference to the module.
  const RRef<M>& get_module_rref() const { return module_; }
  const WorkerInfo& owner() const { return module_.owner(); }
  /// The module's device on its worker.
  Device device() const { return device_; }

 private:
  template <auto F, class... A> auto call(A&&... args) const {
    return rpc::rpc_sync<F>(To(module_.owner_life()), module_, std::forward<A>(args)...);
  }
  template <class... A>
  explicit RemoteModule(const std::pair<Destination, Device>& where, A&&... args)
      : RemoteModule(remote<M>(where.first, std::forward<A>(args)...), where.second) {
    if (!device_.is_cpu()) call<&detail::module_to<M>>(to_string(device_));
  }
  RRef<M> module_;
  Device device_;
};

template <class M> struct Codec<RemoteModule<M>> {
  static std::string name() { return "RemoteModule<" + detail::type_name<M>() + ">"; }
  static void encode(Encoder& out, const RemoteModule<M>& v) {
    out.put(v.get_module_rref());
    out.put(to_string(v.device()));
  }
  static RemoteModule<M> decode(Decoder& in) {
    auto module = in.get<RRef<M>>();
    const Device device(in.get<std::string>());
    return module ? RemoteModule<M>(std::move(module), device) : RemoteModule<M>();
  }
};

}  // namespace weft::rpc

/// Registers RemoteModule<Class> in a program that only serves it. Write it at namespace
/// scope after WEFT_RPC_CLASS.
#define WEFT_REMOTE_MODULE(Class)                                                  \
  [[maybe_unused]] static const bool WEFT_CAT(weft_rpc_registered_, __COUNTER__) = \
      ::weft::rpc::detail::module_registered<Class>
