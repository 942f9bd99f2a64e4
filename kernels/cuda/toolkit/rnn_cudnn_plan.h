// Jobs for cuDNN and their descriptors: one plan per kind of call and device, created once.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/rnn_seam.h>
#include <weft/kernels/cuda/toolkit/cudnn.h>

namespace weft::cuda::cudnn {

/// A job for cuDNN: a stack, or one direction of a layer, which is a stack of one and may be reversed.
struct Job {
  RnnStack stack;
  RnnStackInputs in;
  bool reverse = false;
  bool prepares = false;  ///< on the handle for recordings, before one begins
  bool layered = false;   ///< one direction of a layer
  int64_t steps = in.x.size(0), batch = in.x.size(1), inputs = in.x.size(2),
          hidden = in.cells[0].w_hh.size(1);
  DType dtype = in.x.dtype;
  int gates() const { return RnnLayer{stack.mode}.gates(); }
  bool lstm() const { return stack.mode == RnnMode::kLstm; }
  bool biased() const { return in.cells[0].b_ih.defined() || in.cells[0].b_hh.defined(); }
  int64_t inputs_of(int64_t cell) const {
    return cell < stack.directions() ? inputs : stack.directions() * hidden;
  }
};
/// The job of a layer; `cell` is set to its weights.
Job job_of(const RnnLayer& layer, const RnnInputs& in, RnnWeights& cell);

/// Descriptors and sizes of one kind of call.
struct Plan {
  const Library& lib;
  Descriptor<cudnnDropoutDescriptor_t> dropout{
      lib.cudnnCreateDropoutDescriptor, lib.cudnnDestroyDropoutDescriptor, "cudnnCreateDropoutDescriptor"};
  Descriptor<cudnnRNNDescriptor_t> rnn{lib.cudnnCreateRNNDescriptor, lib.cudnnDestroyRNNDescriptor,
                                       "cudnnCreateRNNDescriptor"};
  Descriptor<cudnnRNNDataDescriptor_t> x{lib.cudnnCreateRNNDataDescriptor, lib.cudnnDestroyRNNDataDescriptor,
                                         "cudnnCreateRNNDataDescriptor"};
  Descriptor<cudnnRNNDataDescriptor_t> y{lib.cudnnCreateRNNDataDescriptor, lib.cudnnDestroyRNNDataDescriptor,
                                         "cudnnCreateRNNDataDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> state{lib.cudnnCreateTensorDescriptor, lib.cudnnDestroyTensorDescriptor,
                                            "cudnnCreateTensorDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> matrix{lib.cudnnCreateTensorDescriptor,
                                             lib.cudnnDestroyTensorDescriptor, "cudnnCreateTensorDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> bias{lib.cudnnCreateTensorDescriptor, lib.cudnnDestroyTensorDescriptor,
                                           "cudnnCreateTensorDescriptor"};
  bool usable = false;  // cuDNN accepted all descriptors
  size_t weights = 0, reserve = 0, training_work = 0, inference_work = 0;
  /// of the weight space of a stack; null if cuDNN separates the gates of a weight
  std::shared_ptr<const RnnStackLayout> layout = nullptr;
  bool laid_out = false;  // `layout` is known
  /// Whether all cells' weights, or their gradients, lie in `space` as in cuDNN's weight space.
  bool holds(const View& space, DType dtype, std::span<const RnnWeights> cells) const;
};

/// The random states of dropout. All plans of a device use the same states, one call after another.
struct Random {
  void* states = nullptr;  // never freed
  size_t bytes = 0;
  uint64_t epoch = 0;  // Generator::epoch at the last seed
  runtime::Stream stream = nullptr;
  runtime::Event drawn = nullptr;  // after the last call that drew, on `stream`
};

using Key = std::array<int64_t, 11>;
struct DeviceState {
  std::mutex mutex;  // held while a call is issued: the handle serves one thread at a time
  cudnnHandle_t handle = nullptr;
  // for recordings: cuDNN's internal streams of a handle belong to a recording that used it until its end
  cudnnHandle_t recording_handle = nullptr;
  bool ready_to_record = false;  // its first calls are over
  std::mutex preparing;          // held while these are made; taken before `mutex`
  // a part of the library is missing or does not fit the driver: weft's cell is used
  bool broken = false;
  Random random;
  std::map<Key, std::unique_ptr<Plan>> plans;
  // by the plan's key without sequences and dropout
  std::map<Key, std::shared_ptr<const RnnStackLayout>> layouts;
};
DeviceState& state_of(int device);

/// Seeds the states.
void seed_states(CudaBackend& backend, const Library& lib, cudnnHandle_t handle,
                 cudnnDropoutDescriptor_t dropout, double p, void* states, size_t bytes, uint64_t seed);

/// Creates the handle if there is none.
void make_handle(CudaBackend& backend, const Library& lib, cudnnHandle_t& handle);

/// The plan of a job. The caller holds the state's mutex. During a recording, calls may fail that succeed
/// otherwise. Throws: OutOfMemoryError; then no plan is stored, so the next call tries again.
Plan& plan_for(CudaBackend& backend, DeviceState& state, const Library& lib, const Job& job);

}  // namespace weft::cuda::cudnn
