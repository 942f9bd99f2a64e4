// A member of a group: its name, id, addresses and device maps.
#pragma once

#include <string>

#include <weft/distributed/transport/ids.h>
#include <weft/distributed/transport/transport.h>
#include <weft/distributed/wire/device_map.h>

namespace weft::rpc {

/// One worker in the member list of a rendezvous.
struct Member {
  std::string name{};
  WorkerId id{};          ///< its rank
  PeerAddress address{};  ///< with its incarnation
  DevicePlan plan{};      ///< its device maps
  /// Identity of its process, for workers of the same host; empty: unknown (launch/inner/process_watch.h).
  std::string process{};
  std::string engines{};  ///< text of its product_engines(); empty: unknown
};

}  // namespace weft::rpc
