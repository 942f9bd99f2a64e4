// Launch settings of a worker: its rank, the world size and the address of rank 0. They come from explicit
// options or from the environment of a launcher (torchrun, SLURM, OpenMPI, MPICH / Intel MPI, Kubernetes).
//
// How it is used:
//   const LaunchInfo info = launch_info({.rank = options.rank});   // an option overrides the environment
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <weft/kernels/error.h>

namespace weft::rpc {

/// Settings given by the program; unset settings come from the environment.
struct LaunchOptions {
  std::optional<int> rank{};
  std::optional<int> world_size{};
  std::optional<int> local_rank{};
  std::optional<std::string> master_addr{};
  std::optional<int> master_port{};
};

/// The complete launch settings of a worker.
struct LaunchInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_addr;
  uint16_t master_port = 29500;
  /// Origin of rank and address: "rank from SLURM_PROCID, address from MASTER_ADDR".
  std::string source;
};

/// Reads one environment variable; returns null if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// Combines options and environment; options override the environment. The port of rank 0 is
/// WEFT_MASTER_PORT, else MASTER_PORT, else 29500. Under torchrun, whose agent listens at MASTER_PORT itself,
/// it is MASTER_PORT + 1. Throws: ValueError for a missing variable, a variable that is not a number (the
/// text names it), or a rank not below the world size. Thread safety: it reads the process environment, which
/// no thread may change meanwhile.
WEFT_API LaunchInfo launch_info(const LaunchOptions& options = {}, const Environment& environment = {});

/// True if a launcher's variable gives this process a rank (RANK, SLURM_PROCID, ...); an empty variable does
/// not.
WEFT_API bool launched(const Environment& environment = {});

/// The first host of a SLURM node list: "gpu[07-12,20],login" gives "gpu07".
WEFT_API std::string first_slurm_host(const std::string& list);

}  // namespace weft::rpc
