// Runs the example programs as a user does, as processes of their own, and makes the files that they read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/json.h"

namespace programs {

/// Flags of the example `rnn` for a model that trains in a moment.
inline constexpr char kTiny[] =
    " --emsize 8 --nhid 8 --batch-size 4 --bptt 7 --dropout 0 --epochs 1 --threads 1 ";

struct Output {
  int code = -1;
  std::string text;
  std::string last() const {
    const size_t end = text.find_last_not_of('\n');
    if (end == std::string::npos) return "";
    const size_t start = text.rfind('\n', end);
    return text.substr(start == std::string::npos ? 0 : start + 1,
                       end - (start == std::string::npos ? 0 : start + 1) + 1);
  }
  /// Lines that begin with `prefix`.
  std::string lines(const std::string& prefix) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      if (text.compare(at, prefix.size(), prefix) == 0) out += text.substr(at, end - at) + "\n";
      at = end + 1;
    }
    return out;
  }
  bool has(const std::string& part) const { return text.find(part) != std::string::npos; }
};

using Variables = std::map<std::string, std::string>;

/// A program beside the test, or one named by its whole path. Spaces part words, both its streams are read,
/// and `variables` are added to its environment. The new process calls `before` first, and exits with 126 if
/// that is false. The program is killed after 240 s, with a line on each process of its group, and when the
/// test lets it go.
class Process {
 public:
  explicit Process(const std::string& command, const Variables& variables = {}, bool (*before)() = nullptr) {
    std::vector<std::string> words;
    std::istringstream parts(command.front() == '/' ? command : WEFT_PROGRAM_DIR "/" + command);
    for (std::string word; parts >> word;) words.push_back(word);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    if (pipe(ends) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
      if (before && !before()) _exit(126);
      dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]), close(ends[1]);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  Process(const Process&) = delete;
  ~Process() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    if (out_ >= 0) close(out_);
  }
  /// Reads until that text has come; false: the program ended without it.
  bool says(const std::string& text) {
    while (!output_.has(text))
      if (!read_more()) return false;
    return true;
  }
  /// Reads once more; false: the program has ended.
  bool says_more() { return read_more(); }
  pid_t pid() const { return child_; }
  void interrupt() const { kill(child_, SIGINT); }
  void end() const { kill(child_, SIGKILL); }
  void terminate() const { kill(child_, SIGTERM); }
  void ask_who_waits() const { kill(child_, SIGUSR1); }
  /// The process that the program started as that rank of its group; 0: there is none.
  pid_t worker(int rank) const {
    for (const auto& [pid, variables] : workers())
      if (variables.find('\0' + ("RANK=" + std::to_string(rank)) + '\0') != std::string::npos) return pid;
    return 0;
  }
  const std::string& text() const { return output_.text; }
  /// Waits for the end.
  Output finish() {
    while (read_more()) {
    }
    int status = 0;
    if (child_ > 0) waitpid(child_, &status, 0);
    child_ = -1;
    output_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    return output_;
  }

 private:
  /// The processes that the program started, with their environments, each variable between zeros.
  std::map<pid_t, std::string> workers() const {
    std::map<pid_t, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::string stat, variables;
      std::getline(std::ifstream(entry.path() / "stat"), stat);
      std::getline(std::ifstream(entry.path() / "environ"), variables, '\n');
      const size_t name_end = stat.rfind(')');
      // ") S 1"
      if (name_end == std::string::npos || std::atoi(stat.c_str() + name_end + 4) != child_) continue;
      all[std::atoi(stat.c_str())] = '\0' + variables;
    }
    return all;
  }
  /// The running processes, and the system call at which the first thread of each waits.
  std::string running() const {
    std::string text = "pid " + std::to_string(child_);
    const auto waits_in = [](pid_t pid) {
      std::string place;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/wchan"), place);
      return " in " + (place.empty() || place == "0" ? "no wait" : place);
    };
    text += waits_in(child_);
    for (const auto& [pid, variables] : workers()) {
      const size_t rank = variables.find(std::string(1, '\0') + "RANK=");
      text += "; pid " + std::to_string(pid) +
              (rank == std::string::npos ? "" : " " + std::string(variables.c_str() + rank + 1)) +
              waits_in(pid);
    }
    return text;
  }
  bool read_more() {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now())
            .count();
    pollfd ready{out_, POLLIN, 0};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) {
      output_.text += "\n(killed: it took too long; " + running() + ")\n";
      if (child_ > 0) kill(child_, SIGKILL);
      return false;
    }
    std::array<char, 4096> buffer;
    const ssize_t n = read(out_, buffer.data(), buffer.size());
    if (n > 0) output_.text.append(buffer.data(), static_cast<size_t>(n));
    return n > 0;
  }
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + std::chrono::seconds(240);
  pid_t child_ = -1;
  int out_ = -1;
  Output output_;
};

inline Output run(const std::string& command, const Variables& variables = {}, bool (*before)() = nullptr) {
  return Process(command, variables, before).finish();
}

/// A port of the loopback that nobody else gets while the object lives; one program may listen on it.
class Port {
 public:
  explicit Port(int number = 0) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(number));
    socklen_t size = sizeof address;
    if (bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
      number_ = ntohs(address.sin_port);
  }
  Port(const Port&) = delete;
  ~Port() { close(socket_); }
  int number() const { return number_; }
  /// From now on no program may.
  void occupy() const { listen(socket_, 1); }
  /// The variables that a launcher gives the worker of that rank.
  Variables worker(int rank, int world_size, const std::string& master = "127.0.0.1") const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size)},
            {"MASTER_ADDR", master},
            {"MASTER_PORT", std::to_string(number_)}};
  }

 private:
  int socket_, number_ = 0;
};

/// An IPv4 address of this machine beyond loopback; empty: it has none.
inline std::string outer_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* one = all; one && found.empty(); one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_LOOPBACK) ||
        !(one->ifa_flags & IFF_UP))
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    if (inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
                  text.size()))
      found = text.data();
  }
  freeifaddrs(all);
  return found;
}

/// A folder of its own below the tests' temporary one, gone with the object.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("weft_" + name + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
inline std::string contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

/// A made-up text of three files that any seedless run repeats; lines of nine words.
class Corpus {
 public:
  explicit Corpus(unsigned words = 37, int train_lines = 120, int eval_lines = 30) : folder_("corpus") {
    unsigned state = 1;
    for (const char* name : {"train", "valid", "test"}) {
      std::ofstream file(folder_.file(std::string(name) + ".txt"));
      for (int line = 0; line < (std::string(name) == "train" ? train_lines : eval_lines); ++line) {
        for (int word = 0; word < 9; ++word) {
          state = state * 1664525u + 1013904223u;
          file << 'w' << (words < 256 ? state >> 24 : state >> 8) % words << ' ';
        }
        file << '\n';
      }
    }
  }
  std::string flag() const { return "--data " + folder_.path(); }
  std::string file(const std::string& name) const { return folder_.file(name); }

 private:
  Folder folder_;
};

using weft::test::Json;

}  // namespace programs
