// SIGUSR1 (wait_signal.h). The handler adds to an eventfd, which a thread reads. The descriptor is never
// closed: a handler on another thread may still write to it.
#include "common/wait_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>

#include <weft/distributed/rpc/trace.h>
#include <weft/kernels/error.h>

namespace examples {
namespace {

constexpr uint64_t kAsked = 1, kEnd = uint64_t{1} << 32;

int descriptor() {
  static const int fd = eventfd(0, EFD_CLOEXEC);
  return fd;
}

void tell(uint64_t word) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(descriptor(), &word, sizeof word);
  errno = error;
}

void on_signal(int) { tell(kAsked); }

void print_until_the_end() {
  for (uint64_t sum = 0; sum < kEnd;) {
    if (read(descriptor(), &sum, sizeof sum) != sizeof sum) {
      if (errno == EINTR) continue;
      return;
    }
    if (sum % kEnd == 0) continue;
    try {
      std::fputs(weft::rpc::wait_graph().c_str(), stderr);
    } catch (const weft::Error& e) {  // the group forms, or has ended
      std::fprintf(stderr, "%s\n", e.what());
    }
  }
}

}  // namespace

WaitSignal::WaitSignal() {
  struct sigaction action {};
  if (descriptor() < 0 || sigaction(SIGUSR1, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  printer_ = std::thread(print_until_the_end);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

WaitSignal::~WaitSignal() {
  if (!printer_.joinable()) return;
  std::signal(SIGUSR1, SIG_DFL);
  tell(kEnd);
  printer_.join();
}

}  // namespace examples
