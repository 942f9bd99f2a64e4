// The limits of a container: quotas and limits of both versions of control groups, of the group itself and of
// those above it.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include <weft/kernels/cpu/limits.h>

#include "support/one_cpu.h"

namespace weft::kernels {
namespace {

/// A root folder with the given files.
class Root {
 public:
  Root() {
    static int made = 0;
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() /
              ("weft_limits_" + std::to_string(getpid()) + "_" + test + std::to_string(++made));
  }
  ~Root() { std::filesystem::remove_all(folder_); }
  Root& file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
    return *this;
  }
  std::string path() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

constexpr int64_t kMiB = 1 << 20;

TEST(Limits, version_2_quotas_bind_the_groups_below) {
  Root root;
  root.file("proc/self/cgroup", "0::/outer/inner").file("sys/fs/cgroup/outer/cpu.max", "90000 100000");
  root.file("sys/fs/cgroup/outer/inner/cpu.max", "max 100000")
      .file("sys/fs/cgroup/outer/inner/memory.max", "max");
  root.file("sys/fs/cgroup/outer/memory.max", std::to_string(64 * kMiB));
  EXPECT_EQ(usable_cpus(root.path()), 1);
  EXPECT_EQ(usable_memory(root.path()), 64 * kMiB);
}

TEST(Limits, version_1_quotas_are_read) {
  Root root;
  root.file("proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box\n0::/")
      .file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(32 * kMiB));
  root.file("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000")
      .file("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000");
  EXPECT_EQ(usable_cpus(root.path()), 1);
  EXPECT_EQ(usable_memory(root.path()), 32 * kMiB);
}

TEST(Limits, a_path_of_the_host_leads_to_the_containers_own_group) {
  Root root;
  root.file("proc/self/cgroup", "0::/docker/0123")
      .file("sys/fs/cgroup/memory.max", std::to_string(16 * kMiB));
  EXPECT_EQ(usable_memory(root.path()), 16 * kMiB);
}

TEST(Limits, without_a_limit_the_machine_counts) {
  Root none, open;
  open.file("proc/self/cgroup", "4:memory:/a\n1:cpu:/a\n0::/a")
      .file("sys/fs/cgroup/a/cpu.max", "max 100000")
      .file("sys/fs/cgroup/a/memory.max", "max");
  open.file("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1")
      .file("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  open.file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_GE(usable_cpus(none.path()), 1);
  EXPECT_EQ(usable_cpus(open.path()), usable_cpus(none.path()));
  EXPECT_EQ(usable_memory(open.path()), usable_memory(none.path()));
  EXPECT_GT(usable_memory(), kMiB);
}

TEST(Limits, the_largest_cache_counts_within_bounds) {
  Root none, usual, huge;
  usual.file("sys/devices/system/cpu/cpu0/cache/index0/size", "32K")
      .file("sys/devices/system/cpu/cpu0/cache/index3/size", "16384K");
  huge.file("sys/devices/system/cpu/cpu0/cache/index2/size", "1M")
      .file("sys/devices/system/cpu/cpu0/cache/index3/size", "256M");
  EXPECT_EQ(cache_bytes(none.path()), 32 * kMiB);
  EXPECT_EQ(cache_bytes(usual.path()), 16 * kMiB);
  EXPECT_EQ(cache_bytes(huge.path()), 64 * kMiB);
}

TEST(Limits, threads_follow_the_affinity_mask) {
  const test::OneCpu one;
  ASSERT_TRUE(one.bound());
  EXPECT_EQ(usable_cpus(), 1);
}

}  // namespace
}  // namespace weft::kernels
