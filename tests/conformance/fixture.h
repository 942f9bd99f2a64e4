// The fixture of the conformance tests: four workers, each test over the simulated network and over gRPC. A comment above each test
// names the row of the list of upstream tests whose claim it states.
#pragma once

#include <gtest/gtest.h>

#include <weft/distributed/rpc.h>

#include "support/cluster.h"

namespace weft::test {

class Conformance : public ::testing::TestWithParam<Over> {
 protected:
  ClusterOptions options(int size = 4) const { return {.over = GetParam(), .size = size}; }
  bool simulated() const { return GetParam() == Over::kSim; }
};

#define WEFT_CONFORMANCE(Suite)                                                                          \
  class Suite : public ::weft::test::Conformance {};                                                     \
  INSTANTIATE_TEST_SUITE_P(Over, Suite, ::testing::Values(::weft::test::Over::kSim, ::weft::test::Over::kGrpc), \
                           [](const auto& info) { return ::weft::test::to_string(info.param); })

}  // namespace weft::test
