// --inspect: the inspection service of a program (weft/distributed/inspection/inspection.h).
#pragma once

#include <memory>

namespace examples {

struct NetworkFlags;

/// Records a trace of the group and serves the inspection while it lives. It prints the address.
class Inspecting {
 public:
  /// Throws: ValueError in a build without the service; the errors of InspectionServer and start_trace.
  explicit Inspecting(const NetworkFlags& flags);

 private:
  std::shared_ptr<void> server_;
};

}  // namespace examples
