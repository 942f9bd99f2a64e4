// For tests that need the same-host lane: `if (!rpc::has_same_host_lane()) GTEST_SKIP() << test::kNoLane;`
#pragma once

#include <weft/distributed/transport/grpc_transport.h>

namespace weft::test {

inline constexpr char kNoLane[] = "this build has no same-host lane (WEFT_LANE=OFF)";

}  // namespace weft::test
