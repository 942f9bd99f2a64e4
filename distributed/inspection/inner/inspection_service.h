// The methods of inspection.proto over the functions of rpc/. It needs no gRPC header. Internal to the
// inspection.
#pragma once

#include <memory>

#include <weft/distributed/runtime/runtime.h>

namespace grpc {
class Service;
}

namespace weft::rpc::inner {

/// Limits of the calls.
struct CallLimits {
  int calls = 8;    ///< at a time
  Duration time{};  ///< of one call
};

/// Answers the calls, with the agent of the scope in which it is made, else with the default agent at the
/// call. Thread safety: any thread.
class InspectionService {
 public:
  static constexpr char kName[] = "weft.inspection.v1.Inspection";

  explicit InspectionService(CallLimits limits);
  ~InspectionService();
  InspectionService(const InspectionService&) = delete;

  /// For a server, which it must outlive.
  grpc::Service& service();

 private:
  class Calls;
  std::unique_ptr<Calls> calls_;
};

}  // namespace weft::rpc::inner
