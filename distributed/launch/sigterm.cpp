// SIGTERM as stop_serving. A signal handler may do almost nothing, so it adds to an eventfd. A service
// reads that and stops the agent. The descriptor is never closed: a handler on another thread may still
// write to it.
#include <weft/distributed/launch/inner/sigterm.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace weft::rpc {
namespace {

constexpr uint64_t kTerminated = 1, kNoMoreSigterm = uint64_t{1} << 32;

int sigterm_descriptor() {
  static const int fd = eventfd(0, EFD_CLOEXEC);
  return fd;
}

void tell_sigterm(uint64_t what) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(sigterm_descriptor(), &what, sizeof what);
  errno = error;
}

void on_sigterm(int) { tell_sigterm(kTerminated); }

/// Reads the current action of SIGTERM. True: it is `handler`.
bool sigterm_is(void (*handler)(int), struct sigaction& now) {
  return sigaction(SIGTERM, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == handler;
}

/// The body of the service: blocks on the eventfd, then stops the agent.
void wait_for_sigterm(Agent& agent) {
  for (uint64_t sum = 0; sum < kNoMoreSigterm;) {
    if (read(sigterm_descriptor(), &sum, sizeof sum) != sizeof sum) {
      if (errno == EINTR) continue;
      return;
    }
    if (sum % kNoMoreSigterm > 0) agent.stop_serving();
  }
}

}  // namespace

SigtermStops::SigtermStops(Agent& agent) {
  struct sigaction now {};
  if (sigterm_descriptor() < 0 || !sigterm_is(SIG_DFL, now)) return;
  waiting_ = agent.runtime()->start_service("sigterm", [&agent] { wait_for_sigterm(agent); });
  now.sa_handler = on_sigterm;
  now.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &now, nullptr);
}

SigtermStops::~SigtermStops() {
  if (!waiting_) return;
  struct sigaction now {};
  if (sigterm_is(on_sigterm, now)) {
    now.sa_handler = SIG_DFL;
    now.sa_flags = 0;
    sigaction(SIGTERM, &now, nullptr);
  }
  tell_sigterm(kNoMoreSigterm);
  waiting_->join();
}

}  // namespace weft::rpc
