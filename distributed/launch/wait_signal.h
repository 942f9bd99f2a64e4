// SIGUSR1 in a distributed program: prints the waits of all workers for each other to standard error.
//
//   int main() {
//     const rpc::WaitSignal waits;   // kill -USR1 <pid>
//     return rpc::run_group(...);
//   }
#pragma once

#include <thread>

#include <weft/kernels/macros.h>

namespace weft::rpc {

/// While it lives, SIGUSR1 prints wait_graph() of the process's agent; without one, the error. The program
/// goes on. A handler of the program, or its decision to ignore the signal, stays in force. One object at a
/// time. Thread safety: one thread at a time.
class WEFT_API WaitSignal {
 public:
  WaitSignal();
  ~WaitSignal();
  WaitSignal(const WaitSignal&) = delete;

 private:
  std::thread printer_;  ///< none: the program handles or ignores the signal itself
};

}  // namespace weft::rpc
