// The owner's part of a distributed optimizer, and the rules that owners find by name. A user's update rule
// (optim/optimizer.h) needs
//   WEFT_FIELDS(SignMomentum::Options, lr, momentum)   and   WEFT_OPTIMIZER_RULE(SignMomentum);
// in a header that all workers include, and a unique name (kName). A shard is the part of one owner in a
// checkpoint (dist_checkpoint.h):
//   parameters/<i>, optimizer/<name>
//   generator/state                   of the process's default generator
//   modules/<module>/state/<name>     buffers, and parameters that the optimizer does not have
//   modules/<module>/streams/<name>   with "modules/<module>/entries", the number of both
//   edges/<name>                      errors that rounded gradients owe (inner/edge_errors.h)
// Thread safety: the registration runs before main; the methods of OwnerOptimizer may be called from any
// thread.
#pragma once

#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/optim/optim.h>

namespace weft::dist_optim {

using rpc::RRef;

namespace detail {
struct OwnerState;  // inner/owner_state.h
}  // namespace detail

/// The parameters of each group.
using GroupedParams = std::vector<std::vector<Tensor>>;
/// Makes the local optimizer of a rule from the encoded options of each group.
using Factory = std::unique_ptr<optim::Optimizer> (*)(const GroupedParams& groups,
                                                      std::vector<rpc::Decoder>& options);
/// Sets the options of a group of the rule's local optimizer.
using OptionsSetter = void (*)(optim::Optimizer& optimizer, size_t group, rpc::Decoder& options);
/// Registers a rule under its name; registering it again is allowed. False: another rule has the name, and
/// this worker can use neither.
WEFT_API bool register_rule(const char* name, const std::type_info& rule, Factory factory,
                            OptionsSetter set_options = nullptr);
/// Throws: ValueError if the name does not identify `rule` on this worker: another rule has it, or two rules
/// have it.
WEFT_API void check_rule(const char* name, const std::type_info& rule);

/// How an optimizer steps; all off by default.
struct StepOptions {
  /// The most steps that a parameter may have taken since a context first reached its owner. After more
  /// steps, gradients of that context are refused. Negative: no bound. At most 1023.
  int64_t max_staleness = -1;
  /// A step that would push another open context beyond the bound waits until that context has stepped or
  /// ended. The timeout of the call limits the wait. Steps are then refused only with more than max_staleness
  /// + 1 contexts at a time. All optimizers of a parameter must have the same bound. This option needs a
  /// bound and one phase.
  bool wait = false;
  /// A step in two phases: every owner prepares the new values beside the old ones, then all make them
  /// visible. When an owner fails to prepare, all keep the old values. It costs a second round of calls and
  /// copies of parameters and state. In an elastic group the store holds the decision before any owner makes
  /// the values visible. That costs two requests to the store per step.
  bool two_phase = false;
  /// Two phases: how long a step that meets another undecided step is tried again. In an elastic group, an
  /// owner without a decision asks the store after this time, and for as long. Milliseconds; in an elastic
  /// group positive.
  int64_t lease_ms = 10000;
};
WEFT_FIELDS(StepOptions, max_staleness, wait, two_phase, lease_ms)

/// A file of a checkpoint: its name in the folder, its size and the CRC-32 of its bytes.
struct ShardFile {
  std::string name;
  int64_t bytes = 0;
  int64_t crc = 0;
};
WEFT_FIELDS(ShardFile, name, bytes, crc)

/// A tensor of a shard: the number of its DType, and its sizes.
struct ShardEntry {
  std::string name;
  int64_t dtype = 0;
  std::vector<int64_t> sizes;
};
WEFT_FIELDS(ShardEntry, name, dtype, sizes)

/// The contents of an owner's shard besides the optimizer.
struct ShardTerms {
  std::vector<std::string> names;         ///< of the modules
  std::vector<RRef<nn::Module>> modules;  ///< of this owner
  std::vector<int64_t> workers;           ///< ids of the set's owners in order, then of its caller
  std::vector<uint64_t> incarnations;     ///< of their lives
};
WEFT_FIELDS(ShardTerms, names, modules, workers, incarnations)

/// The part of a DistributedOptimizer on one owner; its methods are called remotely. Each throws NotAllowed
/// unless the caller is the life that made the object.
class WEFT_API OwnerOptimizer {
 public:
  /// Throws: ValueError for an unknown rule, two rules of that name, bad options, or a reference to a
  /// parameter of another worker. ValueError or AutogradError for parameters that cannot be marked.
  OwnerOptimizer(std::string rule, std::vector<std::string> options,
                 std::vector<std::vector<RRef<Tensor>>> groups, StepOptions how);
  ~OwnerOptimizer();
  /// Marks the parameters concurrent, once all owners have accepted their parameters: a mark cannot be
  /// undone.
  void mark();
  /// Throws: AutogradError for an unknown context; StaleStep.
  void step(int64_t context_id);
  /// The same in its turn (StepOptions::wait). The future fails with Timeout that names the awaited contexts,
  /// or PeerLost when the worker of such a context is lost. It fails with AutogradError when this context
  /// ends, and with StaleStep.
  rpc::Future<void> step_in_turn(int64_t context_id);
  /// Two phases. Computes the values and the state after a step and keeps them beside the present values and
  /// state. `number` is the caller's count of its steps. Until the decision, the parameters with gradients
  /// take no other step. `decision`: the key of the decision in the store of an elastic group; empty in a
  /// static group. An owner without the decision asks the store for it. Throws: as step; StepInDoubt when
  /// another step of a parameter is undecided.
  void prepare(int64_t context_id, int64_t number, std::string decision);
  /// Makes the prepared step visible, or drops it. For a step that is not prepared here it does nothing, and
  /// a later preparation of that step is refused.
  void decide(int64_t number, bool commit);
  /// Drops every undecided step of the parameters, by any optimizer: they keep their values.
  void end_doubt();
  /// The steps that each parameter has taken on this worker, by any optimizer.
  std::vector<int64_t> versions() const;
  /// The most steps that a parameter with a gradient in the context has taken since the context first reached
  /// this worker. Throws: AutogradError for an unknown context.
  int64_t staleness(int64_t context_id) const;
  /// Sum of |g|^p over each parameter's gradient g; 0 without a gradient.
  std::vector<double> powers(int64_t context_id, double p) const;
  /// Multiplies the parameters' gradients in the context by `factor`. Throws: as step.
  void scale(int64_t context_id, double factor);
  // Groups with parameters here, counted from 0.
  void set_lr(int64_t group, double lr);
  /// Throws: ValueError for options that the rule refuses.
  void set_options(int64_t group, std::string options);
  /// The learning rate of each group.
  std::vector<double> lrs() const;
  optim::StateDict state() const;
  /// Throws: as Optimizer::load_state_dict.
  void load_state(optim::StateDict state);

