// The check of device maps in a group whose members have not all come (device_map.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/wire/device_map.h>

namespace weft::rpc::inner {

/// As check_device_plans, but a map for a worker that is not there yet is no error.
void check_plans_so_far(const std::vector<std::pair<std::string, DevicePlan>>& members);

}  // namespace weft::rpc::inner
