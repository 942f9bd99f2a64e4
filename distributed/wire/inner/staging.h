// Transfer of device tensors through host memory. A message with such tensors has a Staging: its
// copies between the devices and pinned host memory. They run on side streams of the devices, one
// for each direction.
//   Sending: a copy waits for the work queued on the calling thread's current stream of the device. The
//   message leaves when its copies are done. Until then the storages count as saved, so an optimizer step
//   writes to others.
//   Arriving: a block comes from the allocator of the side stream. The function of a request starts, and
//   the future of a reply completes, when the copies are done. So every use of the tensor comes after
//   them, on any stream. The allocator gets the stream of the decoding thread.
// Internal to the agent.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/transport.h>
#include <weft/distributed/wire/future.h>
#include <weft/kernels/accelerator.h>
#include <weft/tensor/storage.h>

namespace weft::rpc {

/// The device copies of one message. Thread safety: download, upload, follow, borrow and close on one thread;
/// the others from any.
class Staging {
 public:
  Staging() = default;
  /// Blocks until the started copies are done.
  ~Staging();
  Staging(const Staging&) = delete;

  /// Starts a copy of `bytes` at `data`, inside `storage` on a device. Returns the target host memory.
  std::shared_ptr<void> download(const Ref<Storage>& storage, const void* data, int64_t bytes);
  /// Starts a copy of host memory to a new storage of the device; `keep` owns the host memory.
  Ref<Storage> upload(Device device, const void* data, int64_t bytes, Release keep);
  /// Makes the message wait for the calling thread's current stream, without a copy.
  void follow(Device device) { side_stream(accelerator(device), true); }
  /// Starts a copy of another process's memory to a new storage of the device. Throws: CudaError when the
  /// memory cannot be opened.
  Ref<Storage> borrow(Device device, const SharedBlock& block, int64_t bytes);
  /// No more copies will be added.
  void close();

  /// True when all copies are done; false after an error of the device, which wait() throws.
  bool ready() noexcept;
  /// Blocks until all copies are done. Throws: CudaError; IndexError or ValueError reported
  /// by earlier kernels.
  void wait();
  /// The device and direction of the first copy. Messages of one lane finish their copies in the order
  /// of their start.
  int lane() const { return lane_; }

  /// Done when the copies are. The receiver sets it before the message is decoded. Unset: the copies were
  /// done on arrival.
  std::optional<Future<void>> arrival{};
  /// Loans to return when the copies are done.
  std::vector<uint64_t> loans{};

 private:
  struct Part {
    Accelerator* device;
    void* stream;
    void* event;
  };
  void* side_stream(Accelerator& device, bool down);
  void drop() noexcept;
  std::vector<Part> parts_;
  int lane_ = 0;
  std::atomic<bool> done_{false};
  Mutex mutex_;
  std::vector<Ref<Storage>> saved_ WEFT_GUARDED_BY(mutex_);
  std::vector<Release> kept_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr failure_ WEFT_GUARDED_BY(mutex_);
};

/// Pinned host memory for a payload whose target is cuda:`device`; null if that device is not open.
std::shared_ptr<void> pinned_memory(int device, int64_t bytes);

/// Continues messages after their copies, on the handler pool. Each lane with waiting messages has one task.
class CopyContinuations : public std::enable_shared_from_this<CopyContinuations> {
 public:
  explicit CopyContinuations(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  /// Calls `then(error)` once, with null when the copies succeeded. After a stop of the runtime it
  /// is not called.
  void run_after(std::shared_ptr<Staging> staging, std::function<void(std::exception_ptr)> then);

 private:
  struct Item {
    std::shared_ptr<Staging> staging;
    std::function<void(std::exception_ptr)> then;
  };
  void drain(int lane);
  const std::shared_ptr<Runtime> runtime_;
  Mutex mutex_;
  std::map<int, std::deque<Item>> lanes_ WEFT_GUARDED_BY(mutex_);  ///< an entry exists while its task runs
};

}  // namespace weft::rpc
