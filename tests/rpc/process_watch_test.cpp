// The watch of processes: which identities it takes, and that a number which belongs to another process by
// now counts as ended. RpcProcess has real deaths.
#include <gtest/gtest.h>

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <vector>

#include <weft/distributed/launch/inner/process_watch.h>

namespace {

using weft::rpc::inner::process_identity;
using weft::rpc::inner::ProcessWatch;

TEST(ProcessWatch, an_identity_of_another_host_or_none_is_not_watched) {
  int calls = 0;
  ProcessWatch watch;
  for (const std::string other : {"", "/", "another boot/pid:[1]/1/1", "/////"})
    EXPECT_FALSE(watch.watch(other, [&] { ++calls; })) << other;
  const std::string mine = process_identity();
  if (mine.empty()) GTEST_SKIP() << "there is no /proc here";
  const std::string space = mine.substr(0, mine.rfind('/', mine.rfind('/') - 1) + 1);
  for (const char* bad : {"", "1", "x/1", "-1/1", "0/1"})
    EXPECT_FALSE(watch.watch(space + bad, [&] { ++calls; })) << bad;
  watch.stop();
  EXPECT_EQ(calls, 0);
}

TEST(ProcessWatch, a_number_that_another_process_has_now_means_the_end) {
  const std::string mine = process_identity();
  if (ProcessWatch try_it; !try_it.watch(mine, [] {})) GTEST_SKIP() << "there is no pidfd or no /proc here";
  int calls = 0;
  ProcessWatch watch;
  EXPECT_TRUE(watch.watch(mine, [&] { calls += 10; }));    // lives
  EXPECT_TRUE(watch.watch(mine + "1", [&] { ++calls; }));  // began later
  const std::string space = mine.substr(0, mine.rfind('/', mine.rfind('/') - 1) + 1);
  EXPECT_TRUE(watch.watch(space + "4194303/1", [&] { ++calls; }));  // above the numbers in use
  watch.stop();
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(watch.watch(mine, [&] { ++calls; }));  // stopped
}

/// In a child: another user, whose /proc shows the user's own processes only. 2: not possible here.
int watch_a_hidden_process(const std::string& identity) {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", 0, "hidepid=2") != 0 || setgroups(0, nullptr) != 0 ||
      setgid(65534) != 0 || setuid(65534) != 0)
    return 2;
  bool ended = false;
  ProcessWatch watch;
  const bool watched = watch.watch(identity, [&] { ended = true; }) != 0;
  return watched || ended ? 1 : 0;
}

TEST(ProcessWatch, a_living_process_that_proc_hides_is_not_watched) {
  const std::string mine = process_identity();
  const pid_t child = fork();
  if (child == 0) _exit(watch_a_hidden_process(mine));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no other user or no mounts here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ProcessWatch, a_watch_that_is_ended_frees_its_file_and_is_never_called) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  int calls = 0;
  ProcessWatch watch;
  if (watch.watch(process_identity(), [&] { ++calls; }) == 0) GTEST_SKIP() << "no pidfd or no /proc here";
  const auto before = open_files();
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 5; ++i) numbers.push_back(watch.watch(process_identity(), [&] { ++calls; }));
  EXPECT_EQ(std::set<uint64_t>(numbers.begin(), numbers.end()).size(), 5u);
  EXPECT_EQ(open_files(), before + 5);
  for (const uint64_t number : numbers) watch.unwatch(number), watch.unwatch(number);
  watch.unwatch(0);
  EXPECT_EQ(open_files(), before);
  watch.stop();
  EXPECT_EQ(calls, 0);
}

}  // namespace
