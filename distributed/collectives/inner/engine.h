// The seam below a ProcessGroup: an engine moves the data of one collective at a time. Gloo is the one for
// the CPU, NCCL the one for a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

/// Contiguous memory of the engine's device, whose size is the same in all processes. Gloo's calls return
/// with the result. Those of NCCL return when the work is queued on its stream. One thread at a time makes
/// them. After an error only close() and the destructor may be called. Throws: Timeout, ConnectionLost; NCCL
/// also CudaError.
class Engine {
 public:
  virtual ~Engine() = default;
  /// All ops but kAvg; no bool.
  virtual void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, size_t bytes, int src) = 0;
  /// `all` has `size` times the bytes, and rank r's at the r-th place.
  virtual void all_gather(const void* mine, size_t bytes, void* all) = 0;
  /// Gloo: later calls end at this time with a Timeout, or earlier.
  virtual void end_calls_at(rpc::TimePoint) {}
  /// Throws an error that no call has reported so far, such as a connection that has ended. Does not block.
  /// NCCL: on any thread.
  virtual void check() = 0;
  /// Ends the connections, which the other processes of Gloo notice at once. NCCL: on any thread, and the
  /// calls under way throw.
  virtual void close() noexcept = 0;
};

/// Connects to all others. Throws: RpcError for a host that cannot be used; as Meeting. Null without Gloo.
std::unique_ptr<Engine> make_gloo(const EngineOptions& options, Meeting& meeting);

/// The processes inform each other whether each has its device and NCCL. Returns the name of a communicator
/// that they all can form. `names`: of the processes; `meeting` is null in a group of one. Throws:
/// DeviceError in all processes where one cannot take part; as Meeting.
std::string meet_for_nccl(const EngineOptions& options, Device device, const std::vector<std::string>& names,
                          Meeting* meeting);
/// Connects the calling thread's device with the other processes' devices, for work on its `stream`.
/// Throws: Timeout, ConnectionLost, CudaError.
std::unique_ptr<Engine> make_nccl(const EngineOptions& options, void* stream, const std::string& id);

}  // namespace weft::dist::inner
