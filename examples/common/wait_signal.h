// SIGUSR1 in a distributed program: prints the waits of all workers for each other to stderr.
#pragma once

#include <thread>

namespace examples {

/// While it lives, `kill -USR1 <pid>` prints rpc::wait_graph(). One object at a time.
class WaitSignal {
 public:
  WaitSignal();
  ~WaitSignal();
  WaitSignal(const WaitSignal&) = delete;

 private:
  std::thread printer_;
};

}  // namespace examples
