// The processes of a group in these tests, and the check for an engine.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include <weft/distributed.h>

#include "support/errors.h"
#include "support/process.h"

#define NEEDS_GLOO \
  if (!dist::is_gloo_available()) GTEST_SKIP() << "weft was built without Gloo (Debian: libgloo-dev)"

namespace weft::test {

using Group = std::shared_ptr<dist::ProcessGroup>;

/// Joins an RPC group as "worker<rank>", and a group of all its workers.
inline Group join(int rank, const dist::ProcessGroupOptions& options = {}) {
  rpc::init_rpc(str("worker", rank));
  return dist::new_group({}, options);
}

inline bool same_everywhere(const Group& group, const Tensor& x) {
  for (const Tensor& other : group->all_gather(x))
    if (!other.equal(x)) return false;
  return true;
}

}  // namespace weft::test
