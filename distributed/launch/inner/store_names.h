// The right to change the keys of a group in a store under TLS. A change that acts for a worker comes from a
// connection whose certificate has the worker's name. Keys of no group are open to all clients.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <weft/distributed/launch/inner/store_table.h>

namespace weft::rpc::inner {

/// Checks a request, before it is executed, of a client whose certificate has these names. Throws: NotAllowed
/// that names the key and the worker; WireError for a request that cannot be read.
void check_names(const StoreKeys& keys, const std::vector<std::string>& names, std::string_view request);

}  // namespace weft::rpc::inner
