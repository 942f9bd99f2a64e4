// run_group: rank 0 starts the other processes, all join the group, and rank 0 watches
// its children meanwhile. In an elastic group the store has a key for each rank whose function has returned
// in this run. Each worker serves until all keys are set; rank 0 sets the keys of processes that have ended.
// A store with a log may have keys of an older run, so key names contain the number of the run.
#include <weft/distributed/launch/group.h>

#include <set>
#include <system_error>
#include <thread>

#include <weft/distributed/launch/inner/group_certificates.h>
#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/serving.h>
#include <weft/distributed/launch/inner/store_variable.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/unprotected.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// Starts a thread of run_group. Throws: Overloaded when the system gives no more.
template <class Body> std::jthread start_thread(Body body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& e) {
    throw Overloaded(str("run_group: cannot start a thread: ", e.what()));
  }
}

/// Children that have ended; `badly`: only those with a status or a signal.
std::vector<ChildState> ended_children(Children& children, bool badly) {
  std::vector<ChildState> out = children.poll();
  std::erase_if(
      out, [&](const ChildState& c) { return c.running || (badly && c.exit_code == 0 && c.signal == 0); });
  return out;
}

/// Rethrows the current error, with the ends of children that failed unless its text has them.
[[noreturn]] void rethrow_with_children(const std::string& text, Children& children) {
  const std::vector<ChildState> failed = ended_children(children, true);
  std::string ends;
  for (const ChildState& c : failed) {
    if (text.find(to_string(c)) != std::string::npos) throw;
    ends += (ends.empty() ? "" : "; ") + to_string(c);
  }
  if (failed.empty()) throw;
  throw ChildError(failed.front(), text + " (" + ends + ")");
}

/// A thread of rank 0 while the group forms: a child that has ended will not join, so it ends the rendezvous.
class StartWatch {
 public:
  StartWatch(Children& children, const LaunchInfo& launch, const InitOptions& init)
      : thread_(start_thread([&children, launch, meeting = RendezvousOptions{init.tls, init.insecure}](
                                 const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (const auto gone = ended_children(children, false); !gone.empty())
              return give_up(launch, meeting, to_string(gone.front()), stop);
            std::this_thread::sleep_for(10ms);
          }
        })) {}

 private:
  static void give_up(const LaunchInfo& launch, const RendezvousOptions& meeting, const std::string& end,
                      const std::stop_token& stop) {
    const std::shared_ptr<Runtime> runtime = make_threaded_runtime({.threads = 1});
    for (bool heard = false; !heard && !stop.stop_requested();) {
      try {
        abort_rendezvous(runtime, launch, "the group cannot form: " + end, runtime->now() + 1s, meeting);
        heard = true;
      } catch (const Error&) {  // rank 0 has not opened its port yet, or has closed it
      }
    }
    runtime->stop();
  }
  std::jthread thread_;
};

/// Waits for the children to end. Throws: ChildError if `require_all` and one failed, Timeout.
void wait_for_children(Children& children, bool require_all, Duration timeout) {
  const auto runtime = make_threaded_runtime({.threads = 1});
  const TimePoint deadline = runtime->now() + timeout;
  if (!require_all) {
    const auto count = children.poll().size();
    while (ended_children(children, false).size() < count && runtime->now() < deadline)
      runtime->sleep_for(5ms);
    if (ended_children(children, false).size() == count) {
      runtime->stop();
      return;
    }
  }
  children.wait(*runtime, deadline);
  runtime->stop();
}

std::string name_of(const GroupOptions& options, const LaunchInfo& launch) {
  if (options.names.empty()) return str("worker", launch.rank);
  if (std::ssize(options.names) != launch.world_size)
    throw ValueError(str("run_group: ", options.names.size(), " names for a group of ", launch.world_size));
  return options.names[static_cast<size_t>(launch.rank)];
}

