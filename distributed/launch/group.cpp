// run_group: rank 0 starts the other processes, all join the group, and rank 0 watches
// its children meanwhile.
#include <weft/distributed/launch/group.h>

#include <thread>

#include <weft/distributed/launch/rendezvous.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

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
      : thread_([&children, launch,
                 meeting = RendezvousOptions{init.tls, init.insecure}](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (const auto gone = ended_children(children, false); !gone.empty())
              return give_up(launch, meeting, to_string(gone.front()), stop);
            std::this_thread::sleep_for(10ms);
          }
        }) {}

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

int run_as_member(const GroupOptions& options, const std::function<int(const WorkerInfo&)>& function) {
  int code = 0;
  try {
    code = function(get_worker_info());
  } catch (...) {
    if (default_agent()) shutdown({.graceful = false});
    throw;
  }
  if (default_agent()) serve_until_done({.timeout = options.serve_timeout});
  return code;
}

}  // namespace

namespace detail {

int run_group(const GroupOptions& options, const std::function<int(const WorkerInfo&)>& function) {
  Joining joining;
  const bool child = spawned_rank().has_value();
  joining.starts_others = !child && !launched();
  joining.spawned = child || joining.starts_others;
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
  if (joining.starts_others && launch.world_size > 1) {
    children.emplace(spawn(
        {.world_size = launch.world_size, .first_rank = 1, .tls = options.tls, .names = options.names}));
    if (options.tls && !joining.init.tls) joining.init.tls = children->tls(0);
    if (options.started) options.started(children->poll());
    launch.master_port = static_cast<uint16_t>(children->master_port());
  }
  InitOptions& init = joining.init;
  init.rank = launch.rank;
  init.world_size = launch.world_size;
  init.master_addr = launch.master_addr;
  init.master_port = launch.master_port;
  int code = 0;
  try {
    {
      std::optional<StartWatch> watch;
      if (children) watch.emplace(*children, launch, init);
      init_rpc(joining.name, init);
    }
    code = run_as_member(options, function);
  } catch (const std::exception& e) {
    if (!children || !options.require_all) throw;
    rethrow_with_children(e.what(), *children);
  }
  if (children) wait_for_children(*children, options.require_all, options.exit_timeout);
  return code;
}

}  // namespace detail
}  // namespace weft::rpc
