#include "group.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include <unistd.h>

#include <weft/distributed.h>
#include <weft/distributed/rendezvous.h>
#include "args.h"

namespace examples {
namespace {

using namespace weft::rpc;
using namespace std::chrono_literals;

/// A variable that is set to nothing says nothing.
bool launched() {
  for (const char* name :
       {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"})
    if (const char* value = std::getenv(name); value && *value) return true;
  return false;
}

void check_size(const LaunchInfo& launch, int most) {
  if (launch.world_size >= 2 && launch.world_size <= most) return;
  throw weft::ValueError(weft::str("the launched group has ", launch.world_size,
                                   launch.world_size == 1 ? " worker" : " workers", ", it must have ",
                                   most == 2 ? "2" : weft::str("2 to ", most),
                                   "; set WORLD_SIZE, or unset RANK to let this program start the others"));
}

/// TLS and plain connections beyond loopback, as the flags say.
void secure(const NetworkFlags& flags, const LaunchInfo& launch, InitOptions& init) {
  init.insecure = flags.insecure;
  if (!flags.tls_ca.empty()) {
    for (const std::string& file : {flags.tls_ca, flags.tls_cert, flags.tls_key})
      if (!std::ifstream(file)) throw weft::IoError("tls: cannot read " + file);
    init.tls.emplace();
    init.tls->ca_file = flags.tls_ca, init.tls->certificate_file = flags.tls_cert,
    init.tls->key_file = flags.tls_key;
    init.tls->server_name = flags.tls_server_name;
  } else if (!flags.insecure && !is_loopback_host(launch.master_addr)) {
    throw weft::ValueError("the group meets at " + launch.master_addr +
                           ", which is not loopback: give --tls-ca, --tls-cert and --tls-key, or " +
                           "--insecure for connections that are neither encrypted nor checked");
  }
}

/// Those that have ended; `badly`: with a status or by a signal.
std::vector<ChildState> ended(Children& children, bool badly) {
  std::vector<ChildState> out = children.poll();
  std::erase_if(
      out, [&](const ChildState& c) { return c.running || (badly && c.exit_code == 0 && c.signal == 0); });
  return out;
}

/// Throws the error at hand again, with how children have ended unless it tells.
[[noreturn]] void rethrow_with_children(const std::string& what, Children& children) {
  const std::vector<ChildState> all = ended(children, true);
  std::string fates;
  for (const ChildState& c : all) {
    if (what.find(to_string(c)) != std::string::npos) throw;
    fates += (fates.empty() ? "" : "; ") + to_string(c);
  }
  if (all.empty()) throw;
  throw ChildError(all.front(), what + " (" + fates + ")");
}

/// Looks after the children while the group forms: one that has ended will not come, so the wait for it ends too.
class StartWatch {
 public:
  StartWatch(Children& children, const LaunchInfo& launch, const InitOptions& init)
      : thread_([&children, launch,
                 meeting = RendezvousOptions{init.tls, init.insecure}](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (const auto gone = ended(children, false); !gone.empty())
              return give_up(launch, meeting, to_string(gone.front()), stop);
            std::this_thread::sleep_for(10ms);
          }
        }) {}

 private:
  static void give_up(const LaunchInfo& launch, const RendezvousOptions& meeting, const std::string& fate,
                      const std::stop_token& stop) {
    const std::shared_ptr<Runtime> runtime = make_threaded_runtime({.threads = 1});
    for (bool heard = false; !heard && !stop.stop_requested();) {
      try {
        abort_rendezvous(runtime, launch, "the group cannot form: " + fate, runtime->now() + 1s, meeting);
        heard = true;
      } catch (const weft::Error&) {  // rank 0 has not opened the port yet, or needs no rendezvous any more
      }
    }
    runtime->stop();
  }
  std::jthread thread_;
};

int take_part(const GroupOptions& options, const std::string& name,
              const std::function<int(const std::string&)>& body) {
  const bool passive = options.passive(name);
  int result = 0;
  try {
    if (!passive) result = body(name);
  } catch (...) {
    shutdown({.graceful = false});
    throw;
  }
  // A passive worker comes here at once and serves until the others are done, however long that takes; a lost one ends the wait. Whatever this
  // throws, the agent has stopped.
  shutdown({.timeout = passive ? Duration::zero() : Duration(60s)});
  return result;
}

}  // namespace

void NetworkFlags::add_to(Args& args) {
  args.add("insecure", insecure, "let workers meet beyond this machine without encryption");
  args.add("tls-ca", tls_ca, "encrypt: the authority's certificate (PEM)");
  args.add("tls-cert", tls_cert, "encrypt: this worker's certificate (PEM)");
  args.add("tls-key", tls_key, "encrypt: the key of that certificate (PEM)");
  args.add("tls-server-name", tls_server_name,
           "the name in the others' certificates, if it is not their host");
  args.require([this]() -> std::string {
    const bool any = !tls_ca.empty() || !tls_cert.empty() || !tls_key.empty() || !tls_server_name.empty();
    if (any && (tls_ca.empty() || tls_cert.empty() || tls_key.empty()))
      return "TLS needs all of --tls-ca, --tls-cert and --tls-key";
    if (any && insecure) return "--insecure and the --tls flags exclude each other";
    return "";
  });
}

int run_group(const GroupOptions& options, const std::function<int(const std::string&)>& body) {
  const bool child = spawned_rank().has_value();
  const bool parent = !child && !launched();
  LaunchInfo launch;
  if (parent) {
    launch.world_size = options.world_size;
    launch.master_addr = "127.0.0.1";
  } else {
    launch = launch_info();
    check_size(launch, options.most_workers);
  }
  const std::string name = options.name(launch.rank, parent || child);
  InitOptions init;
  secure(options.network, launch, init);
  if (options.configure) options.configure(name, init);
  if (options.prepare && !options.passive(name)) options.prepare(parent);
  std::optional<Children> children;
  if (parent) {
    children.emplace(spawn({.world_size = options.world_size, .first_rank = 1}));
    std::printf("pids: %d", static_cast<int>(getpid()));
    for (const ChildState& c : children->poll()) std::printf(" %d", c.pid);
    std::printf("\n");
    std::fflush(stdout);
    launch.master_port = static_cast<uint16_t>(children->master_port());
  }
  init.rank = launch.rank;
  init.world_size = launch.world_size;
  init.master_addr = launch.master_addr;
  init.master_port = launch.master_port;
  int result = 0;
  try {
    {
      std::optional<StartWatch> watch;
      if (children) watch.emplace(*children, launch, init);
      init_rpc(name, init);
    }
    result = take_part(options, name, body);
  } catch (const std::exception& e) {
    if (!children) throw;
    rethrow_with_children(e.what(), *children);
  }
  if (children) {
    const auto runtime = make_threaded_runtime();
    children->wait(*runtime, runtime->now() + 30s);
  }
  return result;
}

}  // namespace examples
