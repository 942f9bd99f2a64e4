#include "group.h"

#include <cstdio>
#include <cstdlib>
#include <optional>

#include <unistd.h>

#include <weft/distributed.h>

namespace examples {
namespace {

using namespace weft::rpc;
using namespace std::chrono_literals;

bool launched() {
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"})
    if (std::getenv(name)) return true;
  return false;
}

}  // namespace

int run_group(const GroupOptions& options, const std::function<int(const std::string&)>& body) {
  const bool child = spawned_rank().has_value();
  const bool parent = !child && !launched();
  std::optional<Children> children;
  InitOptions init;
  int rank = 0;
  if (parent) {
    if (options.before_spawn) options.before_spawn();
    children.emplace(spawn({.world_size = options.world_size, .first_rank = 1}));
    std::printf("pids: %d", static_cast<int>(getpid()));
    for (const ChildState& c : children->poll()) std::printf(" %d", c.pid);
    std::printf("\n");
    std::fflush(stdout);
    init.rank = 0;
    init.world_size = options.world_size;
    init.master_addr = "127.0.0.1";
    init.master_port = children->master_port();
  } else {
    const LaunchInfo info = launch_info();
    rank = info.rank;
  }
  const std::string name = options.name(rank, parent || child);
  if (options.configure) options.configure(name, init);
  init_rpc(name, init);
  int result = 0;
  try {
    if (!options.passive(name)) result = body(name);
    // A passive worker comes here at once and serves until the others are done, however long that takes; a lost one ends the wait.
    shutdown({.timeout = options.passive(name) ? Duration::zero() : Duration(60s)});
  } catch (...) {
    shutdown({.graceful = false});
    throw;
  }
  if (children) {
    const auto runtime = make_threaded_runtime();
    children->wait(*runtime, runtime->now() + 30s);
  }
  return result;
}

}  // namespace examples
