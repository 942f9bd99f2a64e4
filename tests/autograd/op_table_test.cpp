// The op table on the CPU: OpTable.<check>/<row>.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/op_table_checks.h"

namespace weft::op_table {
namespace {

const bool registered = register_checks("OpTable", kCpu, all_rows());

TEST(OpTableRows, have_names_of_their_own) {
  ASSERT_TRUE(registered);
  std::vector<std::string> names;
  for (const Row& row : all_rows()) names.push_back(row.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_GT(names.size(), 150u);
}

}  // namespace
}  // namespace weft::op_table
