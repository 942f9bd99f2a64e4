// Where kernels report to: each host thread has a record of its own on each device, so that an error goes to the thread that issued the kernel, or that
// waits for an event which that thread recorded. What a thread has left behind when it ends goes to whoever waits next.
#pragma once

#include <mutex>
#include <vector>

#include <weft/kernels/cuda/fault.h>

namespace weft::cuda {

/// The records of one device. Thread safety: every call may come from any thread.
class FaultSlots {
 public:
  /// Those of the device of this number; they live as long as the program.
  static FaultSlots& of(int device);
  /// The calling thread's record, in pinned memory, made at the first use. Throws: OutOfMemoryError.
  Fault* of_thread();
  /// Throws what the record or one of a thread that has ended holds, and clears it. Throws: IndexError, ValueError.
  void raise(Fault* of);
  /// The thread of this record ends.
  void leave(Fault* slot) noexcept;

 private:
  FaultSlots() = default;
  std::mutex mutex_;
  std::vector<Fault*> left_;
};

}  // namespace weft::cuda
