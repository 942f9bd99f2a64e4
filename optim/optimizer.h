// Optimizer: groups of parameters, their state, and one fused pass per step. An update rule is an options
// struct and a functor that updates one element (or a vector of elements). Users add an optimizer by writing
// such a rule:
//   struct SignMomentum {
//     struct Options { double lr = 1e-3; double momentum = 0.9; };
//     static constexpr const char* kName = "SignMomentum";
//     static constexpr int kState = 1;
//     double lr, m;
//     SignMomentum(const Options& o, int64_t) : lr(o.lr), m(o.momentum) {}
//     template <class V> void operator()(V& p, const V& g, V* s) const {
//       s[0] = m * s[0] + (1 - m) * g;
//       p -= lr * select(s[0] > 0, V(1), V(-1));
//     }
//   };
//   optim::Fused<SignMomentum> opt(model.parameters(), {.lr = 0.01});
// The second constructor argument is the number of the parameter's step, from 1. Such a rule has the
// multi-tensor kernel (one backend call per step), parameter groups, state saving and the distributed
// optimizer. For parameters on CUDA devices, mark the call operator WEFT_HD and put
// WEFT_STEP_CUDA(SignMomentum) into a .cu file (kernels/cuda/step_cuda.h).
//
// State begins at zero and persists across steps. Gradients are never written. A parameter without a gradient
// is skipped and keeps its state.
//
// With a row-wise gradient (autograd/tape/row_grad.h) a step reads and writes only the rows of that gradient.
// A rule accepts row-wise gradients if its `static bool over_rows(const Options&)` returns true. That is
// right if a zero gradient changes neither parameter nor state of a row (exact). It is also right if the rule
// skips such rows by definition (lazy, as SparseAdam).
// A rule with at most one state, whose step without a gradient is linear, may have
// `static MissedStep missed(const Options&, int64_t t)` instead. Rows without a gradient then stay behind
// until a look-up of them, or a read of the weight or the state. Then they catch up in closed form.
// That needs a parameter on the CPU which is neither marked concurrent nor in memory of from_blob(). A
// pointer that data<T>() returned before a step may show old rows afterwards. A step of any other rule
// refuses a row-wise gradient with a ValueError.
//
// A step writes the parameters in place, as PyTorch's does. Results of detach(), a state_dict(), views and
// memory of from_blob() change with them. The backward of a graph that still needs an old value throws
// AutogradError. So call backward before step, and clone() tensors that must keep the old values. Parameters
// marked concurrent, such as those of a DistributedOptimizer, get a new block if a graph holds the current
// block (autograd/tape/concurrent_parameter.h). All handles then use the new block, and the graph keeps its
// values.
//
// With the option master_weights an optimizer takes parameters of float16 and bfloat16. It keeps a float32
// master of each, and its state in float32. A step computes in float32, from the gradient of the half type,
// and rounds the master to the parameter. So updates below the parameter's precision add up. If something
// else writes to the parameter, the written value becomes the master's new value. So such a parameter belongs
// to one optimizer: several would have a master each. Each optimizer would mistake the other's step for a
// write of the program. A user's rule has masters if its Options have `bool master_weights`. Parameters of
// float32 and float64 are stepped as without the option.
//
// A step recorded in a cuda::Graph runs at each replay, with the learning rate and step count of the replay.
//
// Thread safety: several threads may call step() of one optimizer, which has a mutex. Several optimizers may
// share parameters marked concurrent, if they have no masters; the pass holds their locks. Use the other
// members from one thread.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <weft/kernels/step.h>
#include <weft/kernels/step_cpu.h>
#include <weft/kernels/step_functor.h>
#include <weft/optim/rules/missed_step.h>
#include <weft/optim/state_dict.h>
#include <weft/tensor/cuda.h>

namespace weft::optim {

/// The form of a rule for given options: its kernel, the size of its functor, and the names of its state
/// tensors.
struct Variant {
  StepKernel kernel;
  uint32_t functor_bytes = 0;
  bool over_rows = false;   ///< takes row-wise gradients
  bool catches_up = false;  ///< and rows without a gradient catch up later (MissedStep)
  std::vector<const char*> state_names;
};

class RowArrears;  // inner/row_arrears.h

/// The base of all optimizers: parameters in groups, their state, and one fused step per dtype.
class WEFT_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the parameters' grad(), in place. If it throws, only parameters that it changed have
  /// counted the step.
  void step();
  /// One update from the given gradients, one per parameter in order of parameters(); undefined means absent.
  /// `factor`, a float64 number on any device, multiplies the gradients as the step reads them. `skip` is a
  /// float64 number on any device: the step is skipped if it is non-zero when the device reaches the step.
  /// This call does not wait for that number, but the next use of the step counts does, such as the next
  /// step. A graph may record one such step per optimizer.
  /// Throws, before any change: ValueError for a list of another length, ShapeError or DTypeError that names
  /// the parameter.
  void step(std::span<const Tensor> grads, const Tensor& skip = Tensor(), const Tensor& factor = Tensor());
  /// clip_grad_norm and step, with one pass less over the gradients. The step multiplies the gradients by the
  /// factor as it reads them, and does not write them. Parameters of float32 and float64 get the same bits.
  /// Half-type gradients times the factor stay in float32 here; clip_grad_norm rounds them. Returns the norm
  /// as clip_grad_norm_async does.
  /// Throws: ValueError for a negative max_norm or p <= 0; as step.
  Tensor step_clipped(double max_norm, double p = 2);
  void zero_grad() const;

