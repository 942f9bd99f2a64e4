// The fixture of the conformance tests: four workers, each test over the simulated network and over gRPC.
// A comment above a test names the tests of PyTorch whose claim it states. The helpers are for all of them:
// the text of an error of exactly one type, and waiting for a state that must come.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <typeinfo>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

class Conformance : public ::testing::TestWithParam<Over> {
 protected:
  ClusterOptions options(int size = 4) const { return {.over = GetParam(), .size = size}; }
  bool simulated() const { return GetParam() == Over::kSim; }
};

/// The text of the exception of f, which must be an E and nothing derived from it.
template <class E> std::string text_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    EXPECT_TRUE(typeid(e) == typeid(E)) << typeid(e).name() << ": " << e.what();
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another type: " << typeid(e).name() << ": " << e.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// A counter of debug_info, summed over the workers that are left.
inline int64_t counted(Cluster& c, const std::string& key, int but = -1) {
  int64_t sum = 0;
  for (int rank = 0; rank < c.size(); ++rank)
    if (rank != but) sum += c.agent(rank)->debug_info().at(key);
  return sum;
}

#define WEFT_CONFORMANCE(Suite)                                                                    \
  class Suite : public ::weft::test::Conformance {};                                               \
  INSTANTIATE_TEST_SUITE_P(Over, Suite,                                                            \
                           ::testing::Values(::weft::test::Over::kSim, ::weft::test::Over::kGrpc), \
                           [](const auto& info) { return ::weft::test::to_string(info.param); })

}  // namespace weft::test
