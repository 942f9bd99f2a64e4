// The mark of the store of a rendezvous. Any other store, such as that of an elastic group, lacks it. So a
// worker that comes to the wrong kind of group finds out at once.
#pragma once

#include <weft/distributed/launch/store.h>

namespace weft::rpc::inner {

inline constexpr char kRendezvousKey[] = "init/rendezvous";

/// Options of the store that rank 0 of a static group serves.
inline StoreOptions rendezvous_store() {
  StoreOptions options;
  options.first_keys = {{kRendezvousKey, ""}};
  return options;
}

}  // namespace weft::rpc::inner
