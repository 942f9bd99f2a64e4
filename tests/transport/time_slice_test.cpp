// The time slices of the threaded runtime's threads, read back from the kernel.
#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// Nanoseconds; 0: the kernel has no slices of single threads.
uint64_t slice_of_this_thread() {
  std::array<uint64_t, 6> attributes{};  // of struct sched_attr; the fourth is the runtime
  const bool read = syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) == 0;
  return read ? attributes[3] : 0;
}

/// The slice of a thread of the pool and that of a thread started by it.
std::array<uint64_t, 2> slices_in_pool(Runtime& rt) {
  std::array<uint64_t, 2> seen{};
  Event done(rt);
  rt.post([&] {
    seen[0] = slice_of_this_thread();
    std::thread([&] { seen[1] = slice_of_this_thread(); }).join();
    done.set();
  });
  EXPECT_TRUE(done.wait_until(rt.now() + 60s));
  return seen;
}

TEST(TimeSlice, threads_of_the_runtime_have_the_short_one_and_those_that_they_start_the_systems) {
  const uint64_t own = slice_of_this_thread();
  if (own == 0) GTEST_SKIP() << "this kernel has no slices of single threads";
  const auto rt = make_threaded_runtime({.time_slice = 300us});
  EXPECT_EQ(slices_in_pool(*rt), (std::array<uint64_t, 2>{300'000u, own}));
  uint64_t in_service = 0, in_timer = 0;
  rt->start_service("a reader", [&] { in_service = slice_of_this_thread(); })->join();
  EXPECT_EQ(in_service, 300'000u);
  Event told(*rt);
  rt->call_at(rt->now(), [&] {
    in_timer = slice_of_this_thread();
    told.set();
  });
  EXPECT_TRUE(told.wait_until(rt->now() + 60s));
  EXPECT_EQ(in_timer, 300'000u);
  EXPECT_EQ(slice_of_this_thread(), own);
}

TEST(TimeSlice, of_zero_is_the_systems) {
  const uint64_t own = slice_of_this_thread();
  const auto rt = make_threaded_runtime({.time_slice = Duration::zero()});
  EXPECT_EQ(slices_in_pool(*rt), (std::array<uint64_t, 2>{own, own}));
}

}  // namespace
}  // namespace weft::rpc
