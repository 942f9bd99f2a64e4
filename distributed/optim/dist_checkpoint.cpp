// Checkpoints over all owners, at the caller.
//   save  1. each owner writes its shard under a name with the number of the new set, or the caller does;
//         2. the caller writes the manifest: from here on the new set is the valid one;
//         3. it removes the files that no manifest names.
//   load  1. read the numbers of the manifest; each owner forgets an earlier load;
//         2. each owner reads its shard, compares it with the manifest, and keeps it aside;
//         3. each owner makes it current, and keeps its old state;
//         4. the caller loads its parts; when anything throws, the owners go back.
#include <weft/distributed/optim/dist_checkpoint.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <set>

#include <weft/distributed/optim/inner/edge_errors.h>
#include <weft/distributed/optim/inner/on_owners.h>
#include <weft/distributed/optim/inner/shard_file.h>
#include <weft/tensor/factories.h>

namespace weft::dist_optim {
namespace {

namespace fs = std::filesystem;

using Owners = std::vector<DistributedOptimizer::Owner>;

constexpr const char* kManifest = "manifest.safetensors";

const std::string kEdges = "edges/";

/// The list of shards as an object that a checkpoint saves and loads: per file its size and checksum. Beside
/// them the errors that the caller's gradients owe; older sets have none.
struct ShardList {
  std::vector<ShardFile> files;
  optim::StateDict edges;
  optim::StateDict state_dict() const {
    optim::StateDict out;
    for (const ShardFile& f : files)
      out.emplace_back(f.name, from_vector(std::vector<int64_t>{f.bytes, f.crc}, {2}));
    for (const auto& [name, error] : edges) out.emplace_back(kEdges + name, error);
    return out;
  }
  void load_state_dict(const optim::StateDict& state) {
    std::vector<ShardFile> read;
    optim::StateDict errors;
    for (const auto& [name, x] : state) {
      if (name.starts_with(kEdges)) {
        errors.emplace_back(name.substr(kEdges.size()), x);
        continue;
      }
      if (x.dtype() != kInt64 || x.numel() != 2) throw ValueError(str("'", name, "' is no entry of a shard"));
      const std::vector<int64_t> numbers = x.to_vector<int64_t>();
      read.push_back({name, numbers[0], numbers[1]});
    }
    std::sort(read.begin(), read.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    files = std::move(read);
    edges = std::move(errors);
  }
};

/// The name of a shard; the names of a set sort as its owners.
std::string shard_name(int64_t set, size_t owner, size_t owners) {
  char text[96];
  std::snprintf(text, sizeof text, "shard-%016llx-%05zu-of-%05zu.safetensors",
                static_cast<unsigned long long>(set), owner, owners);
  return text;
}

std::string manifest_of(const std::string& folder) { return (fs::path(folder) / kManifest).string(); }

/// The folder with an absolute path, which owners with another working directory see too.
std::string absolute_folder(const std::string& folder) {
  std::error_code failed;
  const fs::path path = fs::absolute(folder, failed);
  if (failed || folder.empty())
    throw IoError(str("checkpoint: the folder '", folder, "': ", failed ? failed.message() : "no name"));
  return path.lexically_normal().string();
}

/// Makes the folder, and its name durable.
void make_folder(const std::string& folder) {
  std::error_code failed;
  const bool made = fs::create_directories(folder, failed);
  if (failed) throw IoError(str("checkpoint: cannot make the folder ", folder, ": ", failed.message()));
  if (!made) return;
  const int parent = open(fs::path(folder).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;  // not readable
  fsync(parent);
  close(parent);
}

/// A call with the limit of the options.
template <auto M, class... A>
auto limited(const DistributedOptimizer::Owner& o, const CheckpointOptions& options, A&&... args) {
  if (options.timeout == rpc::Duration::zero())
    return o.optimizer.template rpc_async<M>(std::forward<A>(args)...);
  return o.optimizer.within(options.timeout).template rpc_async<M>(std::forward<A>(args)...);
}

int64_t piece_elements(const CheckpointOptions& options, const Tensor& x) {
  return options.piece_bytes / size_of(x.dtype());
}

/// Fetches the shard that an owner holds.
optim::StateDict fetch_shard(const DistributedOptimizer::Owner& o, const std::vector<ShardEntry>& layout,
                             const CheckpointOptions& options) {
  optim::StateDict out;
  for (size_t i = 0; i < layout.size(); ++i) {
    const Tensor x = detail::empty_entry(layout[i]);
    Tensor row = x.view({x.numel()});
    const int64_t most = piece_elements(options, x);
    for (int64_t at = 0; at < x.numel(); at += most) {
      const int64_t n = std::min(most, x.numel() - at);
      row.narrow(0, at, n).copy_(
          limited<&OwnerOptimizer::shard_piece>(o, options, static_cast<int64_t>(i), at, n).take());
    }
    out.emplace_back(layout[i].name, x);
  }
  return out;
}

/// Sends a shard to its owner.
void send_shard(const DistributedOptimizer::Owner& o, const optim::StateDict& shard,
                const CheckpointOptions& options) {
  std::vector<ShardEntry> layout;
  for (const auto& [name, x] : shard)
    layout.push_back({name, static_cast<int64_t>(x.dtype()), {x.sizes().begin(), x.sizes().end()}});
  limited<&OwnerOptimizer::expect_shard>(o, options, layout).take();
  for (size_t i = 0; i < shard.size(); ++i) {
    const Tensor x = shard[i].second.contiguous(), row = x.view({x.numel()});
    const int64_t most = piece_elements(options, x);
    for (int64_t at = 0; at < x.numel(); at += most)
      limited<&OwnerOptimizer::put_piece>(o, options, static_cast<int64_t>(i), at,
                                          row.narrow(0, at, std::min(most, x.numel() - at)))
          .take();
  }
}

std::string checked_name(const ModulePart& part, const std::set<std::string>& others) {
  if (part.name.empty() || part.name.find('/') != std::string::npos)
    throw ValueError(
        str("checkpoint: the name of a module must be non-empty and without '/', got '", part.name, "'"));
  if (others.contains(part.name))
    throw ValueError(str("checkpoint: two modules are named '", part.name, "'"));
  return part.name;
}

/// The terms of each owner's shard. Throws: ValueError for a bad name and for a module without an owner here.
std::vector<ShardTerms> terms_of(const Owners& owners, const CheckpointOptions& options) {
  const rpc::Life self = rpc::current_agent()->life();
  std::vector<rpc::Life> lives;
  for (const auto& o : owners) lives.push_back(o.optimizer.is_owner() ? self : o.optimizer.owner_life());
  ShardTerms all;
  for (size_t i = 0; i <= lives.size(); ++i) {
    const rpc::Life life = i < lives.size() ? lives[i] : self;
    all.workers.push_back(life.id.value);
    all.incarnations.push_back(life.incarnation.value);
  }
  std::vector<ShardTerms> out(owners.size(), all);
  std::set<std::string> names;
  for (const ModulePart& part : options.modules) {
    const std::string name = checked_name(part, names);
    names.insert(name);
    const rpc::Life life = part.module.is_owner() ? self : part.module.owner_life();
    size_t o = 0;
    while (o < owners.size() && !dist_autograd::detail::same_life(lives[o], life)) ++o;
    if (o == owners.size())
      throw ValueError(str("checkpoint: the module '", name, "' is on worker '", part.module.owner_name(),
                           "', which has no parameters in the optimizer; it can be a part of the caller"));
    out[o].names.push_back(name);
    out[o].modules.push_back(part.module);
  }
  return out;
}

std::vector<ShardFile> write_shards(const std::string& folder, int64_t set, const Owners& owners,
                                    const std::vector<ShardTerms>& terms, const CheckpointOptions& options) {
  size_t next = 0;
  if (!options.through_caller) {
    const auto files = detail::on_owners<ShardFile>(owners, "save_checkpoint", [&](const auto& o) {
      const size_t i = next++;
      return limited<&OwnerOptimizer::save_shard>(o, options, folder, shard_name(set, i, owners.size()), set,
                                                  terms[i]);
    });
    for (size_t i = 0; i < owners.size(); ++i) {
      std::error_code failed;
      const auto bytes = fs::file_size(fs::path(folder) / files[i].name, failed);
      if (failed || static_cast<int64_t>(bytes) != files[i].bytes)
        throw IoError(str("save_checkpoint: ", folder, " is not the same folder here and at '",
                          owners[i].name, "': ", files[i].name,
                          " is not here; use a shared folder or through_caller"));
    }
    return files;
  }
  const auto layouts = detail::on_owners<std::vector<ShardEntry>>(
      owners, "save_checkpoint",
      [&](const auto& o) { return limited<&OwnerOptimizer::hold_shard>(o, options, terms[next++]); });
  std::vector<ShardFile> files;
  for (size_t i = 0; i < owners.size(); ++i)
    files.push_back(detail::write_shard(folder, shard_name(set, i, owners.size()), set,
                                        fetch_shard(owners[i], layouts[i], options)));
  return files;
}

/// Tells the owners that answer to forget their old state.
void end_shards(const Owners& owners, bool back, const CheckpointOptions& options) {
  for (const auto& o : owners) {
    try {
      limited<&OwnerOptimizer::end_shard>(o, options, back).take();
    } catch (const std::exception&) {  // a lost owner has nothing left
    }
  }
}

/// Removes the files of earlier sets, and those that killed processes left.
void sweep_folder(const std::string& folder, const std::vector<ShardFile>& kept) {
  std::error_code ignored;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool named = std::any_of(kept.begin(), kept.end(), [&](const auto& f) { return f.name == name; });
    if ((name.starts_with("shard-") && name.ends_with(".safetensors") && !named) ||
        (name.starts_with(".weft-") && name.ends_with(".tmp")))
      old.push_back(entry.path());
  }
  for (const fs::path& path : old) {
    detail::save_step("sweep");
    fs::remove(path, ignored);
  }
}

void check_options(const CheckpointOptions& options) {
  if (options.piece_bytes < 8)
    throw ValueError(str("checkpoint: pieces have at least 8 bytes, got ", options.piece_bytes));
}

std::vector<CheckpointPart> with_own(const std::vector<CheckpointPart>& parts, int64_t& set,
                                     ShardList& shards) {
  std::vector<CheckpointPart> all = parts;
  all.emplace_back("set", set);
  all.emplace_back("shards", shards);
  return all;
}

}  // namespace

bool has_checkpoint(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(manifest_of(folder), ignored);
}

void save_checkpoint(const std::string& given, const DistributedOptimizer& optimizer,
                     const std::vector<CheckpointPart>& parts, const CheckpointOptions& options) {
  check_options(options);
  const std::vector<ShardTerms> terms = terms_of(optimizer.owners(), options);
  const std::string folder = absolute_folder(given);
  make_folder(folder);
  std::random_device random;
  int64_t set = static_cast<int64_t>((uint64_t{random()} << 32 | random()) >> 1);
  ShardList shards;
  try {
    shards.files = write_shards(folder, set, optimizer.owners(), terms, options);
    shards.edges = detail::edge_errors(detail::members_of(terms.front()));
    detail::save_step("manifest");
    weft::save_checkpoint(manifest_of(folder), with_own(parts, set, shards));
  } catch (...) {
    if (options.through_caller) end_shards(optimizer.owners(), false, options);
    throw;
  }
  if (options.through_caller) end_shards(optimizer.owners(), false, options);
  sweep_folder(folder, shards.files);
  detail::save_step("done");
}

void load_checkpoint(const std::string& given, DistributedOptimizer& optimizer,
                     const std::vector<CheckpointPart>& parts, const CheckpointOptions& options) {
  check_options(options);
  const std::string folder = absolute_folder(given), manifest = manifest_of(folder);
  if (!has_checkpoint(folder))
    throw IoError(str("load_checkpoint: ", folder, " has no ", kManifest,
                      ": it is no checkpoint, or no save into it has ended"));
  int64_t set = 0;
  ShardList shards;
  weft::load_checkpoint(manifest, with_own({}, set, shards), false);
  const Owners& owners = optimizer.owners();
  if (shards.files.size() != owners.size())
    throw ValueError(str("load_checkpoint: ", folder, " has ", shards.files.size(), " shards, the optimizer ",
                         owners.size(), " owners"));
  const std::vector<ShardTerms> terms = terms_of(owners, options);
  auto errors = detail::read_edge_errors(shards.edges, detail::members_of(terms.front()));
  size_t next = 0, at = 0;
  // no owner may go back to before an earlier load, of whose end it has no report
  detail::on_owners<bool>(
      owners, "load_checkpoint",
      [&](const auto& o) {
        return detail::flagged(limited<&OwnerOptimizer::expect_shard>(o, options, std::vector<ShardEntry>()));
      },
      "no owner has changed");
  try {
    if (options.through_caller) {
      for (const auto& o : owners)
        send_shard(o, detail::read_shard(folder, shards.files[next++], set), options);
    } else {
      detail::on_owners<bool>(owners, "load_checkpoint", [&](const auto& o) {
        return detail::flagged(
            limited<&OwnerOptimizer::read_shard>(o, options, folder, shards.files[next++], set));
      });
    }
    detail::on_owners<bool>(owners, "load_checkpoint", [&](const auto& o) {
      return detail::flagged(limited<&OwnerOptimizer::load_shard>(o, options, terms[at++]));
    });
    optimizer.fetch_rates();
    weft::load_checkpoint(manifest, with_own(parts, set, shards));
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    end_shards(owners, true, options);
    try {
      optimizer.fetch_rates();
    } catch (const std::exception&) {  // an owner is lost
    }
    std::rethrow_exception(error);
  }
  if (!shards.edges.empty()) detail::set_edge_errors(std::move(errors));
  end_shards(owners, false, options);
}

}  // namespace weft::dist_optim
