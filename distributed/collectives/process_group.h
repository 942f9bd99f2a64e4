// Collective operations on tensors: all processes of a group make the same call, and each gets the same
// result. Names are those of torch.distributed. The engine is Gloo for tensors on the CPU. With the option
// `device`, NCCL handles tensors on that device.
//
//   const auto group = dist::new_group();          // in each worker of an RPC group
//   group->all_reduce(x);                          // x becomes the sum over the workers, with the same bits
//   group->broadcast(x, 0);                        // x becomes that of rank 0
//   rpc::Future<void> done = group->all_reduce_async(y);   // runs beside this thread; leave y alone until
//   done.wait();                                           // the wait has returned
//
// All processes make the same calls in the same order. Before a call moves data, they compare its kind, dtype
// and sizes. A call that differs throws the same error in all of them, nothing is changed, and the group goes
// on. After a Timeout or PeerLost the processes no longer agree about the calls made, so the group has
// failed. Its connections are closed, and each later call throws that error again. Make a new group then.
//
// A call with a tensor on the device only queues its work. It runs behind the work of the calling thread's
// current stream, and that stream's later work waits for it; no thread waits for the device. The comparison
// runs at the same time. So its errors are thrown by the next call or barrier(), and each of them fails the
// group.
//
// Gloo's connections are TCP without encryption, and each accepts the first process that connects. So they
// stay on the loopback interface unless ProcessGroupOptions::insecure allows another address. NCCL's
// connections stay there too if those of the process's first group do (docs/data_parallel.md).
// Thread safety: every member may be called from any thread, but the order of calls counts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/wire/future.h>
#include <weft/tensor/tensor.h>

namespace weft::rpc {
class Store;
}

namespace weft::dist {

/// How all_reduce joins the tensors, element by element.
enum class ReduceOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax };
WEFT_API const char* to_string(ReduceOp op);

/// Options of new_group.
struct ProcessGroupOptions {
  /// Distinguishes groups that form at the same time; part of error texts.
  std::string name = "default";
  rpc::Duration init_timeout = std::chrono::seconds(60);  ///< limit of new_group
  /// Limit of each wait for another process in a collective. The end of a process is noticed sooner.
  rpc::Duration timeout = std::chrono::minutes(10);
  std::string host = "127.0.0.1";  ///< address at which the other processes reach this one
  bool insecure = false;           ///< allows another host than the loopback interface
  /// This process's CUDA device, for tensors there. Either all processes of the group have one or none has.
  /// NCCL takes one process per device of a machine.
  Device device = kCpu;
};

/// A group of processes for collective operations. The destructor ends the connections. It waits for the
/// collective under way, and fails the queued collectives with an RpcError. In a group with a device it waits
/// for all collectives. Then it waits for the destructors of the other processes: at most 10 s in all, and
/// `timeout` per wait. So no process leaves while another process's device still needs it. A process that
/// makes a call instead gets a PeerLost.
class WEFT_API ProcessGroup {
 public:
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  /// ProcessGroupOptions::device of this process; kCpu in a group for the CPU alone.
  Device device() const;
  const std::string& name() const;

  // Each blocks until the result is there. Throws, in all processes and without a change: ValueError for
  // different calls, DTypeError and ShapeError for tensors that differ. Timeout; PeerLost. At once, in this
  // process: ValueError for an undefined or read-only tensor or a rank out of range. DeviceError for a tensor
  // neither on the CPU nor on the group's device. CudaError for a tensor on the device while the thread
  // records a graph. CudaError also for a failure of NCCL. Each function lists its further errors.

  /// Replaces the tensor in each process by the sum, average, ... of all. Each process gets the same bits.
  /// Half types are added in their own precision; NaN stays NaN, but NCCL's kMin and kMax may lose it.
  /// Throws: DTypeError for bool, and for kAvg of integers.
  void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  /// The same without blocking the calling thread, in the order of the calls. Do not use the tensor until the
  /// future is done; the future has the errors of the collective. On the device, do not use it until the
  /// future's wait() has returned, which makes the current stream wait for the work.
  rpc::Future<void> all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  /// Replaces the tensor in each process by the tensor of rank `src`.
  void broadcast(const Tensor& tensor, int src = 0);
  /// The tensors of all processes, by rank.
  std::vector<Tensor> all_gather(const Tensor& tensor);
  /// Returns when all processes have called it and their earlier work on the device is done. That is the work
  /// of the group and of the calling thread's current stream. In a group with a device it throws CudaError
  /// while the thread records a graph.
  void barrier();

  /// Ends the connections after the calls made before it. Later calls throw an RpcError with this text here,
  /// and PeerLost in the other processes, which notice at once. For a process that cannot make its next
  /// calls. On the device, calls whose work is queued and not done are lost in all processes. Their tensors
  /// hold no result. To keep it, wait for the device first (cuda::synchronize).
  void abort(const std::string& why);

  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// True if weft was built with Gloo; without it a group has one process.
WEFT_API bool is_gloo_available();
/// True if NCCL 2.14 or newer is found: libnccl.so.2, or the file that WEFT_NCCL_LIBRARY names.
WEFT_API bool is_nccl_available();

/// Makes a group of workers of this RPC group (names; empty: all), ranked by their ids. Each of them makes
/// the call. Blocks at most about options.init_timeout. Throws: ValueError for unknown or repeated names, for
/// names without this worker, and for groups of different names. ValueError for a host beyond loopback
/// without `insecure`, and for workers of several machines at loopback addresses. RpcError without an agent,
/// without Gloo, and for a host that is unknown or cannot be used. DeviceError in all processes where one
/// lacks its device or NCCL; CudaError of NCCL. Timeout; PeerLost.
WEFT_API std::shared_ptr<ProcessGroup> new_group(std::vector<std::string> workers = {},
                                                 const ProcessGroupOptions& options = {});

/// The same for any processes that share a store (launch/store.h). A call that failed may be repeated.
/// Throws: ValueError also for a rank out of range and a world size unlike rank 0's; the errors of the store.
WEFT_API std::shared_ptr<ProcessGroup> new_group(std::shared_ptr<rpc::Store> store, int rank, int world_size,
                                                 const ProcessGroupOptions& options = {});

}  // namespace weft::dist
