// The variable that tells a process the store of its elastic group. spawn sets it for its children.
#pragma once

#include <cstdlib>
#include <string>

namespace weft::rpc::inner {

inline constexpr char kStoreVariable[] = "WEFT_STORE";

/// The address; empty without one.
inline std::string store_of_environment() {
  const char* const value = std::getenv(kStoreVariable);
  return value ? value : "";
}

}  // namespace weft::rpc::inner
