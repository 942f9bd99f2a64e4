// The identity of a process, and the watch of processes by pidfd and epoll. The identity has the boot, the
// namespace of process numbers, the number and the start time. One thread waits, and stop() joins it. It also
// reads the reports of a launcher, for processes without a pidfd.
#include <weft/distributed/launch/inner/process_watch.h>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <weft/distributed/launch/inner/exit_reports.h>
#include <weft/kernels/str.h>

namespace weft::rpc::inner {

namespace {

constexpr uint64_t kWake = 1, kReports = 2;  // of the epoll set, beside the numbers of watches

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

std::string process_identity() { return process_identity(getpid()); }

std::string process_identity(int pid) {
  const std::string space = number_space(), start = start_time(pid);
  return space.empty() || start.empty() ? std::string() : str(space, "/", pid, "/", start);
}

uint64_t ProcessWatch::watch(const std::string& identity, std::function<void()> ended) {
  const std::string space = number_space() + "/";
  if (space.size() == 1 || identity.compare(0, space.size(), space) != 0) return 0;
  const size_t slash = identity.find('/', space.size());
  if (slash == std::string::npos) return 0;
  int pid = 0;
  const char* const end = identity.data() + slash;
  if (std::from_chars(identity.data() + space.size(), end, pid).ptr != end || pid <= 0) return 0;
  const int process = open_process(pid);
  const bool refused = process < 0 && errno != ESRCH;
  if (refused && !ExitReports::of_process().expected()) return 0;
  // Checked after the pidfd is open: from here on the number cannot mean another process.
  const std::string began = start_time(pid);
  bool gone = process < 0 && !refused;
  if (!gone && !began.empty()) {
    gone = began != identity.substr(slash + 1);
  } else if (process >= 0) {  // it has ended, or /proc hides it, as another user's with `hidepid`
    pollfd end{process, POLLIN, 0};
    gone = ::poll(&end, 1, 0) == 1;
    if (!gone) {
      close(process);
      return 0;
    }
  } else if (!gone) {
    gone = kill(pid, 0) != 0 && errno == ESRCH;
  }
  if (gone) {
    if (process >= 0) close(process);
    ended();
    MutexLock lock(mutex_);
    return next_++;
  }
  if (refused) return watch_reports(identity, std::move(ended));
  MutexLock lock(mutex_);
  const uint64_t number = next_++;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = number}};
  if (!start() || epoll_ctl(poll_, EPOLL_CTL_ADD, process, &event) != 0) {
    close(process);
    return 0;
  }
  watched_.emplace(number, Watched{.process = process, .ended = std::move(ended)});
  return number;
}

void ProcessWatch::unwatch(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = watched_.find(number);
  if (found == watched_.end()) return;
  if (found->second.process >= 0) close(found->second.process);  // leaves the epoll set too
  watched_.erase(found);
}

/// Starts the thread. False: there is none, or it has been stopped.
bool ProcessWatch::start() {
  if (stopped_ || poll_ >= 0) return !stopped_;
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWake}};
  stopped_ = poll_ < 0 || wake_ < 0 || epoll_ctl(poll_, EPOLL_CTL_ADD, wake_, &event) != 0;
  if (stopped_) return false;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread: the lease decides alone
    stopped_ = true;
  }
  return !stopped_;
}

/// For a process without a pidfd: the launcher of this process reports its end.
uint64_t ProcessWatch::watch_reports(const std::string& identity, std::function<void()> ended) {
  ExitReports& reports = ExitReports::of_process();
  MutexLock lock(mutex_);
  if (!start()) return 0;
  if (!std::exchange(hears_reports_, true)) {
    reports.add_wake(wake_);
    const int socket = reports.socket();
    epoll_event event{.events = EPOLLIN, .data = {.u64 = kReports}};
    if (socket >= 0) epoll_ctl(poll_, EPOLL_CTL_ADD, socket, &event);
  }
  const uint64_t number = next_++, one = 1;
  watched_.emplace(number, Watched{.identity = identity, .ended = std::move(ended)});
  // the thread looks at the reports that have come before; the counter may be full
  [[maybe_unused]] const ssize_t woken = write(wake_, &one, sizeof one);
  return number;
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
      ExitReports& reports = ExitReports::of_process();
      for (int i = 0; i < count; ++i) {
        const uint64_t of = events[static_cast<size_t>(i)].data.u64;
        if (of == kWake) {
          uint64_t times = 0;
          [[maybe_unused]] const ssize_t got = read(wake_, &times, sizeof times);
        } else if (of == kReports && !reports.read()) {
          epoll_ctl(poll, EPOLL_CTL_DEL, reports.socket(), nullptr);  // the launcher has ended
        }
        const auto found = watched_.find(of);
        if (found == watched_.end()) continue;
        ended.push_back(std::move(found->second.ended));
        close(found->second.process);  // leaves the epoll set too
        watched_.erase(found);
      }
      for (auto it = watched_.begin(); hears_reports_ && it != watched_.end();) {
        if (it->second.process >= 0 || !reports.has(it->second.identity)) {
          ++it;
          continue;
        }
        ended.push_back(std::move(it->second.ended));
        it = watched_.erase(it);
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
  if (std::exchange(hears_reports_, false)) ExitReports::of_process().remove_wake(wake_);
  for (const auto& [number, one] : watched_)
    if (one.process >= 0) close(one.process);
  watched_.clear();
  for (int* fd : {&poll_, &wake_})
    if (*fd >= 0) close(std::exchange(*fd, -1));
}

}  // namespace weft::rpc::inner
