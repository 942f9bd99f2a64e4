// The descriptors of recurrent layers for cuDNN, and the random states of its dropout. Plans are kept per
// device.
#if defined(WEFT_WITH_CUDNN)

#include <weft/kernels/cuda/toolkit/rnn_cudnn_plan.h>

#include <bit>
#include <memory>
#include <span>
#include <vector>

#include <weft/kernels/cuda/toolkit/with_room.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::cudnn {

namespace {

constexpr size_t kMaxPlans = 256;

cudnnDataType_t data_type(DType t) {
  return t == kFloat16    ? CUDNN_DATA_HALF
         : t == kBFloat16 ? CUDNN_DATA_BFLOAT16
         : t == kFloat32  ? CUDNN_DATA_FLOAT
                          : CUDNN_DATA_DOUBLE;
}
cudnnRNNMode_t cell(RnnMode m) {
  return m == RnnMode::kLstm   ? CUDNN_LSTM
         : m == RnnMode::kGru  ? CUDNN_GRU
         : m == RnnMode::kTanh ? CUDNN_RNN_TANH
                               : CUDNN_RNN_RELU;
}

/// Sets the plan's dropout descriptor. The first plan with dropout creates the states.
void describe_dropout(CudaBackend& backend, Plan& plan, DeviceState& state, double p) {
  const Library& lib = plan.lib;
  Random& random = state.random;
  if (p == 0)
    return check(lib.cudnnSetDropoutDescriptor(plan.dropout, state.handle, 0, nullptr, 0, 0),
                 "cudnnSetDropoutDescriptor");
  if (random.states)
    return check(lib.cudnnRestoreDropoutDescriptor(plan.dropout, state.handle, static_cast<float>(p),
                                                   random.states, random.bytes, 0),
                 "cudnnRestoreDropoutDescriptor");
  check(lib.cudnnDropoutGetStatesSize(state.handle, &random.bytes), "cudnnDropoutGetStatesSize");
  void* states = nullptr;
  with_room(backend, [&] {
    states = runtime::allocate(random.bytes);
    if (!states)
      throw OutOfMemoryError(str("cudnn: no ", random.bytes, " bytes for the random numbers of dropout"));
  });
  try {
    check(lib.cudnnSetStream(state.handle, static_cast<cudaStream_t>(backend.default_stream())),
          "cudnnSetStream");  // the last call's stream may be destroyed
    seed_states(backend, lib, state.handle, plan.dropout, p, states, random.bytes, 0);
  } catch (...) {
    runtime::release(states);
    throw;
  }
  random.states = states;
  random.drawn = runtime::new_event(false);
  runtime::record(random.drawn, backend.default_stream());
}

Key key_of(const Job& job, bool tf32, bool sequences = true) {
  return {static_cast<int64_t>(job.stack.mode),
          static_cast<int64_t>(job.dtype),
          job.biased(),
          tf32,
          sequences ? job.steps : 0,
          sequences ? job.batch : 0,
          job.inputs,
          job.hidden,
          job.stack.layers,
          job.stack.both,
          sequences ? std::bit_cast<int64_t>(job.stack.dropout) : 0};
}

/// The weight space's layout; null if not every weight of weft's is one dense matrix there.
std::shared_ptr<const RnnStackLayout> layout_of(CudaBackend& backend, DeviceState& state, const Plan& plan,
                                                const Job& job) {
  const Library& lib = plan.lib;
  const View& given = job.in.space;
  const int64_t element = size_of(job.dtype);
  const bool enough = given.defined() && static_cast<size_t>(given.numel() * element) >= plan.weights;
  const Scratch own(backend, {}, enough ? 0 : plan.weights);  // cuDNN tells addresses, of real memory only
  char* const space = enough ? given.as<char>() : own.as<char>();
  auto layout = std::make_shared<RnnStackLayout>();
  layout->elements = (static_cast<int64_t>(plan.weights) + element - 1) / element;
  for (int64_t cell = 0; cell < job.stack.cells(); ++cell) {
    RnnPlaces places;
    for (int id = 0; id < 2 * job.gates(); ++id) {
      void *matrix = nullptr, *bias = nullptr;
      if (lib.cudnnGetRNNWeightParams(state.handle, plan.rnn, static_cast<int32_t>(cell), plan.weights, space,
                                      id, plan.matrix, &matrix, plan.bias, &bias) != CUDNN_STATUS_SUCCESS)
        return nullptr;
      const bool of_input = id < job.gates();
      const int64_t gate = id % job.gates();
      const auto joins = [&](int64_t& place, const void* p, int64_t numel) {
        const int64_t at = static_cast<const char*>(p) - space;
        if (gate == 0) place = at / element;
        return at == (place + gate * numel) * element;
      };
      if (!joins(of_input ? places.w_ih : places.w_hh, matrix,
                 job.hidden * (of_input ? job.inputs_of(cell) : job.hidden)) ||
          (job.biased() && !joins(of_input ? places.b_ih : places.b_hh, bias, job.hidden)))
        return nullptr;
    }
    layout->cells.push_back(places);
  }
  return layout;
}

/// Finds the plan's layout, which is one for all sequences and dropouts. A single layer's call needs none.
void lay_out(CudaBackend& backend, DeviceState& state, Plan& plan, const Job& job, bool tf32) {
  if (job.layered || plan.laid_out || !plan.usable) return;
  const Key key = key_of(job, tf32, false);
  auto found = state.layouts.find(key);
  if (found == state.layouts.end())
    found = state.layouts.emplace(key, layout_of(backend, state, plan, job)).first;
  plan.layout = found->second, plan.laid_out = true;
}

/// Throws: CudaError if any call of cuDNN refuses the job.
void describe(Plan& plan, DeviceState& state, const Job& job, bool tf32) {
  const Library& lib = plan.lib;
  const cudnnDataType_t type = data_type(job.dtype);
  const auto steps = static_cast<int>(job.steps), batch = static_cast<int>(job.batch),
             inputs = static_cast<int>(job.inputs), hidden = static_cast<int>(job.hidden);
  const auto outputs = static_cast<int>(job.stack.directions()) * hidden,
             cells = static_cast<int>(job.stack.cells());
  const cudnnMathType_t math = job.dtype == kFloat16            ? CUDNN_TENSOR_OP_MATH
                               : job.dtype == kFloat32 && !tf32 ? CUDNN_FMA_MATH
                                                                : CUDNN_DEFAULT_MATH;
  check(lib.cudnnSetRNNDescriptor_v8(
            plan.rnn, CUDNN_RNN_ALGO_STANDARD, cell(job.stack.mode),
            job.biased() ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
            job.stack.both ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type,
            job.dtype == kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, math, inputs, hidden, hidden,
            static_cast<int>(job.stack.layers), plan.dropout, CUDNN_RNN_PADDED_IO_DISABLED),
        "cudnnSetRNNDescriptor_v8");
  const std::vector<int> lengths(static_cast<size_t>(batch), steps);
  check(lib.cudnnSetRNNDataDescriptor(plan.x, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, steps, batch,
                                      inputs, lengths.data(), nullptr),
        "cudnnSetRNNDataDescriptor");
  check(lib.cudnnSetRNNDataDescriptor(plan.y, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, steps, batch,
                                      outputs, lengths.data(), nullptr),
        "cudnnSetRNNDataDescriptor");
  const int sizes[] = {cells, batch, hidden}, strides[] = {batch * hidden, hidden, 1};
  check(lib.cudnnSetTensorNdDescriptor(plan.state, type, 3, sizes, strides), "cudnnSetTensorNdDescriptor");
  check(lib.cudnnGetRNNWeightSpaceSize(state.handle, plan.rnn, &plan.weights), "cudnnGetRNNWeightSpaceSize");
  check(lib.cudnnGetRNNTempSpaceSizes(state.handle, plan.rnn, CUDNN_FWD_MODE_TRAINING, plan.x,
                                      &plan.training_work, &plan.reserve),
        "cudnnGetRNNTempSpaceSizes");
  size_t none = 0;
  check(lib.cudnnGetRNNTempSpaceSizes(state.handle, plan.rnn, CUDNN_FWD_MODE_INFERENCE, plan.x,
                                      &plan.inference_work, &none),
        "cudnnGetRNNTempSpaceSizes");
  plan.usable = true;
}

}  // namespace

