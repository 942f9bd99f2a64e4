// DistributedDataParallel: training one model in several processes, each on its part of every batch. The
// gradients are averaged while backward still computes, so all processes take the same step.
//
//   const auto group = dist::new_group();
//   Net net;
//   dist::DistributedDataParallel parallel(net, group);    // all processes start from rank 0's values
//   optim::Adam adam(net.parameters());
//   for (...) {
//     adam.zero_grad();
//     parallel.backward(mse_loss(net.forward(x), y));      // x, y: this process's part of the batch
//     adam.step();
//   }
//
// The module lies on the CPU, on the device that the group has, or on both. No thread waits for a device: the
// averages are ordered between streams.
//
// If all parts have the same size and the loss is a mean, the gradients are those of the whole batch, up to
// rounding. They have the same bits in all processes. A plain loss.backward() would leave the processes with
// different gradients, so it throws unless a no_sync() is open:
//   {
//     const auto local = parallel.no_sync();
//     loss1.backward();                                    // adds up here only
//   }
//   parallel.backward(loss2);                              // averages the sum of both
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <weft/distributed/collectives/process_group.h>
#include <weft/nn/module.h>

namespace weft::dist {

/// Options of DistributedDataParallel; the same in all processes.
struct DataParallelOptions {
  double bucket_cap_mb = 25;       ///< gradients are reduced in buckets of about this size, in MiB
  double first_bucket_cap_mb = 1;  ///< in MiB; the first bucket is smaller, so that it is ready early
  /// True: a parameter without a gradient here counts as zero if another process has a gradient of it. A
  /// parameter without a gradient in all processes keeps its grad(). False: such a pass throws.
  bool find_unused_parameters = false;
  /// True: a bucket is sent as soon as it is ready. False: after the pass. Needed for a model whose
  /// parameters get several gradients in a pass, such as parameters that two checkpoint() calls share.
  bool overlap = true;
};

/// Trains a module in all processes of a group. Row-wise gradients become dense. The module must outlive this
/// object.
/// Thread safety: one thread at a time.
class WEFT_API DistributedDataParallel {
 public:
  /// Copies the parameters and buffers of rank 0 to all processes. Blocks until all have called it. Throws,
  /// in all processes: ValueError for options that differ between processes, and for a bucket size that is
  /// not positive. ValueError for modules whose parameters or buffers differ in name, dtype, sizes, device or
  /// requires_grad. ValueError for read-only memory, and for a module without a parameter that requires grad.
  /// DeviceError for a module neither on the CPU nor on the group's device; the errors of the group.
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  /// Adds the gradients of the loss to the parameters' grad(), and replaces these sums by their average over
  /// the processes. Other leaves get their own gradients. All processes make this call. Blocks until the
  /// averages are computed; on a device, until their work is queued. Throws: as Tensor::backward, and the
  /// errors of the group. In all processes:
  /// AutogradError that names the parameters without a gradient (find_unused_parameters); then the sums stay
  /// unchanged. AutogradError for a second gradient of a parameter whose bucket was sent (overlap).
  /// ValueError for a parameter that has moved to another dtype, size or device since the construction.
  /// A pass that fails in one process after its first bucket was sent, such as by an OutOfMemoryError, makes
  /// the group fail in all.
  void backward(const Tensor& loss, bool retain_graph = false);
  /// The same for several tensors; `gradients` as for weft::backward.
  void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients = {},
                bool retain_graph = false);

  /// For a process that has no more inputs while others have. It takes part in one backward() of the others
  /// with a gradient of zero. The value of grad() here does not count, even from a no_sync(). Returns true if
  /// grad() now holds the averages, or nothing where the others have no gradient. A step then keeps the
  /// parameters of all processes the same. Returns false if all processes have called join(); no gradient has
  /// changed, and the next join() starts anew.
  ///   for (adam.zero_grad(); parallel.join(); adam.zero_grad()) adam.step();
  /// Averages are over all processes of the group, including those in join(). Blocks and throws as
  /// backward().
  bool join();

  /// During its lifetime, the gradients of backward() and of loss.backward() stay in this process.
  class WEFT_API NoSync {
   public:
    NoSync(NoSync&& other) noexcept;
    ~NoSync();
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend DistributedDataParallel;
    struct Scope;
    explicit NoSync(std::unique_ptr<Scope> scope);
    std::unique_ptr<Scope> scope_;
  };
  [[nodiscard]] NoSync no_sync();

  /// The names of the parameters in each bucket, in the order in which the buckets are sent.
  std::vector<std::vector<std::string>> buckets() const;
  const std::shared_ptr<ProcessGroup>& group() const;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace weft::dist
