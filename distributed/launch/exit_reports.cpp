// Both ends of a launcher's reports. A message of the socket is one identity of a process. The launcher
// checks its children by waitid, which leaves them to be waited for. It checks when the kernel has closed a
// child's socket at the child's end. It also checks periodically, since a fork of the child may hold the
// socket.
#include <weft/distributed/launch/inner/exit_reports.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/runtime/error.h>
#include <weft/kernels/str.h>

namespace weft::rpc::inner {

namespace {

constexpr size_t kMostIdentity = 512;
constexpr int kFirstNumber = 10;  // of a child's end, above the numbers that spawn gives
constexpr int kSlowLook = 100;    // milliseconds
constexpr int kClosingLook = 2;   // after the socket of a child was closed

/// That child has ended, be its status taken or not.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  const int result = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return result == 0 ? info.si_pid == pid : errno == ECHILD;
}

void write_wake(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
}

}  // namespace

ExitReports& ExitReports::of_process() {
  static auto* const reports = new ExitReports;
  return *reports;
}

void ExitReports::read_from(int socket) {
  MutexLock lock(mutex_);
  socket_ = socket;
}

void ExitReports::expect_own() {
  MutexLock lock(mutex_);
  own_ = true;
}

bool ExitReports::expected() const {
  MutexLock lock(mutex_);
  return own_ || socket_ >= 0;
}

int ExitReports::socket() const {
  MutexLock lock(mutex_);
  return socket_;
}

bool ExitReports::read() {
  std::array<char, kMostIdentity> text;
  while (true) {
    const ssize_t n = recv(socket(), text.data(), text.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 && errno == EAGAIN;
    add(std::string(text.data(), static_cast<size_t>(n)));
  }
}

void ExitReports::add(const std::string& identity) {
  MutexLock lock(mutex_);
  ended_.insert(identity);
  for (const int event : wakes_) write_wake(event);
}

bool ExitReports::has(const std::string& identity) const {
  MutexLock lock(mutex_);
  return ended_.count(identity) > 0;
}

void ExitReports::add_wake(int event) {
  MutexLock lock(mutex_);
  wakes_.insert(event);
}

void ExitReports::remove_wake(int event) {
  MutexLock lock(mutex_);
  wakes_.erase(event);
}

ExitTeller::~ExitTeller() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  if (wake_ >= 0) write_wake(wake_);
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) close(wake_);
  MutexLock lock(mutex_);
  for (const Child& c : children_) close(c.socket);
}

std::pair<int, int> ExitTeller::make_socket() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw RpcError(str("spawn: no socket: ", std::strerror(errno)));
  const int moved = fcntl(ends[1], F_DUPFD_CLOEXEC, kFirstNumber), error = errno;
  close(ends[1]);
  if (moved < 0) {
    close(ends[0]);
    throw RpcError(str("spawn: no socket: ", std::strerror(error)));
  }
  return {ends[0], moved};
}

void ExitTeller::started(pid_t pid, int socket) {
  ExitReports::of_process().expect_own();
  {
    MutexLock lock(mutex_);
    children_.push_back({pid, process_identity(pid), socket});
  }
  if (thread_.joinable()) return write_wake(wake_);
  if (wake_ < 0) wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sigset_t all, before;  // signals stay with the threads of the program
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread: pidfds and leases decide alone
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int ExitTeller::look() {
  std::vector<std::string> ended;
  int next = kSlowLook;
  MutexLock lock(mutex_);
  std::erase_if(children_, [&](const Child& c) {
    if (!has_ended(c.pid)) {
      if (c.closed) next = kClosingLook;
      return false;
    }
    if (!c.identity.empty()) ended.push_back(c.identity);
    close(c.socket);
    return true;
  });
  for (const std::string& identity : ended) {
    for (const Child& c : children_)
      send(c.socket, identity.data(), identity.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ExitReports::of_process().add(identity);
  }
  return children_.empty() ? -1 : next;
}

void ExitTeller::run() {
  while (true) {
    const int patience = look();
    std::vector<pollfd> all{{wake_, POLLIN, 0}};
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      for (const Child& c : children_)
        if (!c.closed) all.push_back({c.socket, 0, 0});
    }
    poll(all.data(), all.size(), patience);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &count, sizeof count);
    MutexLock lock(mutex_);
    for (const pollfd& p : all)
      for (Child& c : children_)
        if (c.socket == p.fd && (p.revents & (POLLHUP | POLLERR)) != 0) c.closed = true;
  }
}

}  // namespace weft::rpc::inner
