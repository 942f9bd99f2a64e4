// The rendezvous of simulated workers: the protocol of rendezvous.h over a SimNetwork.
#pragma once

#include <memory>
#include <string>

#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/sim/sim_transport.h>

namespace weft::rpc {

/// Makes the rendezvous of one simulated worker. `group` separates several groups on one network. The
/// store has the address "sim:store:<group>". Its network ids are separate from the workers' ids, so
/// fault rules between workers do not apply to it. Throws: ValueError for a rank out of range.
/// Thread safety: as SimRuntime.
WEFT_API std::unique_ptr<Rendezvous> make_sim_rendezvous(SimRuntime& runtime, SimNetwork& network, int rank,
                                                         int world_size, const std::string& group = "main");

}  // namespace weft::rpc
