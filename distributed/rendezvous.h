// How the workers of a group find each other: rank 0 keeps a store at an address that all know, everybody announces name and
// addresses there and gets the list of all.
//
// How it is used:
//   auto meet = make_rendezvous(rt, launch_info(), {});               // or make_sim_rendezvous(network, ...)
//   auto members = meet->join({.name = "ps", .address = transport->addresses()}, rt->now() + 60s);
//   for (auto& m : members) transport->add_peer(m.id, m.address);
//   meet->barrier("start", rt->now() + 60s);
//   ... meet->leave(rt->now() + 10s);                                 // rank 0 waits here for the others
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/grpc_transport.h>
#include <weft/distributed/launch.h>
#include <weft/distributed/member.h>
#include <weft/distributed/sim_transport.h>
#include <weft/distributed/store.h>

namespace weft::rpc {

/// Thread safety: every member from any thread; all block.
class WEFT_API Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Announces this worker and waits until all have done so. Sorted by id; the id of `self` is filled in.
  /// Throws: ValueError for a name that is not unique, a rank taken twice or differing world sizes, on every worker that still finds the store
  /// (so rank 0 leaves only when the others have heard); Timeout naming the ranks that are missing.
  virtual std::vector<Member> join(Member self, TimePoint deadline) = 0;

  /// Waits until every one of `who` (empty: all) has come to the barrier of this name; a name may be used again and again. Everybody
  /// gives the same list. Throws: Timeout naming the ranks that are missing.
  virtual void barrier(const std::string& name, TimePoint deadline,
                       const std::vector<WorkerId>& who = {}) = 0;

  /// Says goodbye; rank 0 waits for everybody's, so that nobody is cut off. False: `deadline` came
  /// first; on other ranks that may also mean that rank 0 has gone before its last answer arrived.
  virtual bool leave(TimePoint deadline) = 0;

  virtual Store& store() = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
};

struct RendezvousOptions {
  std::optional<TlsOptions> tls{};
  bool insecure = false;  ///< allow a plain rendezvous beyond loopback
};

/// Rank 0 opens the port; a world of one may have port 0. Throws: RpcError if the port is in use or needs credentials.
WEFT_API std::unique_ptr<Rendezvous> make_rendezvous(std::shared_ptr<Runtime> runtime,
                                                     const LaunchInfo& launch,
                                                     const RendezvousOptions& options = {});

/// Ends the forming of a group from outside it, for one who knows that a worker will not come: all who wait in join or in a barrier throw with this
/// text, and rank 0 may leave without the others. Throws: Timeout if rank 0 does not answer by `deadline`.
WEFT_API void abort_rendezvous(std::shared_ptr<Runtime> runtime, const LaunchInfo& launch,
                               const std::string& why, TimePoint deadline,
                               const RendezvousOptions& options = {});

/// The same protocol over a simulated network; `group` keeps several groups on one network apart. The store's worker has the address
/// "sim:store:<group>"; its ids on the network are its own, so that faults between workers do not concern it.
WEFT_API std::unique_ptr<Rendezvous> make_sim_rendezvous(SimRuntime& runtime, SimNetwork& network, int rank,
                                                         int world_size, const std::string& group = "main");

}  // namespace weft::rpc