  /// All parameters, group after group.
  const std::vector<Tensor>& parameters() const { return params_; }
  virtual size_t groups() const = 0;
  /// Throws: IndexError that names the number of groups.
  virtual double lr(size_t group = 0) const = 0;
  /// Throws: ValueError for a rate that is negative or not finite; as lr.
  virtual void set_lr(size_t group, double lr) = 0;
  void set_lr(double lr) {
    for (size_t g = 0; g < groups(); ++g) set_lr(g, lr);
  }
  virtual const char* name() const = 0;
  /// Number of steps that parameter i has taken. Throws: IndexError that names the number of parameters.
  int64_t steps(size_t i) const;
  /// Number of backend calls by all steps so far (one per step and dtype).
  int64_t kernel_calls() const { return kernel_calls_; }

  /// The entries "<index>.<state name>" and "<index>.step" per parameter that has state, and
  /// "<index>.master_param" if it needs a master. A state tensor that the next step has yet to create is
  /// listed with its initial value. Then "group<g>.lr" per group, and "rule.<name of the rule>" with the
  /// number of parameters.
  StateDict state_dict() const;
  /// Throws, before any change: ShapeError. DTypeError for values that the dtype of the state does not hold.
  /// ValueError for the state of another rule, or of another number of parameters or groups. ValueError for a
  /// name that is unknown, repeated or missing, a step below 0, and a rate that the rule refuses.
  void load_state_dict(const StateDict& state);

 protected:
  Optimizer() = default;
  void add_params(const std::vector<Tensor>& params, size_t group, bool masters);
  void check_group(size_t group) const;
  void check_rate(double lr) const;
  virtual Variant variant(size_t group) const = 0;
  /// Whether the options ask for master_weights.
  virtual bool has_masters(size_t) const { return false; }
  /// Constructs the functor of `group` for step `t` at `place`.
  virtual void construct(void* place, size_t group, int64_t t) const = 0;
  /// Step `t` of rows that have no gradient in it, of a group whose variant catches up.
  virtual MissedStep missed(size_t, int64_t) const { return {}; }

