// The fault records of kernels. Each host thread has one record per device. So an error is thrown on the
// thread that issued the kernel, or on a thread that waits for an event recorded by it. If a thread exits
// with an unreported fault, the next thread that synchronizes throws it.
#pragma once

#include <mutex>
#include <vector>

#include <weft/kernels/cuda/host/fault.h>

namespace weft::cuda {

/// The records of one device. Thread safety: every call may come from any thread.
class FaultSlots {
 public:
  /// The records of a device; never destroyed.
  static FaultSlots& of(int device);
  /// The calling thread's record, in pinned memory, created at the first call. Throws: OutOfMemoryError.
  Fault* of_thread();
  /// Throws the fault in the record, or in the record of an ended thread, and clears it. Throws: IndexError,
  /// ValueError.
  void raise(Fault* of);
  /// Called when the thread of this record ends.
  void leave(Fault* slot) noexcept;

 private:
  FaultSlots() = default;
  std::mutex mutex_;
  std::vector<Fault*> left_;
};

}  // namespace weft::cuda