bool Plan::holds(const View& space, DType dtype, std::span<const RnnWeights> cells) const {
  if (!layout || !space.defined() || space.dtype != dtype || space.numel() < layout->elements ||
      cells.size() != layout->cells.size())
    return false;
  const auto lies = [&](const View& v, int64_t place) {
    return v.defined() ? place >= 0 && v.dtype == dtype && v.is_contiguous() &&
                             v.data == space.as<char>() + place * size_of(dtype)
                       : place < 0;
  };
  for (size_t i = 0; i < cells.size(); ++i) {
    const RnnPlaces& p = layout->cells[i];
    const RnnWeights& w = cells[i];
    if (!lies(w.w_ih, p.w_ih) || !lies(w.w_hh, p.w_hh) || !lies(w.b_ih, p.b_ih) || !lies(w.b_hh, p.b_hh))
      return false;
  }
  return true;
}

Job job_of(const RnnLayer& layer, const RnnInputs& in, RnnWeights& cell) {
  cell = {in.w_ih, in.w_hh, in.b_ih, in.b_hh};
  return {.stack = {.mode = layer.mode},
          .in = {in.x, in.h0, in.c0, {&cell, 1}},
          .reverse = layer.reverse,
          .layered = true};
}

DeviceState& state_of(int device) {
  static DeviceState* const all = new DeviceState[128];  // never destroyed
  return all[device];
}

