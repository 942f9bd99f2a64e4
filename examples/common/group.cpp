// The use of the network flags, the size check, and run_group over rpc::run_group (group.h).
#include "group.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <weft/distributed.h>
#include "inspect.h"

namespace examples {
namespace {

using namespace weft::rpc;
using namespace std::chrono_literals;

void check_size(const LaunchInfo& launch, int most) {
  if (launch.world_size >= 2 && launch.world_size <= most) return;
  throw weft::ValueError(weft::str("the launched group has ", launch.world_size,
                                   launch.world_size == 1 ? " worker" : " workers", ", it must have ",
                                   most == 2 ? "2" : weft::str("2 to ", most),
                                   "; set WORLD_SIZE, or unset RANK to let this program start the others"));
}

/// Sets TLS, or allows plain connections beyond loopback, by the flags.
void secure(const NetworkFlags& flags, const LaunchInfo& launch, bool spawned, InitOptions& init) {
  if (flags.tls && !spawned)
    throw weft::ValueError(
        "--tls makes certificates for workers that this program starts; a launcher's workers are given "
        "theirs by --tls-ca, --tls-cert and --tls-key");
  init.insecure = flags.insecure;
  if (!flags.tls_ca.empty()) {
    std::error_code ignored;
    for (const std::string& file : {flags.tls_ca, flags.tls_cert, flags.tls_key})
      if (!std::filesystem::is_regular_file(file, ignored) || !std::ifstream(file))
        throw weft::IoError("tls: cannot read " + file);
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

/// Ends the serving of this worker.
void leave_elastic_group() { stop_serving(); }
WEFT_RPC(leave_elastic_group);

/// One worker of an elastic group of any size, whose store another process serves. It has no rank, and
/// rpc::run_group ends with the last of its ranks: here active workers end the passive ones.
int run_elastic(const GroupOptions& options, const std::function<int(const std::string&)>& body) {
  const NetworkFlags& flags = options.network;
  InitOptions init;
  LaunchInfo launch;
  launch.master_addr = parse_host_port(flags.store).host;
  secure(flags, launch, false, init);
  init.store = flags.store;
  init.lease = 2s;
  if (options.configure) options.configure(flags.name, init);
  const bool passive = options.passive(flags.name);
  if (!passive && options.prepare) options.prepare(false);
  init_rpc(flags.name, init);
  std::optional<Inspecting> inspecting;
  if (flags.inspect) inspecting.emplace(flags);
  if (passive) return serve_until_done(), 0;
  const int result = body(flags.name);
  for (const WorkerInfo& member : get_worker_infos()) {
    if (!options.passive(member.name)) continue;
    try {
      rpc_sync<leave_elastic_group>({member.name, 10s});
    } catch (const weft::RpcError&) {  // it is gone already
    }
  }
  shutdown({.timeout = 60s});
  return result;
}

void print_pids(const std::vector<ChildState>& children) {
  std::printf("pids: %d", static_cast<int>(getpid()));
  for (const ChildState& c : children) std::printf(" %d", c.pid);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int run_group(const GroupOptions& options, const std::function<int(const std::string&)>& body) {
  const WaitSignal waits;
  if (!options.network.store.empty()) return run_elastic(options, body);
  std::optional<Inspecting> inspecting;
  const auto prepare = [&](Joining& joining) {
    if (!joining.starts_others) check_size(joining.launch, options.most_workers);
    joining.name = options.name(joining.launch.rank, joining.spawned);
    secure(options.network, joining.launch, joining.spawned, joining.init);
    if (options.configure) options.configure(joining.name, joining.init);
    if (options.prepare && !options.passive(joining.name)) options.prepare(joining.starts_others);
  };
  std::vector<std::string> names;
  for (int rank = 0; options.network.tls && rank < options.world_size; ++rank)
    names.push_back(options.name(rank, true));
  return weft::rpc::run_group({.world_size = options.world_size,
                               .names = names,
                               .prepare = prepare,
                               .started = print_pids,
                               .tls = options.network.tls},
                              [&](const WorkerInfo& me) {
                                if (options.network.inspect && me.id.value == 0)
                                  inspecting.emplace(options.network);
                                if (options.passive(me.name)) return 0;
                                const int result = body(me.name);
                                shutdown({.timeout = 60s});
                                return result;
                              });
}

}  // namespace examples
