// Optimizer: groups of parameters, their state, and one fused pass per step. A rule is an options struct and a functor that updates one
// element (or vector of elements): that functor is the whole rule, and writing one is how users add an optimizer:
//   struct SignMomentum {
//     struct Options { double lr = 1e-3; double momentum = 0.9; };
//     static constexpr const char* kName = "SignMomentum";
//     static constexpr int kState = 1;
//     double lr, m;
//     SignMomentum(const Options& o, int64_t) : lr(o.lr), m(o.momentum) {}
//     template <class V> void operator()(V& p, const V& g, V* s) const { s[0] = m * s[0] + (1 - m) * g; p -= lr * select(s[0] > 0, V(1), V(-1)); }
//   };
//   optim::Fused<SignMomentum> opt(model.parameters(), {.lr = 0.01});
// For parameters on CUDA devices its call operator is marked WEFT_HD, and a .cu file says WEFT_STEP_CUDA(SignMomentum) (kernels/cuda/step_cuda.h).
// It gets the multi-tensor kernel (one backend call per step), parameter groups, state saving and the distributed optimizer.
// The second constructor argument is the number of this parameter's step, from 1. State begins at zero and persists across steps; a
// gradient is never written; a parameter without a gradient is skipped and keeps its state.
// A step that a cuda::Graph records is not taken then: each replay takes one, with the rate and the step count of its time.
// Thread safety: an optimizer may be stepped from several threads (its own mutex); several optimizers may share parameters marked
// concurrent (their locks are taken in address order for the time of the pass). Other members: one thread.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <weft/kernels/step.h>
#include <weft/kernels/step_cpu.h>
#include <weft/tensor/cuda.h>

namespace weft::optim {

/// Named tensors that make up an optimizer's state (and its step counts as int64 tensors).
using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// What a step needs of a rule for given options: which kernel, how many state tensors and their names, how to make the functor.
struct Variant {
  StepKernel kernel;
  size_t functor_bytes = 0;
  std::vector<const char*> state_names;
};

class WEFT_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the parameters' grad().
  void step();
  /// One update from the given gradients, one per parameter in order of parameters(); undefined means absent.
  /// With `skip`, a float64 number on any device: unless that is not 0 when the step's turn comes there. The call does not wait for that; what next uses
  /// the step counts does, the next step among them. A recording may hold one such step of an optimizer.
  /// Throws: ValueError for a list of another length, ShapeError / DTypeError naming the parameter; nothing is changed then.
  void step(std::span<const Tensor> grads, const Tensor& skip = Tensor());
  void zero_grad() const;

  /// Every parameter, group after group.
  const std::vector<Tensor>& parameters() const { return params_; }
  virtual size_t groups() const = 0;
  virtual double lr(size_t group = 0) const = 0;
  /// Throws: ValueError for a negative rate.
  virtual void set_lr(size_t group, double lr) = 0;
  void set_lr(double lr) {
    for (size_t g = 0; g < groups(); ++g) set_lr(g, lr);
  }
  virtual const char* name() const = 0;
  /// Number of steps that parameter i has taken.
  int64_t steps(size_t i) const {
    settle();
    return slots_.at(i).steps;
  }
  /// Number of backend calls made by steps so far (one per step and dtype).
  int64_t kernel_calls() const { return kernel_calls_; }

  /// "<index>.<state name>" and "<index>.step" per parameter that has state, "group<g>.lr" per group.
  StateDict state_dict() const;
  /// Throws: ValueError for an unknown name or a rate that the rule refuses, ShapeError; nothing is changed then.
  void load_state_dict(const StateDict& state);

 protected:
  Optimizer() = default;
  void add_params(const std::vector<Tensor>& params, size_t group);
  virtual Variant variant(size_t group) const = 0;
  /// Constructs the functor of `group` for step `t` at `place`.
  virtual void construct(void* place, size_t group, int64_t t) const = 0;

 private:
  struct Slot {
    size_t group = 0;
    int64_t steps = 0;
    std::vector<Tensor> state;
  };
  /// A step that was counted although its `skip` was not known.
  struct Unsettled {
    Tensor skip;                         // of a recorded step: what its last replay left on the device
    std::shared_ptr<cuda::Event> known;  // else on the host, once this has passed
    std::vector<size_t> params;
    uint64_t replay = 0;  // that a recorded step was taken in
  };
  static Unsettled unsettled(const Tensor& skip, std::vector<size_t> params);
  void check(std::span<const Tensor> grads) const;
  void check_recorded(size_t i) const;
  NextStep next_of(std::vector<size_t> recorded, const Tensor& skip);
  /// Takes the skipped steps out of the counts, before `replay` runs: its own are not known yet.
  void settle(uint64_t replay = 0) const;
  std::vector<Tensor> params_;
  mutable std::vector<Slot> slots_;
  mutable std::vector<Unsettled> unsettled_;
  std::mutex mutex_;
  int64_t kernel_calls_ = 0;
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // recorded steps may outlive this object
};

/// A group with its own options.
template <class Options> struct ParamGroup {
  std::vector<Tensor> params;
  Options options;
};

namespace detail {
template <class Rule> Variant default_variant() {
  Variant v{make_step_kernel<Rule>(Rule::kName), sizeof(Rule), {}};
  static constexpr const char* kNames[] = {"state0", "state1", "state2", "state3"};
  for (int i = 0; i < Rule::kState; ++i) {
    if constexpr (requires { Rule::kStateNames[0]; }) v.state_names.push_back(Rule::kStateNames[i]);
    else v.state_names.push_back(kNames[i]);
  }
  return v;
}
}  // namespace detail

/// An optimizer from a rule. A rule with several kernels offers `static Variant variant(const Options&)` and
/// `static void construct(void*, const Options&, int64_t)`; `static void check(const Options&)` throws ValueError.
template <class Rule> class Fused final : public Optimizer {
 public:
  using Options = typename Rule::Options;
  explicit Fused(const std::vector<Tensor>& params, const Options& options = {}) {
    add_group({params, options});
  }
  explicit Fused(const std::vector<ParamGroup<Options>>& groups) {
    for (const auto& group : groups) add_group(group);
  }

  /// Throws: ValueError for bad options, an empty list or a parameter given twice.
  void add_group(const ParamGroup<Options>& group) {
    check_options(group.options);
    add_params(group.params, options_.size());
    options_.push_back(group.options);
  }
  const Options& options(size_t group = 0) const { return options_.at(group); }
  void set_options(size_t group, const Options& options) {
    check_options(options);
    options_.at(group) = options;
  }
  size_t groups() const override { return options_.size(); }
  double lr(size_t group = 0) const override { return options_.at(group).lr; }
  using Optimizer::set_lr;
  void set_lr(size_t group, double lr) override {
    Options changed = options_.at(group);
    changed.lr = lr;
    set_options(group, changed);
  }
  const char* name() const override { return Rule::kName; }

 protected:
  Variant variant(size_t group) const override {
    if constexpr (requires { Rule::variant(options_[0]); }) return Rule::variant(options_[group]);
    else return detail::default_variant<Rule>();
  }
  void construct(void* place, size_t group, int64_t t) const override {
    if constexpr (requires { Rule::construct(place, options_[0], t); })
      Rule::construct(place, options_[group], t);
    else new (place) Rule(options_[group], t);
  }

 private:
  static void check_options(const Options& options) {
    if (!(options.lr >= 0)) throw ValueError(str(Rule::kName, ": lr must not be negative, got ", options.lr));
    if constexpr (requires { Rule::check(options); }) Rule::check(options);
  }
  std::vector<Options> options_;
};

}  // namespace weft::optim
