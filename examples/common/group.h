// How the example programs become a group of processes. With RANK (or another launcher's variables) in the environment this process is
// that worker; otherwise it is rank 0 itself and starts the others, whose pids it prints. Ctrl-C reaches the starting process alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace weft::rpc {
struct InitOptions;
}

namespace examples {

constexpr int64_t kMostWorkers = 1000;  // more is taken for a slip of the keyboard

struct GroupOptions {
  int world_size = 2;
  /// Name of a worker. `spawned`: the group was started by this program, so rank 0 has the terminal.
  std::function<std::string(int rank, bool spawned)> name;
  /// True for workers that only serve until the others leave.
  std::function<bool(const std::string& name)> passive;
  /// Changes the options with which a worker joins.
  std::function<void(const std::string& name, weft::rpc::InitOptions& options)> configure{};
  /// Runs before this program starts the other workers; what it throws is the end.
  std::function<void()> before_spawn{};
};

/// Joins, runs body(name) unless the worker is passive, leaves. Returns the body's result; 0 for passive workers.
/// Throws: what joining, the body or leaving throws; a child that ended badly, with its pid and status.
int run_group(const GroupOptions& options, const std::function<int(const std::string& name)>& body);

}  // namespace examples
