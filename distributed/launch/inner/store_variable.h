// The variable with the address of an elastic group's store; spawn sets it for its children. The options of
// such a store: its server sets the number of the run anew, over that of an older log.
#pragma once

#include <cstdlib>
#include <random>
#include <string>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/store.h>

namespace weft::rpc::inner {

inline constexpr char kStoreVariable[] = "WEFT_STORE";

/// The address; empty without one.
inline std::string store_of_environment() {
  const char* const value = std::getenv(kStoreVariable);
  return value ? value : "";
}

/// Options of the store of one elastic group. `log`: as StoreOptions::log.
inline StoreOptions store_of_group(const std::string& log) {
  StoreOptions options;
  options.log = log;
  std::random_device random;
  options.first_keys = {{kRunKey, std::to_string(uint64_t{random()} << 32 | random())}};
  return options;
}

}  // namespace weft::rpc::inner
