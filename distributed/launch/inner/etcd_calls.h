// Calls of etcd's members over gRPC, one message each way, and its stream of watches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/launch/store_etcd.h>

namespace weft::rpc::inner {

/// A status other than OK.
struct EtcdStatus {
  int code = 0;  ///< of gRPC; 0: OK
  std::string text{};
  /// No answer of a member. A server that notices the end of the call's time itself reports it with code 2.
  bool again() const {
    return code == 14 || code == 4 || code == 1 ||
           (code == 2 && text.find("context deadline exceeded") != std::string::npos);
  }
};

/// A stream of watches; `changed` is set at each event and at its end.
class EtcdWatch {
 public:
  virtual ~EtcdWatch() = default;
};

class EtcdCalls {
 public:
  virtual ~EtcdCalls() = default;
  /// One call of one member, which gets a limited time. The reply is in `reply` when the code is 0.
  virtual EtcdStatus call(const char* method, const std::string& request, std::string& reply,
                          TimePoint deadline) = 0;
  /// Sends the requests on a new stream of watches.
  virtual std::unique_ptr<EtcdWatch> watch(std::vector<std::string> requests,
                                           std::shared_ptr<Event> changed) = 0;
};

/// Throws: as make_etcd_store.
std::unique_ptr<EtcdCalls> make_etcd_calls(Runtime& runtime, const std::string& addresses,
                                           const EtcdOptions& options);

}  // namespace weft::rpc::inner
