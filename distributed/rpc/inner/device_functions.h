// The registered function "weft::missing_devices", which a worker that joins an elastic group calls.
#pragma once

#include <string>

#include <weft/distributed/rpc/function.h>

namespace weft::rpc::builtin {

/// The error text for the devices of this worker to which the plan of `caller` (to_line) leads, and which
/// this machine lacks; empty: none.
std::string missing_devices(const std::string& caller, const std::string& plan);

}  // namespace weft::rpc::builtin
