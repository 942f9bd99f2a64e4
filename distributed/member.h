// A member of a group: who it is and how it is reached.
#pragma once

#include <string>

#include <weft/distributed/device_map.h>
#include <weft/distributed/ids.h>
#include <weft/distributed/transport.h>

namespace weft::rpc {

struct Member {
  std::string name{};
  WorkerId id{};          ///< its rank
  PeerAddress address{};  ///< with its incarnation
  DevicePlan plan{};      ///< its device maps
};

}  // namespace weft::rpc
