// The thread pool: every index once, the same cut for any number of threads, nesting, exceptions, many
// callers at once.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "arrays.h"

#include <weft/kernels/cpu/pool.h>

namespace weft {
namespace {

using kernels::parallel_for;

struct Threads {
  explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

TEST(Pool, every_index_is_visited_once_in_pieces_of_the_grain) {
  for (int n : {1, 2, 5}) {
    const Threads threads(n);
    std::vector<std::atomic<int>> visits(10'007);
    std::atomic<int> pieces{0};
    parallel_for(10'007, 100, [&](int64_t begin, int64_t end) {
      ++pieces;
      EXPECT_EQ(begin % 100, 0);
      EXPECT_EQ(end, std::min<int64_t>(begin + 100, 10'007));
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    EXPECT_EQ(pieces, 101);
    for (const auto& v : visits) ASSERT_EQ(v, 1);
  }
}

TEST(Pool, empty_and_small_ranges_run_on_the_caller) {
  int calls = 0;
  const auto self = std::this_thread::get_id();
  parallel_for(0, 10, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls, 0);
  parallel_for(10, 10, [&](int64_t begin, int64_t end) {
    ++calls;
    EXPECT_EQ(end - begin, 10);
    EXPECT_EQ(std::this_thread::get_id(), self);
  });
  EXPECT_EQ(calls, 1);
}

TEST(Pool, nested_loops_run_inline) {
  const Threads threads(3);
  std::atomic<int64_t> sum{0};
  parallel_for(20, 1, [&](int64_t outer, int64_t) {
    const auto self = std::this_thread::get_id();
    parallel_for(50, 7, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      for (int64_t i = begin; i < end; ++i) sum += outer * i;
    });
  });
  EXPECT_EQ(sum, 190 * 1225);
}

TEST(Pool, the_first_exception_in_index_order_reaches_the_caller) {
  for (int n : {1, 4}) {
    const Threads threads(n);
    for (int round = 0; round < 50; ++round) {
      try {
        parallel_for(100, 1, [&](int64_t i, int64_t) {
          if (i >= 13) throw std::runtime_error(std::to_string(i));
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "13");
      }
    }
  }
}

TEST(Pool, many_callers_at_once_all_make_progress) {
  const Threads threads(3);
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        parallel_for(64, 3, [&](int64_t begin, int64_t end) { total += end - begin; });
    });
  for (auto& t : callers) t.join();
  EXPECT_EQ(total, 6 * 200 * 64);
}

TEST(Pool, the_thread_count_can_change_between_calls) {
  const Threads threads(1);
  for (int n : {4, 1, 7, 2, 3}) {
    set_num_threads(n);
    EXPECT_EQ(num_threads(), n);
    std::atomic<int> running{0}, most{0};
    parallel_for(200, 1, [&](int64_t, int64_t) {
      const int now = ++running;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      --running;
    });
    EXPECT_LE(most, n);
    EXPECT_GE(most, 1);
  }
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_THROW(set_num_threads(100'000), ValueError);
}

}  // namespace
}  // namespace weft
