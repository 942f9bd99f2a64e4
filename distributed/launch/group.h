// run_group: runs one function in every worker of a group. It starts, joins and ends the processes.
//
//   int main() {
//     return rpc::run_group({.names = {"trainer", "server"}}, [](const rpc::WorkerInfo& me) {
//       if (me.name == "trainer") train();
//     });   // a worker whose function has returned serves the others until all have
//   }
//
// Without a launcher this process is rank 0 and starts the others on this machine (spawn.h). With RANK or
// another launcher's variable in the environment (launch.h) it is that worker of the launcher's group. With
// GroupOptions::elastic the group is elastic (membership.h), and rank 0 serves its store. It may restart a
// process that has failed. The new process runs the function again, as the successor of the failed worker.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/rpc/rpc.h>

namespace weft::rpc {

/// The settings with which this process will join its group; GroupOptions::prepare may change
/// `name` and `init`.
struct Joining {
  LaunchInfo launch;           ///< rank and world size; no port yet in a process that starts the others
  bool spawned = false;        ///< run_group starts the group, not a launcher
  bool starts_others = false;  ///< this process is rank 0 of such a group
  std::string name;
  InitOptions init;  ///< `launch` overrides its rank, world_size and master
};

/// Options of run_group.
struct GroupOptions {
  /// Number of workers to start; 0: one for each name. A launcher sets the size of its group.
  int world_size = 0;
  std::vector<std::string> names{};  ///< by rank; empty: "worker0", "worker1", ...
  /// Runs in every worker before it starts others or joins; an exception ends run_group.
  std::function<void(Joining& joining)> prepare{};
  /// Runs in the process that starts the others, with the states of all of them, before it joins.
  std::function<void(const std::vector<ChildState>& children)> started{};
  /// True: run_group throws in rank 0 for a started process that fails. False: such a process is a lost
  /// member, which is no error while another worker is active.
  bool require_all = true;
  Duration serve_timeout = Duration::zero();         ///< limit of the wait for the others; zero: no limit
  Duration exit_timeout = std::chrono::seconds(60);  ///< limit of the wait for started processes at the end
  /// As SpawnOptions::tls, if this process starts the others: all get certificates of the names above.
  bool tls = false;
  /// An elastic group: each worker joins by itself, and runs the function without waiting for the others.
  /// Rank 0 serves the store; in a launcher's group at the master's address, unless WEFT_STORE names another
  /// address.
  bool elastic = false;
  std::string store{};      ///< address of the store; empty: any port of this machine, or as above
  std::string store_log{};  ///< as StoreOptions::log, in rank 0's process, unless WEFT_STORE is set
  int restarts = 0;         ///< how often each started process that fails is started again
};

namespace detail {
WEFT_API int run_group(const GroupOptions& options, const std::function<int(const WorkerInfo& me)>& function);
}

/// Joins the group, runs `function` in every worker and leaves when all have returned. The function returns
/// nothing or an exit code; run_group returns that code, or 0. A worker whose function throws leaves at once.
/// The function may call shutdown or serve_until_done itself, as its last call.
/// Blocks at most InitOptions::init_timeout for the group to form; a started process that ends early ends
/// this wait. Then it blocks as the options state. In an elastic group, the function of a worker that has
/// ended for good counts as returned. A launcher's group waits for the worker's successor.
/// Throws: ValueError for a size or names that do not fit, and for options of an elastic group in a static
/// group. ChildError in rank 0 for a started process that failed, with rank, pid and status. Its text begins
/// with this worker's own error, if any. Timeout for a process that does not end. The errors of spawn,
/// init_rpc, serve_until_done and `function` pass through.
/// Thread safety: one call at a time.
template <class Function> int run_group(const GroupOptions& options, Function&& function) {
  using Result = std::invoke_result_t<Function&, const WorkerInfo&>;
  static_assert(std::is_void_v<Result> || std::is_same_v<Result, int>,
                "run_group: the function returns nothing, or its exit code as an int");
  return detail::run_group(options, [&function](const WorkerInfo& me) -> int {
    if constexpr (std::is_void_v<Result>) return function(me), 0;
    else return function(me);
  });
}

}  // namespace weft::rpc
