// The rendezvous of a group: rank 0 serves a store at an address known to all workers. Each worker publishes
// its name and addresses there and reads the names and addresses of all others.
//
// How it is used:
//   auto meet = make_rendezvous(rt, launch_info(), {});               // make_sim_rendezvous in simulation
//   auto members = meet->join({.name = "ps", .address = transport->addresses()}, rt->now() + 60s);
//   for (auto& m : members) transport->add_peer(m.id, m.address);
//   meet->barrier("start", rt->now() + 60s);
//   ... meet->leave(rt->now() + 10s);                                 // rank 0 waits here for the others
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/store.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/wire/member.h>

namespace weft::rpc {

/// Thread safety: every member may be called from any thread. join, barrier and leave block.
class WEFT_API Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Publishes this worker and blocks until all have done so. Returns the members sorted by id; it fills in
  /// the id of `self`. Throws: ValueError at once, before any write, for a store that is no rendezvous, such
  /// as that of an elastic group. Throws, on every worker that reaches the store: ValueError for a name or
  /// rank taken twice, or different world sizes. PeerLost if a worker with a `process` on rank 0's host ended
  /// before it left. After that rank 0 must call leave, so that the others get the error. Timeout that names
  /// the missing ranks.
  virtual std::vector<Member> join(Member self, TimePoint deadline) = 0;

  /// Blocks until every worker of `who` (empty: all) has called the barrier of this name. All pass
  /// the same list. A name may be used repeatedly. Throws: Timeout that names the missing ranks;
  /// ValueError after abort_rendezvous.
  virtual void barrier(const std::string& name, TimePoint deadline,
                       const std::vector<WorkerId>& who = {}) = 0;

  /// Ends the use of the store. Rank 0 blocks until all others have left, and then at most 10 s until they
  /// have read its answers. Its process may end after the return. The others do not wait for rank 0 if it has
  /// ended. Returns false if `deadline` came first.
  virtual bool leave(TimePoint deadline) = 0;

  virtual Store& store() = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
};

/// Security of a rendezvous; see grpc_transport.h.
struct RendezvousOptions {
  std::optional<TlsOptions> tls{};
  bool insecure = false;  ///< allow a plain rendezvous beyond loopback
};

/// Makes a rendezvous over gRPC; rank 0 opens the port. With a world size of 1 the port may be 0. Throws:
/// ValueError for a rank out of range, or a port that serves another kind of store. RpcError for a port that
/// is in use or needs credentials, or a master address that cannot be resolved.
WEFT_API std::unique_ptr<Rendezvous> make_rendezvous(std::shared_ptr<Runtime> runtime,
                                                     const LaunchInfo& launch,
                                                     const RendezvousOptions& options = {});

/// Aborts the rendezvous from a process outside the group, for a launcher that knows that a worker will not
/// join. All workers in join or in a barrier throw ValueError with the text `why`; rank 0 may leave without
/// the others. Throws: Timeout if rank 0 does not answer by `deadline`.
WEFT_API void abort_rendezvous(std::shared_ptr<Runtime> runtime, const LaunchInfo& launch,
                               const std::string& why, TimePoint deadline,
                               const RendezvousOptions& options = {});

/// The same protocol over a given store: a server on rank 0, a client on the others. The runtime must
/// outlive the rendezvous.
WEFT_API std::unique_ptr<Rendezvous> make_rendezvous_over(Runtime& runtime, int rank, int world_size,
                                                          std::unique_ptr<Store> store);

}  // namespace weft::rpc
