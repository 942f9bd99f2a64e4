// Device memory lent to workers of the same host by CUDA IPC. So a large tensor goes from device to device
// without a copy through host memory. [G: ...] states a guarantee.
//  1. When the group forms, each worker that allows it (AgentOptions::cuda_ipc) shares a small block of
//     each of its devices. The other allowing workers of the host try to read it from each of theirs. All
//     workers get the working pairs of devices.
//  2. A large tensor that goes over such a pair is lent: the message has the block and a loan in place of
//     the bytes. It leaves when the current stream has reached the call. The loan keeps the tensor and
//     counts as a save of its storage.
//  3. The receiver copies to a block of its own on its side stream, closes the lent one, then returns the
//     loan. If the loan was still valid, the tensor has arrived. If not, the copy cannot be trusted, and the
//     call fails.
//  4. A loan ends by 3, or one lease after the end of its call, or with the loss of its receiver. [G: a
//     function sees the value that a lent tensor had at the call, or it does not run.] Until then the lender
//     cannot return the allocation to its device. Afterwards it can, although a receiver that hangs for
//     longer than a lease may have it open, which CUDA leaves undefined.
// Internal to the agent. Thread safety: every member from any thread.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/wire/message.h>
#include <weft/kernels/accelerator.h>

namespace weft::rpc {

/// A lent block in a message.
struct Loan {
  uint64_t number = 0;
  SharedBlock block;
};

/// The loans of one worker; see the head.
class Lending {
 public:
  Lending() = default;
  Lending(const Lending&) = delete;
  ~Lending();
  /// The least size in bytes of a tensor that is lent.
  static constexpr int64_t kLeast = 1 << 20;

  // ---- step 1
  /// A block of an open device with known contents, for the trial.
  struct Probe {
    Device device;
    SharedBlock block;
    uint64_t contents = 0;
  };
  std::vector<Probe> offer(Runtime& runtime);
  /// Tries to read `probes`. Returns the pairs of a probe's device and a device of this worker that read it.
  static std::vector<std::pair<Device, Device>> try_out(const std::vector<Probe>& probes);
  /// Stores the working pairs of a device of this worker and the device of `to` that reads it.
  void agree(WorkerId to, const std::vector<std::pair<Device, Device>>& pairs);
  void end_offer();

  // ---- steps 2 to 4
  /// Lends a tensor. Null: the message must contain its bytes.
  std::shared_ptr<const Loan> lend(WorkerId to, const Place& place, const Tensor& tensor, int64_t bytes);
  /// Ends these loans. True: all of them were valid loans to `to`.
  bool take_back(WorkerId to, const std::vector<uint64_t>& numbers);
  void end(uint64_t number);
  void peer_lost(WorkerId peer);
  int64_t lent() const { return lent_; }  ///< number of loans made so far
  int64_t standing() const;

 private:
  struct Standing {
    WorkerId to;
    Tensor tensor;
  };
  static void drop(const Standing& loan);
  mutable Mutex mutex_;
  std::set<std::tuple<WorkerId, int, int>> pairs_ WEFT_GUARDED_BY(mutex_);
  std::map<uint64_t, Standing> standing_ WEFT_GUARDED_BY(mutex_);
  std::vector<Tensor> offered_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::atomic<int64_t> lent_{0};
};

}  // namespace weft::rpc
