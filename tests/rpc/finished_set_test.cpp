// The callee's memory of finished requests: it only grows, for any order of its news.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include <weft/distributed/rpc/inner/peers.h>

namespace {

using namespace weft::rpc;

TEST(FinishedSet, is_the_union_of_everything_it_was_told) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    FinishedSet set;
    std::set<uint64_t> expected;
    for (int step = 0; step < 30; ++step) {
      const uint64_t upto = 1 + random() % 60;
      if (random() % 2) {
        set.add_floor(upto);
        for (uint64_t s = 1; s < upto; ++s) expected.insert(s);
      } else {
        std::vector<uint64_t> open;
        for (uint64_t s = 1; s < upto; ++s)
          if (random() % 3 == 0) open.push_back(s);
        set.add(upto, open);
        for (uint64_t s = 1; s < upto; ++s)
          if (!std::binary_search(open.begin(), open.end(), s)) expected.insert(s);
      }
      for (uint64_t s = 1; s < 62; ++s)
        ASSERT_EQ(set.contains(s), expected.count(s) > 0) << "seed " << seed << " number " << s;
    }
  }
}

}  // namespace
