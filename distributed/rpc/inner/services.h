// Services installed on every Agent, lowest first. A new service adds its line in services.cpp. So every
// program answers its requests, even one that does not use the service itself.
#pragma once

namespace weft::rpc {

class Agent;

/// Calls the install function of each service.
void install_services(Agent& agent);

void install_calls(Agent& agent);          ///< responder.cpp: Kind::kCall
void install_batches(Agent& agent);        ///< batched.cpp: counters of joined runs
void install_gather(Agent& agent);         ///< gathers.cpp: Kind::kGather
void install_rounds(Agent& agent);         ///< rounds.cpp: Kind::kRound
void install_devices(Agent& agent);        ///< devices.cpp: Kind::kReturn
void install_references(Agent& agent);     ///< references.cpp: Kind::kRemote to Kind::kDelete
void install_dist_autograd(Agent& agent);  ///< dist_backward.cpp: recording, backward passes

}  // namespace weft::rpc
