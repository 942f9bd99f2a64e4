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

class Args;

constexpr int kMostWorkers = 1000;  // more is taken for a slip of the keyboard

/// Flags of every program that forms a group: how its workers meet beyond loopback.
struct NetworkFlags {
  bool insecure = false;
  std::string tls_ca{}, tls_cert{}, tls_key{}, tls_server_name{};
  /// Adds the flags; the three files must come together.
  void add_to(Args& args);
};

struct GroupOptions {
  int world_size = 2;
  int most_workers = kMostWorkers;  ///< of a group that was launched from outside; the fewest are 2
  NetworkFlags network{};
  /// Name of a worker. `spawned`: the group was started by this program, so rank 0 has the terminal.
  std::function<std::string(int rank, bool spawned)> name;
  /// True for workers that only serve until the others leave.
  std::function<bool(const std::string& name)> passive;
  /// Changes the options with which a worker joins.
  std::function<void(const std::string& name, weft::rpc::InitOptions& options)> configure{};
  /// Runs in a worker that is not passive, before it joins; what it throws is the end. `starts_others`: it will start the other workers then.
  std::function<void(bool starts_others)> prepare{};
};

/// Joins, runs body(name) unless the worker is passive, leaves. Returns the body's result; 0 for passive workers.
/// Throws: ValueError for a launched group of a size that does not fit, or beyond loopback without a flag that says how; IoError for TLS files;
/// what joining, the body or leaving throws; a child that ended badly, with its pid and status, whenever that was.
int run_group(const GroupOptions& options, const std::function<int(const std::string& name)>& body);

}  // namespace examples
