// Checkpoints over all owners: parameters and state of a DistributedOptimizer, with the caller's own parts,
// as one set of files in a folder.
//   int64_t epoch = 0;
//   const std::vector<CheckpointPart> mine{{"schedule", schedule}, {"epoch", epoch}};
//   if (dist_optim::has_checkpoint("run")) dist_optim::load_checkpoint("run", optimizer, mine);
//   for (; epoch < 90; dist_optim::save_checkpoint("run", optimizer, mine)) { ...; ++epoch; }
// Each owner writes its shard, and the caller writes the manifest last; each file is written beside its
// target, synced and renamed. The manifest makes the set valid: it has the parts of the caller, and the size
// and checksum of each shard. If a process dies at any moment, the folder has the complete earlier set or the
// complete new set. The checksums find damage and mixed sets, not forgery. A resumed run has the same bits,
// with step counts, momenta and the default generator of each process. The owners of a resumed run may have
// other names; their number and the order of the parameters must be the same. A folder belongs to one
// optimizer.
// Buffers, frozen parameters and seeded streams are saved for the remote modules in the options:
//   const CheckpointOptions how{.modules = {{"encoder", encoder}, {"decoder", decoder}}};
// A set also has the errors of rounded gradients (autograd/edge_codec.h) of owners and caller. Any other
// sending worker keeps its errors, which are not saved. The program sets codecs and their memory limit again
// before it loads. Receivers other than owners and caller are identified by name. A worker has one list of
// errors, so loading the set of one trainer resets the errors of all trainers there.
// Thread safety: nothing steps or reads the parameters meanwhile; one thread saves or loads at a time.
#pragma once

#include <string>
#include <vector>

#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/optim/checkpoint.h>

namespace weft::dist_optim {

/// A remote module whose whole state is in the shard of its owner: parameters, buffers and the streams set by
/// seed. The optimizer's parameters are there once.
struct ModulePart {
  /// Asks the owner for a reference. Throws: as RRef::rpc_sync.
  template <class M>
  ModulePart(std::string name, const rpc::RemoteModule<M>& module)
      : name(std::move(name)),
        module(rpc::rpc_sync<&rpc::detail::module_base<M>>(rpc::To(module.get_module_rref().owner_life()),
                                                           module.get_module_rref())) {}
  std::string name;
  RRef<nn::Module> module;
};

/// Options of save_checkpoint and load_checkpoint.
struct CheckpointOptions {
  /// The shards travel between owners and caller in pieces, and only the caller needs the folder. Each shard
  /// passes through the caller's memory. A set can be loaded with either setting.
  bool through_caller = false;
  int64_t piece_bytes = 16 << 20;  ///< the largest piece with through_caller
  /// Limit of each call; zero: the default timeout.
  rpc::Duration timeout{};
  /// The same for saving and loading. Each has its own name without '/', and an owner with parameters in the
  /// optimizer. A RemoteModule on another worker can be one of the caller's parts; its state then passes
  /// through the caller.
  std::vector<ModulePart> modules{};
};

/// True when the folder has a manifest.
WEFT_API bool has_checkpoint(const std::string& folder);

/// Saves a set in the folder, which is created if missing; then removes the shards of earlier sets. When it
/// throws, the earlier set stays valid. The names "set" and "shards" are taken. Throws: IoError, also when
/// owner and caller do not see the same folder. ValueError for a name used twice, a piece size below 8, or a
/// module on a worker without parameters in the optimizer. Errors of the owners, as
/// DistributedOptimizer::step.
WEFT_API void save_checkpoint(const std::string& folder, const DistributedOptimizer& optimizer,
                              const std::vector<CheckpointPart>& parts = {},
                              const CheckpointOptions& options = {});

/// Loads the set of the folder on all owners, and the parts of the caller. After an error every owner that
/// answers has its previous values. Throws: IoError that names the file: a set without a manifest, a shard
/// that is missing, damaged or from another set. ValueError for another number of owners, and for missing and
/// unknown parts and modules, with the name. ValueError, ShapeError or DTypeError for other parameters or
/// state of modules. ValueError for streams of other submodules, unless either side has none. Errors of the
/// owners. A set without modules and errors, written by an older version, loads without them.
WEFT_API void load_checkpoint(const std::string& folder, DistributedOptimizer& optimizer,
                              const std::vector<CheckpointPart>& parts = {},
                              const CheckpointOptions& options = {});

}  // namespace weft::dist_optim
