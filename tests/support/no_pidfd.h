// A kernel without pidfds: from the call on, pidfd_open fails in this process and in those that it starts.
//
//   if (!can_refuse_pidfds()) GTEST_SKIP() << "there are no filters of system calls";
//   refuse_pidfds();   // in a child of the test: it cannot be undone
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace weft::test {

/// The kernel has filters of system calls.
inline bool can_refuse_pidfds() { return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0; }

/// For all threads. False: the kernel has refused the filter.
inline bool refuse_pidfds() {
  std::array<sock_filter, 4> code{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_pidfd_open},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0 &&
         syscall(SYS_pidfd_open, getpid(), 0) < 0;
}

}  // namespace weft::test
