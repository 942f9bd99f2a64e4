// The environment for a child process that runs the same test program.
#pragma once

#include <map>
#include <string>

namespace weft::test {

/// The variables `more`, with test sharding switched off: the parent's shard may not have the child's case.
inline std::map<std::string, std::string> child_environment(std::map<std::string, std::string> more) {
  more["GTEST_TOTAL_SHARDS"] = "1";
  more["GTEST_SHARD_INDEX"] = "0";
  return more;
}

}  // namespace weft::test
