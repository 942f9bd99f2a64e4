// The identity of a process, and the watch of processes by pidfd and epoll. The identity has the boot, the
// namespace of process numbers, the number and the start time. One thread waits, and stop() joins it.
#include <weft/distributed/launch/inner/process_watch.h>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <weft/kernels/str.h>

namespace weft::rpc::inner {

namespace {

/// The start time of a process in ticks since the boot: field 22 of its stat line. Empty when it has ended.
std::string start_time(int pid) {
  std::ifstream in(str("/proc/", pid, "/stat"));
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');  // the name may hold spaces and parentheses
  if (name_end == std::string::npos) return {};
  size_t at = name_end + 1;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at == std::string::npos) return {};
  return line.substr(at + 1, line.find(' ', at + 1) - at - 1);
}

/// The host's boot and the namespace of process numbers.
std::string number_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> link{};
  const ssize_t length = readlink("/proc/self/ns/pid", link.data(), link.size());
  if (boot.empty() || length <= 0) return {};
  return str(boot, "/", std::string(link.data(), static_cast<size_t>(length)));
}

int open_process(int pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

}  // namespace

std::string process_identity() {
  const std::string space = number_space(), start = start_time(getpid());
  return space.empty() || start.empty() ? std::string() : str(space, "/", getpid(), "/", start);
}

bool ProcessWatch::watch(const std::string& identity, std::function<void()> ended) {
  const std::string space = number_space() + "/";
  if (space.size() == 1 || identity.compare(0, space.size(), space) != 0) return false;
  const size_t slash = identity.find('/', space.size());
  if (slash == std::string::npos) return false;
  int pid = 0;
  const char* const end = identity.data() + slash;
  if (std::from_chars(identity.data() + space.size(), end, pid).ptr != end || pid <= 0) return false;
  const int process = open_process(pid);
  if (process < 0 && errno != ESRCH) return false;
  // Checked after the pidfd is open: from here on the number cannot mean another process.
  if (process < 0 || start_time(pid) != identity.substr(slash + 1)) {
    if (process >= 0) close(process);
    ended();
    return true;
  }
  MutexLock lock(mutex_);
  if (!stopped_ && poll_ < 0) {
    poll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = wake_}};
    if (poll_ >= 0 && wake_ >= 0) epoll_ctl(poll_, EPOLL_CTL_ADD, wake_, &event);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {  // no thread: the lease decides alone
      stopped_ = true;
    }
  }
  epoll_event event{.events = EPOLLIN, .data = {.fd = process}};
  if (stopped_ || epoll_ctl(poll_, EPOLL_CTL_ADD, process, &event) != 0) {
    close(process);
    return false;
  }
  watched_.emplace(process, std::move(ended));
  return true;
}

void ProcessWatch::run() {
  int poll = -1;
  {
    MutexLock lock(mutex_);
    poll = poll_;
  }
  std::array<epoll_event, 16> events{};
  while (true) {
    const int count = epoll_wait(poll, events.data(), static_cast<int>(events.size()), -1);
    std::vector<std::function<void()>> ended;
    {
      MutexLock lock(mutex_);
      if (stopped_ || (count < 0 && errno != EINTR)) return;
      for (int i = 0; i < count; ++i) {
        const auto found = watched_.find(events[static_cast<size_t>(i)].data.fd);
        if (found == watched_.end()) continue;
        ended.push_back(std::move(found->second));
        close(found->first);  // leaves the epoll set too
        watched_.erase(found);
      }
    }
    for (const auto& f : ended) f();
  }
}

void ProcessWatch::stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    thread.swap(thread_);
    const uint64_t one = 1;
    if (wake_ >= 0 && write(wake_, &one, sizeof one) < 0) return;  // cannot fail for an eventfd
  }
  if (thread.joinable()) thread.join();
  MutexLock lock(mutex_);
  for (const auto& [process, ended] : watched_) close(process);
  watched_.clear();
  for (int* fd : {&poll_, &wake_})
    if (*fd >= 0) close(std::exchange(*fd, -1));
}

}  // namespace weft::rpc::inner
