// SIGUSR1 (wait_signal.h). The handler adds to an eventfd, which a thread reads. The descriptor is never
// closed: a handler on another thread may still write to it.
#include <weft/distributed/launch/wait_signal.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>

#include <weft/distributed/rpc/trace.h>
#include <weft/kernels/error.h>

namespace weft::rpc {
namespace {

constexpr uint64_t kWaitsAsked = 1, kNoMoreWaits = uint64_t{1} << 32;

int wait_descriptor() {
  static const int fd = eventfd(0, EFD_CLOEXEC);
  return fd;
}

void tell_printer(uint64_t word) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(wait_descriptor(), &word, sizeof word);
  errno = error;
}

void on_sigusr1(int) { tell_printer(kWaitsAsked); }

void print_waits() {
  for (uint64_t sum = 0; sum < kNoMoreWaits;) {
    if (read(wait_descriptor(), &sum, sizeof sum) != sizeof sum) {
      if (errno == EINTR) continue;
      return;
    }
    if (sum % kNoMoreWaits == 0) continue;
    try {
      std::fputs(wait_graph().c_str(), stderr);
    } catch (const std::exception& e) {  // the group forms, or has ended; or no memory
      std::fprintf(stderr, "no waits to show: %s\n", e.what());
    }
  }
}

}  // namespace

WaitSignal::WaitSignal() {
  struct sigaction action {};
  if (wait_descriptor() < 0 || sigaction(SIGUSR1, nullptr, &action) != 0 || action.sa_handler != SIG_DFL)
    return;
  printer_ = std::thread(print_waits);
  action.sa_handler = on_sigusr1;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

WaitSignal::~WaitSignal() {
  if (!printer_.joinable()) return;
  std::signal(SIGUSR1, SIG_DFL);
  tell_printer(kNoMoreWaits);
  printer_.join();
}

}  // namespace weft::rpc
