// Starts the workers of a group as processes on this machine: the same program again, each with its own RANK.
// It uses posix_spawn, not fork, since a process with threads must not fork.
//
// How it is used, first thing in main:
//   if (!spawned_rank()) {                                    // the parent
//     Children workers = spawn({.world_size = 3});
//     workers.wait(*rt, rt->now() + 10min);    // throws ChildError if one fails, after ending the others
//     return 0;
//   }
//   ... a worker: launch_info() now finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
//
// Children ignore SIGINT: Ctrl-C reaches the parent, which stops them. The kernel kills them when
// the parent ends. With SpawnOptions::tls each child has a certificate made for this group, which init_rpc
// uses. With SpawnOptions::elastic the parent serves the store of an elastic group (membership.h). The
// children join it by init_rpc("name"). With SpawnOptions::restarts, poll restarts a failed child.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>

namespace weft::rpc {

class Store;

namespace inner {
struct ProcessStarter;
}

/// Options of spawn.
struct SpawnOptions {
  int world_size = 1;
  int first_rank = 0;                                ///< 1: the parent itself is rank 0 and starts the others
  std::vector<std::string> arguments{};              ///< arguments of the program; see own_arguments
  bool own_arguments = true;                         ///< pass this process's own arguments before them
  std::map<std::string, std::string> environment{};  ///< additional environment variables
  std::optional<int> master_port{};  ///< default: a free port, reserved while the Children object lives
  /// Makes an authority and a certificate of seven days for each worker of the group. The program weft-certs
  /// makes them; it is found beside this program, in PATH, or by WEFT_CERTS. The files lie in a private
  /// folder for the lifetime of Children.
  bool tls = false;
  std::vector<std::string> names{};  ///< for tls, of all workers by rank; empty: "worker0", "worker1", ...
  /// Children serves the store of an elastic group, and the environment gives its address to the child
  /// processes.
  bool elastic = false;
  std::string store = "127.0.0.1:0";  ///< address of that store; port 0 is chosen by the system
  std::string store_log{};            ///< its log, as StoreOptions::log
  int restarts = 0;                   ///< how often poll and wait restart each child that fails
};

/// State of one child process.
struct ChildState {
  int rank = 0;
  int pid = 0;
  bool running = true;
  int exit_code = 0;  ///< exit status, after an exit; -1: unknown, read by another part of the program
  int signal = 0;     ///< the signal that killed it; 0: none
  int restarts = 0;   ///< how often it was restarted; pid and status are of the last process
};
/// "rank 2 (pid 4711) exited with status 3".
WEFT_API std::string to_string(const ChildState& child);

/// A child failed. The text has rank, pid and status or signal of each failed child.
class WEFT_API ChildError : public RpcError {
 public:
  ChildError(ChildState first, const std::string& what) : RpcError(what), child(first) {}
  ChildState child;  ///< the first failed child
};

/// The started processes. The destructor kills the processes still running, then ends the store.
/// Thread safety: one thread at a time.
class WEFT_API Children {
 public:
  Children(Children&& other) noexcept;
  ~Children();

  /// Blocks until all have exited with status 0. Throws: ChildError as soon as one fails for good; Timeout
  /// that names the children still running at `deadline`. In both cases it terminates the others first.
  void wait(Runtime& runtime, TimePoint deadline = kNever);

  /// Restarts failed children (SpawnOptions::restarts), then returns the current states of all children. Does
  /// not block. Throws: RpcError for a process that cannot be started; it counts as a restart.
  const std::vector<ChildState>& poll();
  /// From now on, failed children are not restarted.
  void end_restarts();

  /// Ends the restarts, sends SIGTERM to the running children, waits at most `grace` for their end and kills
  /// the rest.
  void terminate(Runtime& runtime, Duration grace = std::chrono::seconds(2));

  int master_port() const;

  /// The store of the elastic group, and its address for a parent that joins too; null and empty without
  /// SpawnOptions::elastic.
  std::shared_ptr<Store> store() const;
  std::string store_address() const;

  /// The certificates of a rank, for a parent that is a worker itself; none without SpawnOptions::tls.
  std::optional<TlsOptions> tls(int rank) const;

 private:
  friend Children spawn(const SpawnOptions& options);
  Children();
  void kill_all() noexcept;

  std::vector<ChildState> children_;
  std::unique_ptr<inner::ProcessStarter> starter_;
};

/// Starts the processes. Throws: ValueError for ranks or restarts out of range, another number of names, or a
/// log without `elastic`. RpcError for a process that cannot start, or missing certificates. The errors of
/// serve_store. Thread safety: any thread.
WEFT_API Children spawn(const SpawnOptions& options);

/// The rank of this process if spawn started it. The first call makes the process ignore SIGINT and die with
/// its parent; launch_info makes that call too. Thread safety: any thread.
WEFT_API std::optional<int> spawned_rank();

}  // namespace weft::rpc
