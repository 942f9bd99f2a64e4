// SIGTERM during serve_until_done. Internal to launch/.
#pragma once

#include <memory>

#include <weft/distributed/rpc/agent.h>

namespace weft::rpc {

/// While it lives, SIGTERM calls agent.stop_serving() instead of ending the process. A program's own handler,
/// or its decision to ignore the signal, stays in force. At most one object at a time.
class SigtermStops {
 public:
  explicit SigtermStops(Agent& agent);
  ~SigtermStops();
  SigtermStops(const SigtermStops&) = delete;

 private:
  std::unique_ptr<Service> waiting_;  ///< null: the program handles or ignores the signal itself
};

}  // namespace weft::rpc
