// rpc::run_group for the example programs, with flags for TLS, elastic groups and workers that only serve. It
// prints a line with the pids of the started processes. The shutdown of a worker that is done has a limit of
// 60 s.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace weft::rpc {
struct InitOptions;
}

namespace examples {

class Args;

constexpr int kMostWorkers = 1000;  // a larger number is treated as a typing error

/// Network flags of every program that forms a group: for groups beyond loopback, and for their inspection.
struct NetworkFlags {
  bool insecure = false, tls = false;
  std::string tls_ca{}, tls_cert{}, tls_key{}, tls_server_name{};
  std::optional<std::string> inspect{};  ///< address of the inspection; empty: a unix socket; unset: off
  /// Address of the store of an elastic group, and this worker's name there; both empty: a static group. Only
  /// programs that take a successor in a dead worker's place have these flags.
  std::string store{}, name{};
  void add_elastic_to(Args& args);
  /// Adds the other flags; the three files must come together, and `tls` alone.
  void add_to(Args& args);
};

struct GroupOptions {
  int world_size = 2;
  int most_workers = kMostWorkers;  ///< upper limit for a launcher's group; the lower limit is 2
  NetworkFlags network{};
  /// Name of a worker. `spawned`: this program started the group, so rank 0 has the terminal.
  std::function<std::string(int rank, bool spawned)> name;
  /// True for workers that only serve until the others are done.
  std::function<bool(const std::string& name)> passive;
  /// Changes a worker's options before it joins.
  std::function<void(const std::string& name, weft::rpc::InitOptions& options)> configure{};
  /// Runs in an active worker before it joins; an exception ends run_group. `starts_others`: this process
  /// will start the other workers.
  std::function<void(bool starts_others)> prepare{};
};

/// Joins the group, runs body(name) in active workers and leaves. Returns the body's result; 0 for passive
/// workers. In an elastic group these serve until the body has ended in an active one. Throws: ValueError for
/// a launcher's group of a wrong size, or beyond loopback without TLS or --insecure. IoError for TLS files;
/// the errors of rpc::run_group and of the body.
int run_group(const GroupOptions& options, const std::function<int(const std::string& name)>& body);

}  // namespace examples
