// The handle, descriptors and calls of cuDNN for recurrent layers, on the emulated device; rnn.h computes the
// numbers. This file is a separate shared library, opened like cuDNN. Sequences are packed, and layers use
// the standard algorithm.
#include <cudnn.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <weft/kernels/error.h>
#include "support/libraries/cudnn/handle.h"
#include "support/libraries/cudnn/rnn.h"
#include "support/libraries/libraries.h"
#include "support/simt/graph.h"
#include "support/simt/memory.h"
#include "support/simt/streams.h"
#include "support/simt/thread.h"

using namespace weft::cuda::libraries;
using weft::cuda::simt::Fault;

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> sizes, strides;
};
struct cudnnDropoutStruct {
  bool set = false;
  float p = 0;
  void* states = nullptr;
};
struct cudnnRNNStruct {
  bool set = false;
  Stack stack;
  cudnnDropoutDescriptor_t dropout = nullptr;
};
struct cudnnRNNDataStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int steps = 0, vector = 0;
  std::vector<int> lengths;
};

namespace {

/// Whether the first call of a kind on a handle may run now: it allocates, and waits if the settings say so.
bool may_begin(const char* call) {
  try {
    if (settings().new_handles_wait) weft::cuda::simt::check_may_wait(call);
  } catch (const weft::CudaError&) {
    return false;
  }
  return may_allocate(call);
}

template <class T> cudnnStatus_t make(T** made, const char* call) {
  RETURN_ASKED(call);
  if (!made) return CUDNN_STATUS_BAD_PARAM;
  *made = new T;
  ++counts().live;
  return CUDNN_STATUS_SUCCESS;
}
template <class T> cudnnStatus_t destroy(T* one) {
  counts().live -= one != nullptr;
  delete one;
  return CUDNN_STATUS_SUCCESS;
}

enum Kind { kInference, kTraining, kBackwardData, kBackwardWeights };
/// Allocates like cuDNN, which allocates memory in the first call of each kind on a handle.
bool warm_up(cudnnHandle_t handle, Kind kind, const char* call) {
  return handle->warm[kind] || (handle->warm[kind] = may_begin(call));
}
#define RETURN_UNLESS_WARM(handle, kind, call) \
  if (!warm_up(handle, kind, call)) return CUDNN_STATUS_INTERNAL_ERROR

bool known(cudnnDataType_t t) {
  return t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_DOUBLE || t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16;
}
weft::DType type_of(cudnnDataType_t t) {
  return t == CUDNN_DATA_HALF       ? weft::kFloat16
         : t == CUDNN_DATA_BFLOAT16 ? weft::kBFloat16
         : t == CUDNN_DATA_FLOAT    ? weft::kFloat32
                                    : weft::kFloat64;
}

/// The stack of a call with sequences of these lengths.
Stack stack_of(cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t data) {
  Stack s = rnn->stack;
  s.lengths = data->lengths;
  s.dropout = rnn->dropout ? static_cast<double>(rnn->dropout->p) : 0;
  s.states = rnn->dropout ? rnn->dropout->states : nullptr;
  return s;
}
bool fits(const cudnnRNNDataStruct* data, const Stack& s, int64_t width) {
  return data && type_of(data->type) == s.type && data->vector == width && data->lengths == s.lengths;
}
/// [layers * directions, batch, hidden] without gaps.
bool fits(const cudnnTensorStruct* t, const Stack& s) {
  if (!t || type_of(t->type) != s.type) return false;
  const auto batch = static_cast<int>(s.batch()), hidden = static_cast<int>(s.hidden);
  return t->sizes == std::vector<int>{static_cast<int>(s.layers * s.directions), batch, hidden} &&
         t->strides == std::vector<int>{batch * hidden, hidden, 1};
}

/// The memory blocks of a call, in the caller's sizes, which may exceed the need.
struct Spaces {
  size_t weights_size;
  const void* weights;
  size_t work_size;
  void* work;
  size_t reserve_size;
  void* reserve;
};
bool fits(const Spaces& spaces, const Stack& s, bool training) {
  if (!spaces.weights || spaces.weights_size < static_cast<size_t>(weight_bytes(s))) return false;
  if (!spaces.work || spaces.work_size < static_cast<size_t>(work_bytes(s, training))) return false;
  return !training || (spaces.reserve && spaces.reserve_size >= static_cast<size_t>(reserve_bytes(s)));
}
void expect_spaces(const Spaces& spaces, bool training, const char* call) {
  expect_device(spaces.weights, 16, call), expect_device(spaces.work, 16, call);
  if (training) expect_device(spaces.reserve, 16, call);
}
void expect_data(const char* call, std::initializer_list<const void*> needed,
                 std::initializer_list<const void*> optional) {
  for (const void* p : needed) expect_device(p, 1, call);
  for (const void* p : optional)
    if (p) expect_device(p, 1, call);
}
void expect_no_lengths(const int32_t* lengths) {
  if (lengths)
    throw Fault("cuDNN: lengths on the device are not emulated; since 8.9.1 the descriptor's count");
}
/// Fills a workspace with arbitrary bytes, before and after a call.
void spoil(void* work, size_t bytes) { std::memset(work, 0xC3, bytes); }

}  // namespace

