// Workers in the containers of one pod: a network in common, and process numbers, mounts and shared memory of
// their own. No container may look into the processes of another.
#include <sys/syscall.h>

#include "program.h"
#include "support/system_calls.h"

namespace {

using namespace programs;

constexpr char kContainer[] = "/usr/bin/unshare --pid --ipc --mount --fork --kill-child --mount-proc ";

bool has_containers() { return run(std::string(kContainer) + "/bin/true").code == 0; }

/// Refuses what needs the right to trace, and pidfds.
bool look_at_no_process() {
  return weft::test::refuse_system_calls(
             {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_pidfd_open}) &&
         syscall(SYS_pidfd_open, getpid(), 0) < 0;
}

/// The address sanitizer's options: the search for leaks needs the right to trace.
std::string no_search_for_leaks() {
  const char* options = std::getenv("ASAN_OPTIONS");
  return (options == nullptr ? std::string() : std::string(options) + ":") + "detect_leaks=0";
}

/// Two workers of my_add, each with one of the folders for its sockets. The end of each.
std::vector<Output> meet(const std::string& flags, const std::array<std::string, 2>& folders) {
  const Port port;
  std::vector<std::unique_ptr<Process>> workers;
  for (size_t rank = 0; rank < folders.size(); ++rank) {
    std::filesystem::create_directories(folders[rank]);
    std::filesystem::permissions(folders[rank], std::filesystem::perms::owner_all);
    const Variables variables{
        {"RANK", std::to_string(rank)},     {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},       {"MASTER_PORT", std::to_string(port.number())},
        {"XDG_RUNTIME_DIR", folders[rank]}, {"ASAN_OPTIONS", no_search_for_leaks()}};
    workers.push_back(std::make_unique<Process>(kContainer + std::string(WEFT_PROGRAM_DIR "/my_add") + flags,
                                                variables, look_at_no_process));
  }
  const Output last = workers[1]->finish();
  if (last.code != 0) workers[0]->end();  // it would wait for the other as long as a group may form
  return {workers[0]->finish(), last};
}

TEST(ProgramsContainers, of_one_pod_meet_through_a_folder_that_they_share) {
  if (!has_containers()) GTEST_SKIP() << "this process can make no containers";
  const Folder folder("pod");
  const std::string shared = folder.file("run");
  for (const Output& end : meet("", {shared, shared})) EXPECT_EQ(end.code, 0) << end.text;
}

TEST(ProgramsContainers, of_one_pod_without_a_common_folder_are_told_the_ways_out) {
  if (!has_containers()) GTEST_SKIP() << "this process can make no containers";
  const Folder folder("pod");
  const std::array<std::string, 2> own{folder.file("a"), folder.file("b")};
  const auto refused = meet("", own);
  EXPECT_NE(refused[1].code, 0);
  EXPECT_TRUE(refused[1].has("share the folder (XDG_RUNTIME_DIR)")) << refused[1].text;
  for (const Output& end : meet(" --insecure", own)) EXPECT_EQ(end.code, 0) << end.text;
}

}  // namespace
