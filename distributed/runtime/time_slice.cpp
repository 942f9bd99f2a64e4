// The time slice of a thread, by the system call sched_setattr. The C library of Debian 12 has no function
// for it. Kernels before 6.12 ignore the slice of a usual thread.
#include <weft/distributed/runtime/inner/time_slice.h>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace weft::rpc::inner {
namespace {

/// The first version of the kernel's struct sched_attr, whose own header does not go with <sched.h>.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // nanoseconds; `runtime` is the slice of a usual thread
};

constexpr uint64_t kResetOnFork = 1;

}  // namespace

void ask_for_time_slice(Duration slice) {
  if (slice <= Duration::zero()) return;
  SchedulingAttributes attributes{};
  attributes.size = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = static_cast<uint64_t>(slice.count());
  // Else the slice would pass to the threads that compute. The flag also raises a negative nice value to 0.
  if (attributes.nice >= 0) attributes.flags |= kResetOnFork;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace weft::rpc::inner
