// The files of a checkpoint over owners. A shard is a checkpoint file (optim/checkpoint.h) with the parts
// "set", "parameters", "optimizer", "generator", "modules" and "edges"; older shards lack the last two. A set
// has one number, which is in each of its files.
#pragma once

#include <atomic>

#include <weft/distributed/optim/owner_optimizer.h>

namespace weft::dist_optim::detail {

/// Throws: ValueError unless the name is one that save_checkpoint gives to a shard.
WEFT_API void check_shard_name(const std::string& name);
/// Writes a shard as the file `name` of a folder. Throws: IoError.
WEFT_API ShardFile write_shard(const std::string& folder, const std::string& name, int64_t set,
                               const optim::StateDict& shard);
/// Reads it. Throws: IoError that names the file, if it is missing, damaged, not the one that `file`
/// describes, or of another set.
WEFT_API optim::StateDict read_shard(const std::string& folder, const ShardFile& file, int64_t set);
/// A new tensor of an entry's dtype and sizes. Throws: ValueError for an entry that is no tensor.
WEFT_API Tensor empty_entry(const ShardEntry& entry);
/// Size and checksum of a file. Throws: IoError.
WEFT_API ShardFile describe_file(const std::string& folder, const std::string& name);

/// For tests: called before each write of a save, with the step's name: "shard", "told", "manifest", "sweep",
/// "done". It may throw, or end the worker.
WEFT_API extern std::atomic<void (*)(const char* step)> at_save_step;
inline void save_step(const char* step) {
  if (const auto f = at_save_step.load()) f(step);
}

}  // namespace weft::dist_optim::detail