  /// Writes the shard of a set as the file `name` of a folder. Throws: IoError.
  ShardFile save_shard(std::string folder, std::string name, int64_t set, ShardTerms terms) const;
  /// Copies the shard, to be fetched in pieces. Returns its names, types and sizes.
  std::vector<ShardEntry> hold_shard(ShardTerms terms);
  /// Elements [from, from + count) of entry i of the kept shard, as one row. Throws: ValueError outside it.
  Tensor shard_piece(int64_t i, int64_t from, int64_t count) const;
  /// Makes room for a shard that arrives in pieces. This function and read_shard forget the state kept by an
  /// earlier load. Throws: ValueError for invalid sizes.
  void expect_shard(std::vector<ShardEntry> layout);
  /// Writes a piece of the expected shard. Throws: ValueError outside it, DTypeError.
  void put_piece(int64_t i, int64_t from, Tensor values);
  /// Reads the shard of a set from a file of a folder and keeps it. Throws: IoError that names the file, if
  /// it is missing, damaged or from another set.
  void read_shard(std::string folder, ShardFile file, int64_t set);
  /// Makes the kept shard current, and keeps the previous state. Throws, with nothing changed: ValueError,
  /// ShapeError or DTypeError for a shard of other parameters, of another rule, or of other modules. Errors
  /// of memory.
  void load_shard(ShardTerms terms);
  /// Forgets the kept state. `back`: first restores the state before load_shard.
  void end_shard(bool back);

 private:
  size_t checked(int64_t group) const;
  /// The caller of the served call; outside a served call, this worker.
  static rpc::Life calling();
  void check_caller() const;
  const rpc::Life maker_;
  const std::shared_ptr<detail::OwnerState> state_;
};

}  // namespace weft::dist_optim
