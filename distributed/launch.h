// Who am I and where do we meet: rank, world size and the address of rank 0, from explicit options or from the environment that a
// launcher sets (torchrun, SLURM, OpenMPI, MPICH / Intel MPI, Kubernetes).
//
// How it is used:
//   const LaunchInfo info = launch_info({.rank = options.rank});   // what is given beats what the environment says
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <weft/kernels/error.h>

namespace weft::rpc {

/// What a program sets itself; the rest comes from the environment.
struct LaunchOptions {
  std::optional<int> rank{};
  std::optional<int> world_size{};
  std::optional<int> local_rank{};
  std::optional<std::string> master_addr{};
  std::optional<int> master_port{};
};

struct LaunchInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_addr;
  uint16_t master_port = 29500;
  std::string
      source;  ///< where rank and address came from, for people: "rank from SLURM_PROCID, address from MASTER_ADDR"
};

/// Reads one variable; null if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Puts options and environment together. Throws: ValueError naming a variable that is missing or not a number, or a rank that is
/// not below the world size. Thread safety: reads the process environment, which nobody may change meanwhile.
WEFT_API LaunchInfo launch_info(const LaunchOptions& options = {}, const Environment& environment = {});

/// The first host of a SLURM node list: "gpu[07-12,20],login" gives "gpu07".
WEFT_API std::string first_slurm_host(const std::string& list);

}  // namespace weft::rpc
