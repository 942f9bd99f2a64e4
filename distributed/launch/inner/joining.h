// The steps of a join of an elastic group: the kind of its store, the id of a name and the device maps
// (joining.cpp).
#pragma once

#include <string>

#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/launch/membership.h>

namespace weft::rpc::inner {

/// Throws: ValueError for the store of a rendezvous; Timeout when no store answers.
void check_store_kind(Store& store, const JoinOptions& options);
/// The id of a name; a new id for a new name. Throws: ValueError when no id is left.
WorkerId claim_id(Store& store, const std::string& name, TimePoint deadline);
/// Checks the device maps of a worker that would join these members, and theirs for it. Throws: ValueError
/// for maps that do not fit, DeviceError for a device that this machine lacks; both name workers and devices.
void check_devices(const MemberList& list, const Member& me);
/// Asks the members to which the maps of this new member lead. Throws: DeviceError that names the devices
/// they lack; Timeout.
void ask_for_devices(const std::shared_ptr<Agent>& agent, TimePoint deadline);

}  // namespace weft::rpc::inner
