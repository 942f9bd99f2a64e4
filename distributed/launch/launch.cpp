// The launch settings: options first, then RANK / WORLD_SIZE / MASTER_ADDR / MASTER_PORT, then the
// variables of other launchers. WEFT_MASTER_PORT comes before MASTER_PORT.
#include <weft/distributed/launch/launch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include <weft/distributed/launch/spawn.h>

namespace weft::rpc {
namespace {

struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;  // may be null
};
constexpr std::array<Launcher, 5> kLaunchers = {{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"JOB_COMPLETION_INDEX", "WORLD_SIZE", nullptr},
}};

struct Settings {
  const Environment& environment;
  std::optional<std::string> text(const char* name) const {
    if (name == nullptr) return std::nullopt;
    const char* value = environment ? environment(name) : std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }
  std::optional<int> number(const char* name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int n = 0;
    const auto [at, error] = std::from_chars(value->data(), value->data() + value->size(), n);
    if (error != std::errc() || at != value->data() + value->size())
      throw ValueError(str(name, " is '", *value, "', not a number"));
    return n;
  }
  /// torchrun's agent listens at MASTER_PORT itself, and states that by a variable: rank 0 takes the next
  /// port.
  std::optional<int> master_port() const {
    if (const auto own = number("WEFT_MASTER_PORT")) return own;
    const auto port = number("MASTER_PORT");
    if (!port || text("TORCHELASTIC_USE_AGENT_STORE") != "True") return port;
    return *port < 65535 ? *port + 1 : *port - 1;
  }
};

}  // namespace

std::string first_slurm_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    for (++i; i < list.size() && list[i] != '-' && list[i] != ',' && list[i] != ']'; ++i) host += list[i];
    while (i < list.size() && list[i] != ']') ++i;
  }
  return host;
}

bool launched(const Environment& environment) {
  return std::any_of(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& launcher) {
    return Settings{environment}.text(launcher.rank).has_value();
  });
}

LaunchInfo launch_info(const LaunchOptions& options, const Environment& environment) {
  spawned_rank();  // a child of spawn must ignore Ctrl-C and die with its parent
  const Settings env{environment};
  LaunchInfo info;
  std::optional<int> rank = options.rank, size = options.world_size, local = options.local_rank;
  info.source = rank ? "rank from the options" : "";
  for (const auto& launcher : kLaunchers) {
    const auto r = env.number(launcher.rank);
    if (!r) continue;
    if (!rank) {
      rank = r;
      info.source = str("rank from ", launcher.rank);
    }
    if (!size) size = env.number(launcher.world_size);
    if (!local) local = env.number(launcher.local_rank);
  }
  if (!size) size = env.number("WORLD_SIZE");
  if (!rank)
    throw ValueError(
        "launch: no rank: neither the options nor RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK give "
        "one");
  if (!size) throw ValueError("launch: no world size: neither the options nor WORLD_SIZE give one");
  if (*size < 1) throw ValueError(str("launch: world size is ", *size));
  if (*rank < 0 || *rank >= *size) throw ValueError(str("launch: rank ", *rank, " is not in 0..", *size - 1));
  info.rank = *rank;
  info.world_size = *size;
  info.local_rank = local.value_or(0);

  const auto set_address = [&](const std::string& address, const char* from) {
    info.master_addr = address;
    info.source += str(", address from ", from);
  };
  if (options.master_addr) {
    set_address(*options.master_addr, "the options");
  } else if (const auto a = env.text("MASTER_ADDR")) {
    set_address(*a, "MASTER_ADDR");
  } else if (const auto nodes = env.text("SLURM_JOB_NODELIST"); nodes && env.text("SLURM_PROCID")) {
    set_address(first_slurm_host(*nodes), "SLURM_JOB_NODELIST");
  } else if (const auto node = env.text("SLURM_LAUNCH_NODE_IPADDR"); node && env.text("SLURM_PROCID")) {
    set_address(*node, "SLURM_LAUNCH_NODE_IPADDR");
  } else if (*size == 1) {
    set_address("127.0.0.1", "a world of one");
  } else {
    throw ValueError("launch: no address of rank 0: neither the options nor MASTER_ADDR give one");
  }
  const bool alone = info.world_size == 1;
  const int port = options.master_port ? *options.master_port : env.master_port().value_or(alone ? 0 : 29500);
  if (port < 0 || port > 65535 || (port == 0 && !alone))
    throw ValueError(str("launch: master port is ", port, ", not in 1..65535"));
  info.master_port = static_cast<uint16_t>(port);
  return info;
}

}  // namespace weft::rpc
