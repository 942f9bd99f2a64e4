// Starts the workers of a group as processes of this machine: the same program again, told apart by RANK. Nothing is forked: a process
// with threads must not be.
//
// How it is used, first thing in main:
//   if (!spawned_rank()) {                                    // the parent
//     Children workers = spawn({.world_size = 3});
//     workers.wait(*rt, rt->now() + 10min);                   // throws ChildError if one fails, after ending the others
//     return 0;
//   }
//   ... a worker: launch_info() now finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
//
// Children ignore SIGINT (Ctrl-C reaches the parent, which tells them to stop) and are killed when the parent is gone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/address.h>
#include <weft/distributed/runtime.h>

namespace weft::rpc {

struct SpawnOptions {
  int world_size = 1;
  int first_rank = 0;                                ///< 1: the parent itself is rank 0 and starts the others
  std::vector<std::string> arguments{};              ///< after the program's name; see own_arguments
  bool own_arguments = true;                         ///< put this process's own arguments before them
  std::map<std::string, std::string> environment{};  ///< set in addition
  std::optional<int> master_port{};  ///< default: a free one, reserved while the Children live
};

/// How one child stands.
struct ChildState {
  int rank = 0;
  int pid = 0;
  bool running = true;
  int exit_code = 0;  ///< when it has exited
  int signal = 0;     ///< when it was killed by one
};
/// "rank 2 (pid 4711) exited with status 3".
WEFT_API std::string to_string(const ChildState& child);

/// A child that failed; the text names rank, pid and status or signal of each that did.
class WEFT_API ChildError : public RpcError {
 public:
  ChildError(ChildState first, const std::string& what) : RpcError(what), child(first) {}
  ChildState child;  ///< the first that failed
};

/// The started processes. The destructor kills those that still run. Thread safety: one thread at a time.
class WEFT_API Children {
 public:
  Children(Children&& other) noexcept;
  ~Children();

  /// Waits until all have ended well. Throws: ChildError as soon as one fails, Timeout naming who still runs at `deadline`; the others
  /// are ended (terminate) in both cases before it throws.
  void wait(Runtime& runtime, TimePoint deadline = kNever);

  /// Looks without waiting: all children as they are now.
  const std::vector<ChildState>& poll();

  /// Asks those that run to stop (SIGTERM), waits `grace`, kills the rest.
  void terminate(Runtime& runtime, Duration grace = std::chrono::seconds(2));

  int master_port() const { return master_port_; }

 private:
  friend Children spawn(const SpawnOptions& options);
  Children() = default;
  void kill_all() noexcept;

  std::vector<ChildState> children_;
  std::optional<ReservedPort> port_;
  int master_port_ = 0;
  int pipe_ = -1;  // our end; its closing kills the children
};

/// Starts them. Throws: ValueError for ranks out of range, RpcError if a process cannot be started.
WEFT_API Children spawn(const SpawnOptions& options);

/// The rank of this process if spawn started it. The first call makes it ignore SIGINT and die with its parent; launch_info makes
/// that call too.
WEFT_API std::optional<int> spawned_rank();

}  // namespace weft::rpc