SpawnOptions spawn_options(const GroupOptions& options, const LaunchInfo& launch) {
  SpawnOptions out;
  out.world_size = launch.world_size;
  out.first_rank = 1;
  out.tls = options.tls;
  out.names = options.names;
  out.elastic = options.elastic;
  if (!options.store.empty()) out.store = options.store;
  out.store_log = options.store_log;
  out.restarts = options.restarts;
  return out;
}

// ---- elastic groups

/// The number of the run; empty in a store that is not served for one group.
std::string run_of(Store& store, TimePoint deadline) {
  return store.peek({inner::kRunKey}, deadline).front().value_or("");
}

/// The key that is set once the function of a rank has returned, or its process has ended for good. Its value
/// is the worker's name, or empty if rank 0 has set it.
std::string returned_key(const std::string& run, int rank) {
  return str(inner::kRunBegin, run, run.empty() ? "" : "/", inner::kReturned, rank);
}

/// A thread of rank 0: starts children again that have failed, and sets the keys of those that have ended.
class Keeper {
 public:
  explicit Keeper(Children& children)
      : children_(children), thread_(start_thread([&children](const std::stop_token& stop) {
          std::set<int> told;
          Store& store = *children.store();
          while (!stop.stop_requested()) {
            try {
              for (const ChildState& c : ended_children(children, false)) {
                if (told.count(c.rank) != 0) continue;
                const TimePoint end = std::chrono::steady_clock::now() + 10s;
                store.set(returned_key(run_of(store, end), c.rank), "", end);
                told.insert(c.rank);
              }
            } catch (const Error&) {  // a process that could not be started; the next round goes on
            }
            std::this_thread::sleep_for(10ms);
          }
        })) {}
  ~Keeper() {
    thread_.request_stop();
    thread_.join();
    children_.end_restarts();
  }
  Keeper(const Keeper&) = delete;

 private:
  Children& children_;
  std::jthread thread_;
};

/// A thread that stops the serving of this worker when all functions have returned. A launcher's rank 0 that
/// starts again serves the store as another run: this worker then sets its key there too.
class ReturnWatch {
 public:
  ReturnWatch(std::shared_ptr<Store> store, const LaunchInfo& launch, std::string run,
              std::shared_ptr<Agent> agent)
      : thread_(start_thread([store = std::move(store), mine = launch.rank, world_size = launch.world_size,
                              run = std::move(run),
                              agent = std::move(agent)](const std::stop_token& stop) mutable {
          while (!stop.stop_requested()) {
            try {
              const TimePoint soon = std::chrono::steady_clock::now() + 200ms;
              if (const std::string now = run_of(*store, soon); now != run) {
                store->set(returned_key(now, mine), agent->self().name, soon);
                run = now;
              }
              std::vector<std::string> keys;
              for (int rank = 0; rank < world_size; ++rank) keys.push_back(returned_key(run, rank));
              store->wait(keys, "", soon);
              return agent->stop_serving();
            } catch (const Timeout&) {
            } catch (const Error&) {  // the store cannot be reached for now; the lease decides about the rest
              std::this_thread::sleep_for(100ms);
            }
          }
        })) {}

 private:
  std::jthread thread_;
};

/// Makes the settings those of an elastic group. `store`: its address if another process serves it.
void set_store(Joining& joining, const GroupOptions& options, const std::string& store) {
  InitOptions& init = joining.init;
  const LaunchInfo& launch = joining.launch;
  init.elastic = true;
  init.rank = init.world_size = -1;
  init.store = !store.empty()           ? store
               : !options.store.empty() ? options.store
                                        : to_string(HostPort{launch.master_addr, launch.master_port});
  init.serve_store = store.empty() && launch.rank == 0;
  if (init.serve_store) init.store_log = options.store_log;
  if (!init.tls) init.tls = inner::tls_of_environment();
}