size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  RETURN_ASKED("cudnnCreate");
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  if (!may_begin("cudnnCreate")) return CUDNN_STATUS_INTERNAL_ERROR;
  static std::mutex mutex;
  static auto* const handles = new std::vector<std::unique_ptr<cudnnContext>>;  // never destroyed
  const std::lock_guard lock(mutex);
  *handle = handles->emplace_back(new cudnnContext{.device = weft::cuda::simt::current_device()}).get();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  RETURN_ASKED("cudnnSetStream");
  const Use use(handle, "cudnnSetStream");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* d) {
  return make(d, "cudnnCreateDropoutDescriptor");
}
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t* bytes) {
  RETURN_ASKED("cudnnDropoutGetStatesSize");
  const Use use(handle, "cudnnDropoutGetStatesSize");
  *bytes = 4096;
  ++counts().dropout_sizes;
  return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_dropout(cudnnDropoutDescriptor_t d, float p, void* states, size_t bytes) {
  if (!d || !(p >= 0 && p <= 1)) return CUDNN_STATUS_BAD_PARAM;
  if (states && bytes < 4096) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
  if (states) expect_device(states, 16, "cudnnSetDropoutDescriptor: states");
  *d = {true, p, states};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float p,
                                        void* states, size_t bytes, unsigned long long seed) {
  RETURN_ASKED("cudnnSetDropoutDescriptor");
  const Use use(handle, "cudnnSetDropoutDescriptor");
  if (states) RETURN_ASKED("cudnnSetDropoutDescriptor: states");
  const cudnnStatus_t status = set_dropout(d, p, states, bytes);
  if (status == CUDNN_STATUS_SUCCESS && states)
    issue(handle, "cudnnSetDropoutDescriptor", [=] {
      const Random fresh{.seed = seed};
      std::memcpy(states, &fresh, sizeof fresh);
    });
  return status;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float p,
                                            void* states, size_t bytes, unsigned long long) {
  RETURN_ASKED("cudnnRestoreDropoutDescriptor");
  const Use use(handle, "cudnnRestoreDropoutDescriptor");
  return set_dropout(d, p, states, bytes);
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) {
  return make(d, "cudnnCreateTensorDescriptor");
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int dims,
                                         const int sizes[], const int strides[]) {
  RETURN_ASKED("cudnnSetTensorNdDescriptor");
  if (dims < 3 || dims > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!d || !sizes || !strides) return CUDNN_STATUS_BAD_PARAM;
  for (int i = 0; i < dims; ++i)
    if (sizes[i] < 1 || strides[i] < 0) return CUDNN_STATUS_BAD_PARAM;
  *d = {type, {sizes, sizes + dims}, {strides, strides + dims}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* d) {
  return make(d, "cudnnCreateRNNDescriptor");
}
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type,
                                       cudnnDataType_t precision, cudnnMathType_t math, int32_t inputs,
                                       int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  RETURN_ASKED("cudnnSetRNNDescriptor_v8");
  if (!d || inputs < 1 || hidden < 1 || projected < 1 || layers < 1 || projected > hidden ||
      flags > CUDNN_RNN_PADDED_IO_ENABLED)
    return CUDNN_STATUS_BAD_PARAM;
  if (dropout && !dropout->set) return CUDNN_STATUS_BAD_PARAM;
  if (algorithm != CUDNN_RNN_ALGO_STANDARD || input != CUDNN_LINEAR_INPUT || projected != hidden)
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (!known(type) || precision != (type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
    return CUDNN_STATUS_NOT_SUPPORTED;
  const bool tensor_cores = math == CUDNN_TENSOR_OP_MATH || math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
  if ((type == CUDNN_DATA_DOUBLE && tensor_cores) || (type == CUDNN_DATA_BFLOAT16 && math == CUDNN_FMA_MATH))
    return CUDNN_STATUS_NOT_SUPPORTED;
  d->set = true;
  d->stack = {.mode = mode,
              .bias = bias,
              .directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1,
              .layers = layers,
              .inputs = inputs,
              .hidden = hidden,
              .type = type_of(type)};
  d->dropout = dropout;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* d) {
  return make(d, "cudnnCreateRNNDataDescriptor");
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t d) { return destroy(d); }
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int batch, int width,
                                        const int lengths[], void*) {
  RETURN_ASKED("cudnnSetRNNDataDescriptor");
  if (!d || !lengths || steps < 1 || batch < 1 || width < 1) return CUDNN_STATUS_BAD_PARAM;
  if (!known(type)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED)
    throw Fault("cudnnSetRNNDataDescriptor: only packed sequences are emulated");
  for (int i = 0; i < batch; ++i)
    if (lengths[i] < 0 || lengths[i] > steps || (i > 0 && lengths[i] > lengths[i - 1]))
      return CUDNN_STATUS_BAD_PARAM;
  *d = {type, steps, width, {lengths, lengths + batch}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t* bytes) {
  RETURN_ASKED("cudnnGetRNNWeightSpaceSize");
  const Use use(handle, "cudnnGetRNNWeightSpaceSize");
  if (!rnn || !rnn->set || !bytes) return CUDNN_STATUS_BAD_PARAM;
  *bytes = static_cast<size_t>(weight_bytes(rnn->stack));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x, size_t* work,
                                        size_t* reserve) {
  RETURN_ASKED("cudnnGetRNNTempSpaceSizes");
  const Use use(handle, "cudnnGetRNNTempSpaceSizes");
  if (!rnn || !rnn->set || !x) return CUDNN_STATUS_BAD_PARAM;
  const Stack s = stack_of(rnn, x);
  const bool training = mode == CUDNN_FWD_MODE_TRAINING;
  if (work) *work = static_cast<size_t>(work_bytes(s, training));
  if (reserve) *reserve = training ? static_cast<size_t>(reserve_bytes(s)) : 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t pseudo,
                                      size_t bytes, const void* weights, int32_t id,
                                      cudnnTensorDescriptor_t matrix, void** matrix_at,
                                      cudnnTensorDescriptor_t bias, void** bias_at) {
  RETURN_ASKED("cudnnGetRNNWeightParams");
  const Use use(handle, "cudnnGetRNNWeightParams");
  if (!rnn || !rnn->set || !matrix_at || !bias_at) return CUDNN_STATUS_BAD_PARAM;
  const Stack& s = rnn->stack;
  if (pseudo < 0 || pseudo >= s.layers * s.directions || id < 0 || id >= 2 * s.gates() ||
      bytes < static_cast<size_t>(weight_bytes(s)))
    return CUDNN_STATUS_BAD_PARAM;
  ++counts().weight_blocks;
  const Block at = block_of(s, pseudo, id);
  auto* const base = static_cast<char*>(const_cast<void*>(weights));
  const auto describe = [&](cudnnTensorDescriptor_t d, int64_t begin, int64_t columns, void** to) {
    *to = begin < 0 ? nullptr : base + begin;
    if (!d) return;
    const int rows = static_cast<int>(at.rows), width = static_cast<int>(columns);
    d->sizes = begin < 0 ? std::vector<int>{} : std::vector<int>{1, rows, width};
    d->strides = begin < 0 ? std::vector<int>{} : std::vector<int>{rows * width, width, 1};
  };
  describe(matrix, at.matrix, at.columns, matrix_at);
  describe(bias, at.bias, 1, bias_at);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const int32_t lengths[], cudnnRNNDataDescriptor_t x_data, const void* x,
                              cudnnRNNDataDescriptor_t y_data, void* y, cudnnTensorDescriptor_t h,
                              const void* hx, void* hy, cudnnTensorDescriptor_t c, const void* cx, void* cy,
                              size_t weights_size, const void* weights, size_t work_size, void* work,
                              size_t reserve_size, void* reserve) {
  RETURN_ASKED("cudnnRNNForward");
  const Use use(handle, "cudnnRNNForward");
  expect_no_lengths(lengths);
  if (!rnn || !rnn->set || !x_data || !x || !y) return CUDNN_STATUS_BAD_PARAM;
  const Stack s = stack_of(rnn, x_data);
  const bool training = mode == CUDNN_FWD_MODE_TRAINING, lstm = s.mode == CUDNN_LSTM;
  const Spaces spaces{weights_size, weights, work_size, work, reserve_size, reserve};
  if (!fits(x_data, s, s.inputs) || !fits(y_data, s, s.width()) || ((hx || hy) && !fits(h, s)) ||
      (lstm && (cx || cy) && !fits(c, s)) || !fits(spaces, s, training))
    return CUDNN_STATUS_BAD_PARAM;
  RETURN_UNLESS_WARM(handle, training ? kTraining : kInference, "cudnnRNNForward");
  expect_spaces(spaces, training, "cudnnRNNForward");
  expect_data("cudnnRNNForward", {x, y}, {hx, hy, lstm ? cx : nullptr, lstm ? cy : nullptr});
  ++(training ? counts().rnn_training : counts().rnn_inference);
  counts().rnn_layers += s.layers * s.directions;
  counts().last_weights = weights;
  const ForwardData data{
      x, y, hx, hy, lstm ? cx : nullptr, lstm ? cy : nullptr, weights, training ? reserve : nullptr};
  issue(handle, "cudnnRNNForward", [=] {
    spoil(work, work_size);
    forward(s, data);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
                                      cudnnRNNDataDescriptor_t y_data, const void* y, const void* dy,
                                      cudnnRNNDataDescriptor_t x_data, void* dx, cudnnTensorDescriptor_t h,
                                      const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t c,
                                      const void* cx, const void* dcy, void* dcx, size_t weights_size,
                                      const void* weights, size_t work_size, void* work, size_t reserve_size,
                                      void* reserve) {
  RETURN_ASKED("cudnnRNNBackwardData_v8");
  const Use use(handle, "cudnnRNNBackwardData_v8");
  expect_no_lengths(lengths);
  if (!rnn || !rnn->set || !x_data || !y || !dy || !dx) return CUDNN_STATUS_BAD_PARAM;
  const Stack s = stack_of(rnn, x_data);
  const bool lstm = s.mode == CUDNN_LSTM;
  const Spaces spaces{weights_size, weights, work_size, work, reserve_size, reserve};
  if (!fits(x_data, s, s.inputs) || !fits(y_data, s, s.width()) || ((hx || dhy || dhx) && !fits(h, s)) ||
      (lstm && (cx || dcy || dcx) && !fits(c, s)) || !fits(spaces, s, true))
    return CUDNN_STATUS_BAD_PARAM;
  RETURN_UNLESS_WARM(handle, kBackwardData, "cudnnRNNBackwardData_v8");
  expect_spaces(spaces, true, "cudnnRNNBackwardData_v8");
  expect_data("cudnnRNNBackwardData_v8", {y, dy, dx}, {hx, dhy, dhx});
  if (lstm) expect_data("cudnnRNNBackwardData_v8", {}, {cx, dcy, dcx});
  ++counts().rnn_backward_data;
  counts().last_weights = weights;
  const BackwardData data{
      y,       dy,     dx, hx, dhy, dhx, lstm ? cx : nullptr, lstm ? dcy : nullptr, lstm ? dcx : nullptr,
      weights, reserve};
  issue(handle, "cudnnRNNBackwardData_v8", [=] {
    spoil(work, work_size);
    backward_data(s, data);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t add,
                                         const int32_t lengths[], cudnnRNNDataDescriptor_t x_data,
                                         const void* x, cudnnTensorDescriptor_t h, const void* hx,
                                         cudnnRNNDataDescriptor_t y_data, const void* y, size_t weights_size,
                                         void* weights, size_t work_size, void* work, size_t reserve_size,
                                         void* reserve) {
  RETURN_ASKED("cudnnRNNBackwardWeights_v8");
  const Use use(handle, "cudnnRNNBackwardWeights_v8");
  expect_no_lengths(lengths);
  if (add != CUDNN_WGRAD_MODE_ADD) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!rnn || !rnn->set || !x_data || !x || !y) return CUDNN_STATUS_BAD_PARAM;
  const Stack s = stack_of(rnn, x_data);
  const Spaces spaces{weights_size, weights, work_size, work, reserve_size, reserve};
  if (!fits(x_data, s, s.inputs) || !fits(y_data, s, s.width()) || (hx && !fits(h, s)) ||
      !fits(spaces, s, true))
    return CUDNN_STATUS_BAD_PARAM;
  RETURN_UNLESS_WARM(handle, kBackwardWeights, "cudnnRNNBackwardWeights_v8");
  expect_spaces(spaces, true, "cudnnRNNBackwardWeights_v8");
  expect_data("cudnnRNNBackwardWeights_v8", {x, y}, {hx});
  ++counts().rnn_backward_weights;
  counts().last_sums = weights;
  issue(handle, "cudnnRNNBackwardWeights_v8", [=] {
    spoil(work, work_size);
    backward_weights(s, x, hx, y, weights, reserve);
  });
  return CUDNN_STATUS_SUCCESS;
}
