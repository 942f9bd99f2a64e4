// Tensors of devices on their way through host memory. A message that holds some keeps a Staging: the copies between the devices and pinned host
// memory, issued to side streams of the devices, one for each direction.
//   Sending: a copy reads after everything that the calling thread's current stream of the device had been given. The message leaves when its
//   copies are done; until then the storages count as saved, so an optimizer step writes elsewhere.
//   Arriving: a block comes from the allocator of the side stream. The function of a request starts, and the future of a reply completes, when
//   the copies are done; so whatever uses the tensor comes after them, on whichever stream. The allocator is told of the stream of the thread
//   that decodes.
// Of the agent's own.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <weft/distributed/future.h>
#include <weft/distributed/transport.h>
#include <weft/kernels/accelerator.h>
#include <weft/tensor/storage.h>

namespace weft::rpc {

/// Thread safety: download, upload and close on one thread; the others from any.
class Staging {
 public:
  Staging() = default;
  /// Waits for copies under way.
  ~Staging();
  Staging(const Staging&) = delete;

  /// Begins a copy of `bytes` at `data`, which lies in `storage` on a device; gives the host memory it goes to.
  std::shared_ptr<void> download(const Ref<Storage>& storage, const void* data, int64_t bytes);
  /// Begins a copy of host memory to a new storage of the device; `keep` holds the memory.
  Ref<Storage> upload(Device device, const void* data, int64_t bytes, Release keep);
  /// Orders the message after the calling thread's current stream, without a copy.
  void follow(Device device) { side_stream(accelerator(device), true); }
  /// Begins a copy of another process's memory to a new storage of the device. Throws: CudaError when it cannot be reached.
  Ref<Storage> borrow(Device device, const SharedBlock& block, int64_t bytes);
  /// No more copies will be added.
  void close();

  /// Whether all copies are done; never once the device has reported an error, which wait() throws.
  bool ready() noexcept;
  /// Blocks until they are. Throws: CudaError, and what kernels before the copies have reported (IndexError, ValueError).
  void wait();
  /// Equal for messages whose copies are done in the order in which they were begun: the device and direction of the first one.
  int lane() const { return lane_; }

  /// Done when the copies are; set by who carries this message before it is decoded. Unset: they were done on arrival.
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

/// Host memory for a payload that goes on to a device: pinned where cuda:`device` is open, else null.
std::shared_ptr<void> pinned_memory(int device, int64_t bytes);

/// Continues messages when their copies are done: on the handler pool, one task per lane while there is something to wait for.
class Courier : public std::enable_shared_from_this<Courier> {
 public:
  explicit Courier(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  /// Calls `then(error)` once, null when the copies succeeded. Without a call when the runtime has stopped.
  void carry(std::shared_ptr<Staging> staging, std::function<void(std::exception_ptr)> then);

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
