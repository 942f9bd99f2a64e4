// Services installed on every Agent, lowest first. A new service adds its line in services.cpp. So every
// program answers its requests, even one that does not use the service itself.
#pragma once

namespace weft::rpc {

class Agent;

/// Calls the install function of each service.
void install_services(Agent& agent);

void install_calls(Agent& agent);          ///< responder.cpp: Kind::kCall
void install_batches(Agent& agent);        ///< batched.cpp: counters of joined runs
void install_gather(Agent& agent);         ///< services.cpp: Kind::kGather
void install_rounds(Agent& agent);         ///< services.cpp: Kind::kRound
void install_devices(Agent& agent);        ///< services.cpp: Kind::kReturn
void install_references(Agent& agent);     ///< reference_requests.cpp: Kind::kRemote to Kind::kDelete
void install_dist_autograd(Agent& agent);  ///< dist_backward.cpp: recording, backward passes

}  // namespace weft::rpc
