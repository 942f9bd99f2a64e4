// A thread without memory: operator new of this program fails there from a chosen allocation on. A program
// has it if one of its files includes support/replaced_new.h. The thread sanitizer keeps its own operators,
// since it tells those called inside gRPC by their caller. So tests of this are skipped there.
//
//   const NoMemory scarce(3);    // this thread has three allocations left
//   ... EXPECT_TRUE(scarce.was_short());
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace weft::test {

struct AllocationsLeft {
  bool counted = false;  ///< false: as many as are asked for
  int left = 0;
  int failures = 0;  ///< that are still to come
  int failed = 0;
  const std::atomic<bool>* none = nullptr;  ///< while it is true, all fail
};
inline constinit thread_local AllocationsLeft allocations_left{};
/// Allocations of all threads so far, and those that code of the program asked for itself.
inline std::atomic<int64_t> allocations_made{0}, own_allocations_made{0};

/// For its scope, on its thread: `after` allocations succeed, and the next `failures` ones fail.
class NoMemory {
 public:
  explicit NoMemory(int after = 0, int failures = INT_MAX) : before_(allocations_left) {
    allocations_left = {true, after, failures, 0, nullptr};
  }
  ~NoMemory() { allocations_left = before_; }
  NoMemory(const NoMemory&) = delete;
  bool was_short() const { return allocations_left.failed > 0; }

 private:
  const AllocationsLeft before_;
};

/// A test that makes allocations fail.
class ScarceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer has an operator new of its own, which does not fail";
#endif
  }
};

}  // namespace weft::test
