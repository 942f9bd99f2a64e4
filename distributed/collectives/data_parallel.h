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
// The module lies on the CPU, on the device that the group has, or on both. On a device nothing waits for
// it: the averages are ordered between streams.
//
// With parts of one size and a loss that is a mean, the gradients are those of the joined batch, up to
// rounding. They have the same bits in all processes. A plain loss.backward() would leave the processes with
// different gradients, so it throws, unless a no_sync() is there:
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
  double first_bucket_cap_mb = 1;  ///< in MiB; the first one is smaller, so that it is ready early
  /// A parameter without a gradient counts as zero where another process has one. One that has none in any
  /// process keeps its grad(). False: such a pass throws.
  bool find_unused_parameters = false;
  /// True: a bucket is sent as soon as it is ready. False: after the pass. A model whose parameters get
  /// several gradients in a pass, such as those that two checkpoint() calls share, needs false.
  bool overlap = true;
};

/// Trains a module in all processes of a group. Row-wise gradients become dense. The module outlives it.
/// Thread safety: one thread at a time.
class WEFT_API DistributedDataParallel {
 public:
  /// Copies the parameters and buffers of rank 0 to all. Blocks until all have come. Throws, in all
  /// processes: ValueError for other options, for a bucket size that is not positive, for modules whose
  /// parameters or buffers differ in name, dtype, sizes, device or requires_grad, for read-only memory, and
  /// for a module without a parameter that requires grad. DeviceError for one neither on the CPU nor on the
  /// group's device; the errors of the group.
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  /// Adds the gradients of the loss to the parameters' grad(), and replaces these sums by their average over
  /// the processes. Other leaves get their own gradients. All processes make this call. Blocks until the
  /// averages are there; on a device, until their work is queued. Throws: as Tensor::backward, and the errors
  /// of the group. In all processes:
  /// AutogradError that names the parameters without a gradient (find_unused_parameters); the sums stay as
  /// they are then. AutogradError for a second gradient of a parameter whose bucket was sent (overlap).
  /// ValueError for a parameter that has moved to another dtype, size or device since the construction.
  /// A pass that fails in one process after its first bucket was sent, such as by an OutOfMemoryError, makes
  /// the group fail in all.
  void backward(const Tensor& loss, bool retain_graph = false);
  /// The same for several tensors; `gradients` as for weft::backward.
  void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients = {},
                bool retain_graph = false);

  /// For a process that has no more inputs while others have: takes part in one backward() of the others with
  /// a gradient of zero, whatever grad() holds here, even from a no_sync(). True: grad() has the averages in
  /// its place, or none where the others have none. So it steps as they do, and all keep the same parameters.
  /// False: all processes have called join(), and no gradient has changed. The next join() starts anew.
  ///   for (adam.zero_grad(); parallel.join(); adam.zero_grad()) adam.step();
  /// Averages are over all processes of the group, these included. Blocks and throws as backward().
  bool join();

  /// While one lives, gradients stay in this process: those of backward() and of loss.backward().
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
