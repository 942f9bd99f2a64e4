// Device memory lent to workers of the same host, so that a large tensor goes from device to device without a way through host memory (CUDA IPC).
//  1. When the group forms, each worker that allows it (AgentOptions::cuda_ipc) shares a small block of each of its devices; the other workers of the
//     host that allow it try to read it from each of theirs. What worked is told to all: pairs of devices.
//  2. A large tensor that goes over such a pair is lent: the message names the block and a loan in place of carrying bytes, and leaves when the current
//     stream has come as far as the call. The loan keeps the tensor, and counts as a save of its storage.
//  3. The receiver copies to a block of its own on its side stream, then returns the loan. If the loan still stood, the tensor has arrived; if not, what
//     was copied cannot be trusted, and that is the call's error.
//  4. A loan ends by 3, a lease after the call that it belongs to has ended, or with the worker it was made to.
// [G: what a function sees of a lent tensor is what the sender had at the call, or the function does not run.]
// Of the agent's own. Thread safety: every member from any thread.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <weft/distributed/message.h>
#include <weft/distributed/runtime.h>
#include <weft/distributed/sync.h>
#include <weft/kernels/accelerator.h>

namespace weft::rpc {

/// A block as a message names it.
struct Loan {
  uint64_t number = 0;
  SharedBlock block;
};

class Lending {
 public:
  Lending() = default;
  Lending(const Lending&) = delete;
  ~Lending();
  /// Tensors of at least this many bytes are lent.
  static constexpr int64_t kLeast = 1 << 20;

  // ---- step 1
  /// A block of each open device that a reader can tell by its contents.
  struct Probe {
    Device device;
    SharedBlock block;
    uint64_t contents = 0;
  };
  std::vector<Probe> offer(Runtime& runtime);
  /// Devices of `probes` with those of this worker that read them right.
  static std::vector<std::pair<Device, Device>> try_out(const std::vector<Probe>& probes);
  /// `to` reads our first devices from its second ones. Ends the offer.
  void agree(WorkerId to, const std::vector<std::pair<Device, Device>>& pairs);
  void end_offer();

  // ---- steps 2 to 4
  /// Null where the tensor is to be carried; else its loan.
  std::shared_ptr<const Loan> lend(WorkerId to, const Place& place, const Tensor& tensor, int64_t bytes);
  /// Whether all of these stood and were made to `to`; they end.
  bool take_back(WorkerId to, const std::vector<uint64_t>& numbers);
  void end(uint64_t number);
  void peer_lost(WorkerId peer);
  int64_t lent() const { return lent_; }  ///< so far
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
