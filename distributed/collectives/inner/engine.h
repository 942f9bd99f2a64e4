// The seam below a ProcessGroup: an engine moves the bytes of one collective at a time. It is used by one
// thread at a time.
#pragma once

#include <memory>
#include <string>

#include <weft/distributed/collectives/process_group.h>

namespace weft::dist::inner {

/// Where the engines of a group leave their addresses. Both functions block at most until the deadline of
/// the meeting. Throws: Timeout, PeerLost, the errors of the store or the calls below it.
class Meeting {
 public:
  virtual ~Meeting() = default;
  /// The processes agree to meet now; the first call.
  virtual void begin() {}
  /// Each process of the group makes the same number of calls, with keys of its own.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value of a key that a process sets.
  virtual std::string get(const std::string& key) = 0;
};

/// The connection to a process of the group has ended. ProcessGroup makes it a PeerLost.
class ConnectionLost : public RpcError {
 public:
  ConnectionLost(int lost, const std::string& what) : RpcError(what), rank(lost) {}
  int rank;  ///< of that process; negative: not known
};

struct EngineOptions {
  int rank;
  int size;
  std::string host;
  rpc::Duration init_timeout;  ///< of each connection
  rpc::Duration timeout;       ///< of each wait in a collective
  rpc::Runtime* runtime;       ///< outlives the engine
};

/// Contiguous memory of the CPU, whose size is the same in all processes. After an error only close() and
/// the destructor may be called. Throws: Timeout, ConnectionLost.
class Engine {
 public:
  virtual ~Engine() = default;
  /// All ops but kAvg; no bool.
  virtual void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, size_t bytes, int src) = 0;
  /// `all` has `size` times the bytes, and rank r's at the r-th place.
  virtual void all_gather(const void* mine, size_t bytes, void* all) = 0;
  /// Ends the connections, which the other processes notice at once.
  virtual void close() noexcept = 0;
};

/// Connects to all others. Throws: RpcError for a host that cannot be used; as Meeting. Null without Gloo.
std::unique_ptr<Engine> make_gloo(const EngineOptions& options, Meeting& meeting);

}  // namespace weft::dist::inner