void seed_states(CudaBackend& backend, const Library& lib, cudnnHandle_t handle,
                 cudnnDropoutDescriptor_t dropout, double p, void* states, size_t bytes, uint64_t seed) {
  with_room(backend, [&] {
    check(lib.cudnnSetDropoutDescriptor(dropout, handle, static_cast<float>(p), states, bytes, seed),
          "cudnnSetDropoutDescriptor for the random numbers of dropout");
  });
}

void make_handle(CudaBackend& backend, const Library& lib, cudnnHandle_t& handle) {
  if (handle) return;
  with_room(backend, [&] {
    cudnnHandle_t made = nullptr;
    check(lib.cudnnCreate(&made), "cudnnCreate");
    handle = made;
  });
}

Plan& plan_for(CudaBackend& backend, DeviceState& state, const Library& lib, const Job& job) {
  const bool recording = backend.records();
  const bool tf32 = job.dtype == kFloat32 && allow_tf32();
  const Key key = key_of(job, tf32);
  if (const auto found = state.plans.find(key); found != state.plans.end()) {
    lay_out(backend, state, *found->second, job, tf32);
    return *found->second;
  }
  std::unique_ptr<Plan> plan;
  try {
    make_handle(backend, lib, state.handle);
    plan.reset(new Plan{lib});
  } catch (const CudaError&) {
    cudaGetLastError();  // clears the error for the next launch
    state.broken = !recording;
    throw;
  }
  try {
    describe_dropout(backend, *plan, state, job.stack.dropout);
    with_room(backend, [&] { describe(*plan, state, job, tf32); });
    lay_out(backend, state, *plan, job, tf32);
  } catch (const CudaError&) {
    if (recording) throw;  // only this call fails; the next one tries again
  }
  if (state.plans.size() >= kMaxPlans) state.plans.clear(), state.layouts.clear();
  return *(state.plans[key] = std::move(plan));
}

}  // namespace weft::cuda::cudnn

#endif
