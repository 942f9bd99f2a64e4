// SIGUSR1 in a distributed program prints to standard error which worker waits for which.
//
//   int main() {
//     const rpc::WaitSignal waits;   // kill -USR1 <pid>
//     return rpc::run_group(...);
//   }
#pragma once

#include <thread>

#include <weft/kernels/macros.h>

namespace weft::rpc {

/// During its lifetime, SIGUSR1 prints wait_graph() of the process's agent; without an agent, the error. The
/// program goes on. A handler of the program, or its decision to ignore the signal, stays in force. A process
/// has at most one such object. Thread safety: one thread at a time.
class WEFT_API WaitSignal {
 public:
  WaitSignal();
  ~WaitSignal();
  WaitSignal(const WaitSignal&) = delete;

 private:
  std::thread printer_;  ///< not running if the program handles or ignores the signal itself
};

}  // namespace weft::rpc
