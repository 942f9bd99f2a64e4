// The commands of README.md: those of the block with programs run as they stand there, on one host. The
// two machines of that block are one network of their own, which has the address of the block and no other.
#include <sched.h>
#include <sys/ioctl.h>

#include <cstring>

#include "program.h"

namespace {

using namespace programs;

const char kReadmeRoot[] = WEFT_TEST_DATA_DIR "/../../";
const std::string kReadmeAddress = "192.0.2.10", kReadmePort = "29500";

/// The commands of each block of shell text, without comments.
std::vector<std::vector<std::string>> blocks_of(const std::string& page) {
  std::vector<std::vector<std::string>> blocks;
  std::istringstream lines(page);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    const std::string command = line.substr(0, line.find(" #"));
    if (line == "```sh" || line == "```console") {
      inside = true;
      blocks.emplace_back();
    } else if (line == "```") {
      inside = false;
    } else if (inside && !line.empty() && line.front() != '#') {
      blocks.back().push_back(command.substr(0, command.find_last_not_of(' ') + 1));
    }
  }
  return blocks;
}

bool runs_a_program(const std::string& command) {
  return command.find("build/release/bin/") < command.size();
}

/// Gives this process a network of its own, with loopback and the address of the page. False: not allowed.
bool enter_network_of_readme() {
  const std::string id = std::to_string(getuid());
  if (unshare(CLONE_NEWNET) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    write("/proc/self/uid_map", id + " " + id + " 1");
  }
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq up{}, address{};
  std::strcpy(up.ifr_name, "lo");
  up.ifr_flags = IFF_UP;
  std::strcpy(address.ifr_name, "lo:1");
  auto* const at = reinterpret_cast<sockaddr_in*>(&address.ifr_addr);
  at->sin_family = AF_INET;
  inet_pton(AF_INET, kReadmeAddress.c_str(), &at->sin_addr);
  const bool ready = ioctl(any, SIOCSIFFLAGS, &up) == 0 && ioctl(any, SIOCSIFADDR, &address) == 0;
  close(any);
  return ready;
}

std::string with(std::string text, const std::string& old, const std::string& fresh) {
  for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += fresh.size())
    text.replace(at, old.size(), fresh);
  return text;
}

// The default training takes minutes under a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const char kShorter[] = " --epochs 3";
#else
const char kShorter[] = "";
#endif

/// A script that runs the commands side by side in a folder, and fails if one of them does.
std::string side_by_side(const std::string& folder, const std::vector<std::string>& commands) {
  std::string script = "cd " + folder + "\n", pids;
  for (const std::string& command : commands) script += command + kShorter + " &\npids=\"$pids $!\"\n";
  return script + "code=0\nfor pid in $pids; do wait $pid || code=$?; done\nexit $code\n";
}

TEST(ProgramsReadme, the_commands_of_its_programs_run_as_they_stand) {
  const Corpus corpus;
  const Folder folder("readme");
  std::filesystem::create_directories(folder.file("build/release"));
  std::filesystem::create_directories(folder.file("build/data"));
  std::filesystem::create_directory_symlink(WEFT_PROGRAM_DIR, folder.file("build/release/bin"));
  std::filesystem::create_directory_symlink(corpus.file(""), folder.file("build/data/kjv"));
  const bool has_network = run("/bin/true", {}, enter_network_of_readme).code == 0;
  int trained = 0;
  for (const std::vector<std::string>& commands :
       blocks_of(contents(std::string(kReadmeRoot) + "README.md"))) {
    if (!std::any_of(commands.begin(), commands.end(), runs_a_program)) continue;
    std::string script = side_by_side(folder.path(), commands);
    const Port port;
    if (!has_network) {  // in a container
      script = with(with(script, kReadmeAddress, "127.0.0.1"), kReadmePort, std::to_string(port.number()));
    }
    write(folder.file("run.sh"), script);
    const Output out =
        run("/bin/sh " + folder.file("run.sh"), {}, has_network ? enter_network_of_readme : nullptr);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_TRUE(out.has("\nrnn: epochs=")) << out.text;
    ++trained;
  }
  EXPECT_EQ(trained, 1);
}

TEST(ProgramsReadme, its_other_commands_are_scripts_and_presets_of_the_project) {
  int scripts = 0, builds = 0;
  for (const std::vector<std::string>& commands : blocks_of(contents(std::string(kReadmeRoot) + "README.md")))
    for (const std::string& command : commands) {
      if (runs_a_program(command)) continue;
      if (command.rfind("scripts/", 0) == 0) {
        EXPECT_EQ(access((kReadmeRoot + command).c_str(), X_OK), 0) << command;
        ++scripts;
      } else {
        EXPECT_EQ(command,
                  "cmake --preset release && cmake --build --preset release && ctest --preset release");
        ++builds;  // as scripts/test.sh does
      }
    }
  EXPECT_EQ(scripts, 2);
  EXPECT_EQ(builds, 1);
}

}  // namespace
