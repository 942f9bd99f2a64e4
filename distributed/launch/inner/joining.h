// The steps of a join of an elastic group that concern the store alone (joining.cpp).
#pragma once

#include <string>

#include <weft/distributed/launch/membership.h>

namespace weft::rpc::inner {

/// Throws: ValueError for the store of a rendezvous; Timeout when no store answers.
void check_store_kind(Store& store, const JoinOptions& options);
/// The id of a name; a new one for a name that never was. Throws: ValueError when no id is left.
WorkerId claim_id(Store& store, const std::string& name, TimePoint deadline);

}  // namespace weft::rpc::inner
