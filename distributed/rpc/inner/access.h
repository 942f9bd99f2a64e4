// The access lists of a worker (AgentOptions::allow and deny_unlisted): which members may call a function,
// and which may send requests that run none. Requests of calls, methods and remote values have the lists of
// their functions. Gathers, backward passes, fetches and the user's kinds have separate lists, below. All
// others concern property of their sender, which their handlers check; they have no list.
#pragma once

#include <string>

#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

/// The name of a kind in access lists: "weft::fetch", "weft::gather", "weft::backward" or, for the user's,
/// "weft::kind 64". Empty: it has no list.
std::string access_name(Kind kind);
/// True if the lists let the worker of this name use `what`.
bool may_use(const AgentOptions& options, const std::string& what, const std::string& worker, bool deny);
/// Throws: NotAllowed when the lists keep a request of this kind from its sender.
void check_access(const AgentCore& core, Peer& sender, Kind kind);

}  // namespace weft::rpc
