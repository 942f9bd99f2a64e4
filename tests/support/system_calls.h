// Filters of system calls, such as a kernel without pidfds: from the call on, pidfd_open fails in this
// process and in those that it starts.
//
//   if (!can_refuse_pidfds()) GTEST_SKIP() << "there are no filters of system calls";
//   refuse_pidfds();   // in a child of the test: it cannot be undone
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::test {

/// The kernel has filters of system calls.
inline bool can_refuse_pidfds() { return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0; }

/// From now on these system calls fail, in all threads. False: the kernel has refused the filter.
inline bool refuse_system_calls(const std::vector<long>& numbers) {
  std::vector<sock_filter> code{{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)}};
  for (const long number : numbers) {
    code.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(number)});
    code.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM});
  }
  code.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

inline bool refuse_pidfds() {
  return refuse_system_calls({SYS_pidfd_open}) && syscall(SYS_pidfd_open, getpid(), 0) < 0;
}

}  // namespace weft::test