 private:
  struct Slot {
    size_t group = 0;
    int64_t steps = 0;
    std::vector<Tensor> state;
    Tensor master;                       // of a parameter of a half type
    std::shared_ptr<RowArrears> behind;  // null until the first step that leaves rows behind
  };
  /// A step that was counted before its `skip` was known.
  struct Unsettled {
    Tensor skip;                         // of a recorded step: on the device, from its last replay
    std::shared_ptr<cuda::Event> known;  // otherwise on the host, valid after this event
    std::vector<size_t> params;
    uint64_t replay = 0;  // the replay that ran a recorded step
  };
  static Unsettled unsettled(const Tensor& skip, std::vector<size_t> params);
  /// The dtype in which a rule computes and keeps its state.
  static DType state_type(const Tensor& param) { return accumulate_type(param.dtype()); }
  bool needs_master(size_t i) const;
  void make_state(size_t i, size_t count);
  std::vector<Tensor> gradients() const;
  void check(std::span<const Tensor> grads) const;
  void check_rows(size_t i) const;
  void check_writable(size_t i) const;
  void bring_up(size_t i, const Tensor& rows);
  void check_recorded(size_t i, const Tensor& grad) const;
  void check_unheld(size_t i) const;
  struct RecordedStep;
  std::shared_ptr<const RecordedStep> recorded_step(std::vector<size_t> params, const Tensor& skip) const;
  void check_step(const RecordedStep& step) const;
  void count_step(const RecordedStep& step, std::span<void* const> functors, uint64_t replay);
  NextStep next_of(std::vector<size_t> recorded, const Tensor& skip);
  void tell_step(const std::vector<size_t>& recorded, size_t functor_bytes);
  void check_origin(const std::string& rule, int64_t parameters) const;
  /// Subtracts skipped steps from the counts. Called before `replay` runs, whose skips are not known yet.
  void settle(uint64_t replay = 0) const;
  std::vector<Tensor> params_;
  mutable std::vector<Slot> slots_;
  mutable std::vector<Unsettled> unsettled_;
  std::mutex mutex_;
  int64_t kernel_calls_ = 0;
  // recorded steps check it, since they may outlive this object
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// A group of parameters with separate options.
template <class Options> struct ParamGroup {
  std::vector<Tensor> params;
  Options options;
};

namespace detail {
/// Calls f with the type of the functor that the options ask for.
template <class Rule, class Call> void with_functor(const typename Rule::Options& options, const Call& f) {
  if constexpr (requires { typename Rule::Functors; }) {
    [&]<class... F>(StepFunctors<F...>) {
      const size_t chosen = Rule::functor(options);
      if (chosen >= sizeof...(F))
        throw ValueError(str(Rule::kName, ": functor ", chosen, " of ", sizeof...(F)));
      size_t at = 0;
      ((at++ == chosen ? f.template operator()<F>() : void()), ...);
    }(typename Rule::Functors());
  } else {
    f.template operator()<Rule>();
  }
}

template <class F> Variant functor_variant() {
  Variant v{make_step_kernel<F>(step_kernel_name<F>()), sizeof(F), false, false, {}};
  static constexpr const char* kNames[] = {"state0", "state1", "state2", "state3"};
  for (int i = 0; i < F::kState; ++i) {
    if constexpr (requires { F::kStateNames[0]; }) v.state_names.push_back(F::kStateNames[i]);
    else v.state_names.push_back(kNames[i]);
  }
  return v;
}

template <class Rule> Variant rule_variant(const typename Rule::Options& options) {
  Variant v;
  with_functor<Rule>(options, [&]<class F>() { v = functor_variant<F>(); });
  if constexpr (requires { Rule::over_rows(options); }) v.over_rows = Rule::over_rows(options);
  if constexpr (requires { Rule::missed(options, int64_t{1}); })
    v.catches_up = !v.over_rows && v.state_names.size() <= 1;
  return v;
}

template <class Rule> void rule_construct(void* place, const typename Rule::Options& options, int64_t t) {
  with_functor<Rule>(options, [&]<class F>() { new (place) F(options, t); });
}
}  // namespace detail

/// An optimizer from a rule. `static void check(const Options&)`, if there is one, throws ValueError for bad
/// options. A rule with several functors has `using Functors = StepFunctors<A, B>` and
/// `static size_t functor(const Options&)`, the number of the functor to use. Each has its own kState,
/// kStateNames, kKernelName and constructor.
template <class Rule> class Fused final : public Optimizer {
 public:
  static_assert(
      requires {
        typename Rule::Options;
        Rule::Options::lr;
      },
      "an update rule has a struct Options with an lr");
  static_assert(
      requires { Rule::kName; }, "an update rule has a name: `static constexpr const char* kName`");
  static_assert(
      requires { Rule::kState; } || requires { typename Rule::Functors; },
      "an update rule says how many tensors of state it keeps per parameter: `static constexpr int kState`");
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
    add_params(group.params, options_.size(), with_masters(group.options));
    options_.push_back(group.options);
  }
  /// Throws: IndexError that names the number of groups.
  const Options& options(size_t group = 0) const {
    check_group(group);
    return options_[group];
  }
  /// Throws: ValueError for bad options; as options.
  void set_options(size_t group, const Options& options) {
    check_group(group);
    check_options(options);
    options_[group] = options;
  }
  size_t groups() const override { return options_.size(); }
  double lr(size_t group = 0) const override { return this->options(group).lr; }
  using Optimizer::set_lr;
  void set_lr(size_t group, double lr) override {
    Options changed = this->options(group);
    changed.lr = lr;
    set_options(group, changed);
  }
  const char* name() const override { return Rule::kName; }

 protected:
  Variant variant(size_t group) const override { return detail::rule_variant<Rule>(options_[group]); }
  void construct(void* place, size_t group, int64_t t) const override {
    detail::rule_construct<Rule>(place, options_[group], t);
  }
  bool has_masters(size_t group) const override { return with_masters(options_[group]); }
  MissedStep missed(size_t group, int64_t t) const override {
    if constexpr (requires { Rule::missed(options_[group], t); }) return Rule::missed(options_[group], t);
    else return Optimizer::missed(group, t);
  }

 private:
  void check_options(const Options& options) const {
    check_rate(options.lr);
    if constexpr (requires { Rule::check(options); }) Rule::check(options);
  }
  static bool with_masters(const Options& options) {
    if constexpr (requires { options.master_weights; }) return options.master_weights;
    else return false;
  }
  std::vector<Options> options_;
};

}  // namespace weft::optim
