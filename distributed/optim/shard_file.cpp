// Shards as files. The format is that of save_checkpoint, which writes beside the target, syncs and renames.
// Its checksum covers the values, and the manifest's covers the bytes of the file.
#include <weft/distributed/optim/inner/shard_file.h>

#include <algorithm>

#include <weft/tensor/factories.h>
#include <weft/tensor/io/inner/crc32.h>
#include <weft/tensor/io/inner/file_io.h>

namespace weft::dist_optim::detail {
namespace {

/// A part of a shard as an object that a checkpoint saves and loads.
struct ShardPart {
  optim::StateDict state;
  const optim::StateDict& state_dict() const { return state; }
  void load_state_dict(const optim::StateDict& s) { state = s; }
};

constexpr const char* kShardParts[] = {"parameters", "optimizer", "generator", "modules", "edges"};
constexpr size_t kParts = std::size(kShardParts);
constexpr size_t kOldParts = 3;  // older shards have the first ones alone

/// The parts of a shard's file.
std::vector<CheckpointPart> parts_of(int64_t& set, ShardPart (&parts)[kParts]) {
  std::vector<CheckpointPart> out{{"set", set}};
  for (size_t i = 0; i < kParts; ++i) out.emplace_back(kShardParts[i], parts[i]).optional = i >= kOldParts;
  return out;
}

}  // namespace

std::atomic<void (*)(const char*)> at_save_step{nullptr};

Tensor empty_entry(const ShardEntry& entry) {
  if (entry.dtype < 0 || entry.dtype >= kDTypeCount || entry.sizes.size() > kMaxDims)
    throw ValueError(str("checkpoint: '", entry.name, "' has no type and sizes of a tensor"));
  return empty(Shape(entry.sizes), {.dtype = static_cast<DType>(entry.dtype)});
}

void check_shard_name(const std::string& name) {
  const bool plain = name.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz-.") == std::string::npos;
  if (!plain || !name.starts_with("shard-") || !name.ends_with(".safetensors"))
    throw ValueError(str("checkpoint: '", name, "' is no name of a shard"));
}

ShardFile describe_file(const std::string& folder, const std::string& name) {
  weft::detail::FileReader file("checkpoint", folder + "/" + name);
  weft::detail::Crc32 crc;
  std::vector<char> chunk(1 << 20);
  while (file.position() < file.size()) {
    const auto n = std::min<uint64_t>(chunk.size(), file.size() - file.position());
    file.read(chunk.data(), n);
    crc.add(chunk.data(), n);
  }
  return {name, static_cast<int64_t>(file.size()), static_cast<int64_t>(crc.value())};
}

ShardFile write_shard(const std::string& folder, const std::string& name, int64_t set,
                      const optim::StateDict& shard) {
  check_shard_name(name);
  ShardPart parts[kParts];
  for (const auto& [path, value] : shard) {
    size_t i = 0;
    while (i < kParts && !path.starts_with(str(kShardParts[i], "/"))) ++i;
    if (i == kParts) throw ValueError(str("checkpoint: a shard has no part for '", path, "'"));
    parts[i].state.emplace_back(path.substr(path.find('/') + 1), value);
  }
  save_step("shard");
  weft::save_checkpoint(folder + "/" + name, parts_of(set, parts));
  save_step("told");
  return describe_file(folder, name);
}

optim::StateDict read_shard(const std::string& folder, const ShardFile& file, int64_t set) {
  check_shard_name(file.name);
  const ShardFile found = describe_file(folder, file.name);
  if (found.bytes != file.bytes || found.crc != file.crc)
    throw IoError(str("checkpoint: ", folder, "/", file.name,
                      ": is damaged or of another save: ", found.bytes, " bytes with CRC ", found.crc,
                      ", the manifest says ", file.bytes, " bytes with CRC ", file.crc));
  int64_t saved = 0;
  ShardPart parts[kParts];
  weft::load_checkpoint(folder + "/" + file.name, parts_of(saved, parts), false);
  if (saved != set)
    throw IoError(str("checkpoint: ", folder, "/", file.name, ": belongs to the set ", saved,
                      ", the manifest to the set ", set));
  optim::StateDict out;
  for (size_t i = 0; i < kParts; ++i)
    for (const auto& [name, value] : parts[i].state) out.emplace_back(str(kShardParts[i], "/", name), value);
  return out;
}

}  // namespace weft::dist_optim::detail
