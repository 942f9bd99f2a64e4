// The collectives of a group on its device. Each queues its work on a stream of the group's own, behind the
// work of the calling thread's current stream. A thread watches the work that is queued. It finds errors of
// NCCL, processes that have ended, and calls that take longer than the group's timeout; then the group fails.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/collectives/inner/engine.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>

namespace weft::dist::inner {

/// Thread safety: every member may be called from any thread. Calls of several threads take turns.
class DeviceCalls {
 public:
  /// Connects the devices, on the thread of the group, which outlives this object. Throws: as make_nccl.
  DeviceCalls(ProcessGroup::Impl& group, const EngineOptions& options, Device device, const std::string& id);
  ~DeviceCalls();
  DeviceCalls(const DeviceCalls&) = delete;

  Device device() const { return device_; }
  /// Throws: CudaError while the calling thread records a graph; the error of a group that has failed.
  void check_ready(const std::string& call) const;
  /// Queues the work of `move_data`, which runs with the group's stream as the current one. The future is
  /// done when it is queued, and the streams of its waiters wait for it. `tensors`: those that the work uses.
  rpc::Future<void> issue(const std::string& what, const std::vector<Tensor>& tensors,
                          const std::function<void(Engine&)>& move_data);
  /// Blocks until the calls so far are done, and the work on the calling thread's current stream. The calls
  /// have deadlines, the thread's own work has none. Throws: as check_ready.
  void wait(const std::string& call);
  /// The answer to ProcessGroup::Impl::look_for_lost: the loss of a process, or null. The work queued may
  /// still end well, since a process may leave when its own part is done. So it has a moment for that.
  void suspect(const std::exception_ptr& loss);
  /// Ends the connections, and with them the work that is queued. Later calls throw `why`.
  void fail(const std::exception_ptr& why);
  /// Waits for the calls so far, and ends the watching thread. No call may come after it. False: they have
  /// failed.
  bool finish() noexcept;

 private:
  struct Call {
    uint64_t number;
    std::string what;
    cuda::Event front;  ///< behind the work of the calling thread that the call waits for
  };
  void throw_if_failed() const;
  void wait_for_calls();
  void watch();
  void look();
  void follow_progress();
  void follow_first(rpc::TimePoint now);

  ProcessGroup::Impl& group_;
  const EngineOptions options_;
  const Device device_;
  const cuda::Stream stream_;
  // Of the watching thread, without work of their own. They follow stream_, and the front of the first call.
  const cuda::Stream marker_, front_;
  const cuda::WaitingKernels waiting_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> busy_{false};  ///< a thread is at work in issue()
  // Watching thread.
  uint64_t marked_ = 0;                  ///< the call behind which marker_ waits; 0: none
  uint64_t first_ = 0;                   ///< the first of calls_ at the last look
  rpc::TimePoint first_at_{};            ///< when it was first found there
  std::optional<rpc::TimePoint> begun_;  ///< when this device was found to have come to it

  mutable rpc::Mutex mutex_;
  std::deque<Call> calls_ WEFT_GUARDED_BY(mutex_);  ///< not known to be done
  uint64_t issued_ WEFT_GUARDED_BY(mutex_) = 0;     ///< calls whose work is queued
  std::exception_ptr failed_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr suspicion_ WEFT_GUARDED_BY(mutex_);
  uint64_t suspected_ WEFT_GUARDED_BY(mutex_) = 0;  ///< the first call of calls_ then
  rpc::TimePoint suspected_at_ WEFT_GUARDED_BY(mutex_) = {};
  bool asking_ WEFT_GUARDED_BY(mutex_) = false;  ///< the thread of the group is to look for losses
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  rpc::Event wake_;
  std::unique_ptr<rpc::Service> service_;
};

}  // namespace weft::dist::inner