/// Tells the others that the function has returned, and serves until all have.
void serve_elastic(const GroupOptions& options, const Joining& joining) {
  const InitOptions& init = joining.init;
  const bool left = default_agent() == nullptr;
  if (left && init.serve_store) return;
  const inner::UnprotectedTold told;  // by init_rpc
  const auto store = connect_store(init.store, {nullptr, init.tls, init.insecure});
  std::string run;
  try {
    const TimePoint end = std::chrono::steady_clock::now() + (left ? 2s : init.init_timeout);
    run = run_of(*store, end);
    store->set(returned_key(run, joining.launch.rank), joining.name, end);
  } catch (const Error&) {
    if (!left) throw;  // else the store has ended with the group
  }
  if (left) return;
  const ReturnWatch watch(store, joining.launch, run, default_agent());
  inner::serve("run_group", {.timeout = options.serve_timeout});
}

/// `elastic`: the settings of an elastic group; null: a static group.
int run_as_member(const GroupOptions& options, const std::function<int(const WorkerInfo&)>& function,
                  const Joining* elastic) {
  int code = 0;
  try {
    code = function(get_worker_info());
    if (elastic) serve_elastic(options, *elastic);
  } catch (...) {
    if (default_agent()) shutdown({.graceful = false});
    throw;
  }
  if (default_agent()) inner::serve("run_group", {.timeout = options.serve_timeout});
  return code;
}

}  // namespace

namespace detail {

int run_group(const GroupOptions& options, const std::function<int(const WorkerInfo&)>& function) {
  Joining joining;
  const bool child = spawned_rank().has_value();
  joining.starts_others = !child && !launched();
  joining.spawned = child || joining.starts_others;
  if (!options.elastic && (options.restarts != 0 || !options.store.empty() || !options.store_log.empty()))
    throw ValueError("run_group: restarts, store and store_log need elastic = true");
  if (const std::string served = inner::store_of_environment();
      options.elastic && !child && launched() && !served.empty() && !options.store_log.empty())
    throw ValueError(str("run_group: store_log: another process serves the store of this group, at ", served,
                         ", and has its log"));
  LaunchInfo& launch = joining.launch;
  if (joining.starts_others) {
    launch.world_size = options.world_size != 0 ? options.world_size : static_cast<int>(options.names.size());
    if (launch.world_size < 1)
      throw ValueError(str("run_group: the group has ", launch.world_size,
                           " workers; give a world_size of at least 1, or names"));
    launch.master_addr = "127.0.0.1";
  } else {
    launch = launch_info();
  }
  joining.name = name_of(options, launch);
  if (options.prepare) options.prepare(joining);
  std::optional<Children> children;
  if (joining.starts_others && (launch.world_size > 1 || options.elastic)) {
    children.emplace(spawn(spawn_options(options, launch)));
    if (options.tls && !joining.init.tls) joining.init.tls = children->tls(0);
    if (options.started) options.started(children->poll());
    launch.master_port = static_cast<uint16_t>(children->master_port());
  }
  int code = 0;
  try {
    if (options.elastic) {
      set_store(joining, options, children ? children->store_address() : inner::store_of_environment());
      std::optional<Keeper> keeper;
      if (children) keeper.emplace(*children);
      init_rpc(joining.name, joining.init);
      code = run_as_member(options, function, &joining);
    } else {
      InitOptions& init = joining.init;
      init.rank = launch.rank;
      init.world_size = launch.world_size;
      init.master_addr = launch.master_addr;
      init.master_port = launch.master_port;
      {
        std::optional<StartWatch> watch;
        if (children) watch.emplace(*children, launch, init);
        init_rpc(joining.name, init);
      }
      code = run_as_member(options, function, nullptr);
    }
  } catch (const std::exception& e) {
    if (!children || !options.require_all) throw;
    rethrow_with_children(e.what(), *children);
  }
  if (children) wait_for_children(*children, options.require_all, options.exit_timeout);
  return code;
}

}  // namespace detail
}  // namespace weft::rpc
