// rnn_seam.h over cuDNN's RNN API: one layer, one direction. Its gates come in our order (LSTM i f g o, GRU r z n with r applied to W_hn h + b_hn), each a
// block of its own in an opaque weight space that is filled before, and read after, each call. It runs forwards only: a reversed layer
// gets its sequences turned round. Sequences have the lengths of their descriptors; since 8.9.1 the array on the device is null. Bits
// repeat from run to run as far as cuDNN's do; its notes ask for CUBLAS_WORKSPACE_CONFIG=:4096:2.
#include <weft/kernels/cuda/rnn_seam.h>

#include <weft/kernels/cuda/cuda_backend.h>

#if !defined(WEFT_WITH_CUDNN)

namespace weft::cuda::cudnn {
namespace {
[[noreturn]] void missing() { throw CudaError("cudnn: this build has none"); }
}  // namespace
bool takes(CudaBackend&, const RnnLayer&, const RnnInputs&) { return false; }
int64_t reserve_size(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&) { missing(); }
void forward(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) { missing(); }
void backward(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, const View&, const View&, const View&, const RnnGrads&) { missing(); }
}  // namespace weft::cuda::cudnn

#else

#include <weft/kernels/cuda/device/cudnn.h>
#include <weft/kernels/cuda/device/relaxed_capture.h>

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::cudnn {

namespace {

constexpr size_t kMaxPlans = 256;

struct Sizes {
  int64_t steps, batch, inputs, hidden;
  int gates;
  DType dtype;
  Sizes(const RnnLayer& layer, const RnnInputs& in)
      : steps(in.x.size(0)), batch(in.x.size(1)), inputs(in.x.size(2)), hidden(in.w_hh.size(1)), gates(layer.gates()), dtype(in.x.dtype) {}
};

/// Descriptors and sizes of one kind of call.
struct Plan {
  const Library& lib;
  Descriptor<cudnnDropoutDescriptor_t> dropout{lib.cudnnCreateDropoutDescriptor, lib.cudnnDestroyDropoutDescriptor, "cudnnCreateDropoutDescriptor"};
  Descriptor<cudnnRNNDescriptor_t> rnn{lib.cudnnCreateRNNDescriptor, lib.cudnnDestroyRNNDescriptor, "cudnnCreateRNNDescriptor"};
  Descriptor<cudnnRNNDataDescriptor_t> x{lib.cudnnCreateRNNDataDescriptor, lib.cudnnDestroyRNNDataDescriptor, "cudnnCreateRNNDataDescriptor"};
  Descriptor<cudnnRNNDataDescriptor_t> y{lib.cudnnCreateRNNDataDescriptor, lib.cudnnDestroyRNNDataDescriptor, "cudnnCreateRNNDataDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> state{lib.cudnnCreateTensorDescriptor, lib.cudnnDestroyTensorDescriptor, "cudnnCreateTensorDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> matrix{lib.cudnnCreateTensorDescriptor, lib.cudnnDestroyTensorDescriptor, "cudnnCreateTensorDescriptor"};
  Descriptor<cudnnTensorDescriptor_t> bias{lib.cudnnCreateTensorDescriptor, lib.cudnnDestroyTensorDescriptor, "cudnnCreateTensorDescriptor"};
  bool usable = false;  // described without a refusal
  size_t weights = 0, reserve = 0, training_work = 0, inference_work = 0;
};

using Key = std::array<int64_t, 8>;
struct DeviceState {
  std::mutex mutex;  // held while a call is issued: the handle serves one thread at a time
  cudnnHandle_t handle = nullptr;
  bool broken = false;  // a part of the library is missing, or does not fit the driver: the own cell does the work
  std::map<Key, std::unique_ptr<Plan>> plans;
};
DeviceState& state_of(int device) {
  static DeviceState* const all = new DeviceState[128];  // used until the process ends
  return all[device];
}

cudnnDataType_t data_type(DType t) {
  return t == kFloat16 ? CUDNN_DATA_HALF : t == kBFloat16 ? CUDNN_DATA_BFLOAT16 : t == kFloat32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_DOUBLE;
}
cudnnRNNMode_t cell(RnnMode m) {
  return m == RnnMode::kLstm ? CUDNN_LSTM : m == RnnMode::kGru ? CUDNN_GRU : m == RnnMode::kTanh ? CUDNN_RNN_TANH : CUDNN_RNN_RELU;
}
bool biased(const RnnInputs& in) { return in.b_ih.defined() || in.b_hh.defined(); }

/// Throws: CudaError where cuDNN refuses the layer, in whichever call it does so.
void describe(Plan& plan, cudnnHandle_t handle, const RnnLayer& layer, const RnnInputs& in, bool tf32) {
  const Library& lib = plan.lib;
  const Sizes s(layer, in);
  const cudnnDataType_t type = data_type(s.dtype);
  const auto steps = static_cast<int>(s.steps), batch = static_cast<int>(s.batch), inputs = static_cast<int>(s.inputs), hidden = static_cast<int>(s.hidden);
  check(lib.cudnnSetDropoutDescriptor(plan.dropout, handle, 0, nullptr, 0, 0), "cudnnSetDropoutDescriptor");
  const cudnnMathType_t math = s.dtype == kFloat16 ? CUDNN_TENSOR_OP_MATH : s.dtype == kFloat32 && !tf32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
  check(lib.cudnnSetRNNDescriptor_v8(plan.rnn, CUDNN_RNN_ALGO_STANDARD, cell(layer.mode), biased(in) ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS, CUDNN_UNIDIRECTIONAL,
                                     CUDNN_LINEAR_INPUT, type, s.dtype == kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, math, inputs, hidden, hidden, 1, plan.dropout,
                                     CUDNN_RNN_PADDED_IO_DISABLED),
        "cudnnSetRNNDescriptor_v8");
  const std::vector<int> lengths(static_cast<size_t>(batch), steps);
  check(lib.cudnnSetRNNDataDescriptor(plan.x, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, steps, batch, inputs, lengths.data(), nullptr), "cudnnSetRNNDataDescriptor");
  check(lib.cudnnSetRNNDataDescriptor(plan.y, type, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, steps, batch, hidden, lengths.data(), nullptr), "cudnnSetRNNDataDescriptor");
  const int sizes[] = {1, batch, hidden}, strides[] = {batch * hidden, hidden, 1};
  check(lib.cudnnSetTensorNdDescriptor(plan.state, type, 3, sizes, strides), "cudnnSetTensorNdDescriptor");
  check(lib.cudnnGetRNNWeightSpaceSize(handle, plan.rnn, &plan.weights), "cudnnGetRNNWeightSpaceSize");
  check(lib.cudnnGetRNNTempSpaceSizes(handle, plan.rnn, CUDNN_FWD_MODE_TRAINING, plan.x, &plan.training_work, &plan.reserve), "cudnnGetRNNTempSpaceSizes");
  size_t none = 0;
  check(lib.cudnnGetRNNTempSpaceSizes(handle, plan.rnn, CUDNN_FWD_MODE_INFERENCE, plan.x, &plan.inference_work, &none), "cudnnGetRNNTempSpaceSizes");
  plan.usable = true;
}

/// The caller holds the state's mutex. `recording`: a graph is in the making, during which calls may fail that do not otherwise.
Plan& plan_for(DeviceState& state, const Library& lib, bool recording, const RnnLayer& layer, const RnnInputs& in) {
  const Sizes s(layer, in);
  const bool tf32 = s.dtype == kFloat32 && allow_tf32();
  const Key key{static_cast<int64_t>(layer.mode), static_cast<int64_t>(s.dtype), biased(in), tf32, s.steps, s.batch, s.inputs, s.hidden};
  if (const auto found = state.plans.find(key); found != state.plans.end()) return *found->second;
  const RelaxedCapture mode;  // it makes what later calls use, and records nothing
  std::unique_ptr<Plan> plan;
  try {
    if (!state.handle) check(lib.cudnnCreate(&state.handle), "cudnnCreate");
    plan.reset(new Plan{lib});
  } catch (const CudaError&) {
    cudaGetLastError();  // the next launch is not to find it
    state.broken = !recording;
    throw;
  }
  try {
    describe(*plan, state.handle, layer, in, tf32);
  } catch (const CudaError&) {
    if (recording) throw;  // for this call; the next one asks again
  }
  if (state.plans.size() >= kMaxPlans) state.plans.clear();
  return *(state.plans[key] = std::move(plan));
}

/// One call: the device's handle on the context's stream, and the plan.
struct Call {
  CudaBackend& backend;
  Context& context;
  DeviceState& state = state_of(backend.index());
  const std::lock_guard<std::mutex> lock{state.mutex};
  const Library& lib = *library();
  Plan& plan;
  Call(CudaBackend& b, Context& c, const RnnLayer& layer, const RnnInputs& in) : backend(b), context(c), plan(plan_for(state, lib, b.records(), layer, in)) {
    if (!plan.usable) throw CudaError(str("cudnn: it takes no layer of ", in.x.sizes, " with ", in.w_hh.size(1), " hidden of ", in.x.dtype, "; was allow_tf32 changed since its forward?"));
    check(lib.cudnnSetStream(state.handle, static_cast<cudaStream_t>(b.stream_of(c))), "cudnnSetStream");
  }
};

int64_t elements_of(const Plan& plan, DType dtype) { return static_cast<int64_t>(plan.reserve / static_cast<size_t>(size_of(dtype)) + 1); }

void expect_reserve(const Plan& plan, const View& reserve) {
  if (reserve.numel() != elements_of(plan, reserve.dtype))
    throw CudaError(str("cudnn: the reserve has ", reserve.numel(), " elements, the layer wants ", elements_of(plan, reserve.dtype), "; was allow_tf32 changed since?"));
}

/// A view as cuDNN wants it, without gaps; [T, ..] from the last step to the first when `turned`. kOut: finish() brings it to the view.
class Packed {
 public:
  enum class Flow { kIn, kOut };
  Packed(Call& call, const View& v, DType dtype, Flow flow, bool turned = false)
      : call_(call), target_(turned ? turn(v) : v), flow_(flow), in_place_(!v.defined() || (!turned && v.dtype == dtype && v.is_contiguous())),
        copy_(call.backend, call.context, in_place_ ? 0 : static_cast<size_t>(v.numel() * size_of(dtype))), view_(target_) {
    if (in_place_) return;
    view_ = {copy_.as<void>(), dtype, v.sizes, contiguous_strides(v.sizes)};
    if (flow == Flow::kIn) call.backend.copy(call.context, target_, view_);
  }
  void finish() const {
    if (!in_place_ && flow_ == Flow::kOut) call_.backend.copy(call_.context, view_, target_);
  }
  void* data() const { return view_.data; }

 private:
  static View turn(View v) {
    if (!v.defined() || v.size(0) == 0) return v;
    v.data = v.as<char>() + (v.size(0) - 1) * v.stride(0) * size_of(v.dtype);
    v.strides[0] = -v.stride(0);
    return v;
  }
  Call& call_;
  View target_;
  Flow flow_;
  bool in_place_;
  Scratch copy_;
  View view_;
};

/// Calls f(ours, theirs) for each weight and bias, where `theirs` is a gate's block in the weight space and `ours` the same rows of the layer's view; blocks
/// that follow one another in both are one.
template <class F>
void each_weight(Call& call, const Sizes& s, void* space, const View& w_ih, const View& w_hh, const View& b_ih, const View& b_hh, const F& f) {
  const auto part = [&](const View& whole, int first_id, bool matrix) {
    View ours = whole, theirs;
    int64_t rows = 0, done = 0;
    const int64_t columns = matrix ? (first_id == 0 ? s.inputs : s.hidden) : 1;
    const auto flush = [&] {
      if (rows == 0) return;
      theirs.dtype = s.dtype;
      theirs.sizes = matrix ? Shape{rows, columns} : Shape{rows};
      theirs.strides = contiguous_strides(theirs.sizes);
      if (whole.defined()) {
        ours = whole;
        ours.data = whole.as<char>() + done * whole.stride(0) * size_of(whole.dtype);
        ours.sizes[0] = rows;
      }
      f(ours, theirs);
      done += rows, rows = 0;
    };
    for (int g = 0; g < s.gates; ++g) {
      void *m = nullptr, *b = nullptr;
      check(call.lib.cudnnGetRNNWeightParams(call.state.handle, call.plan.rnn, 0, call.plan.weights, space, first_id + g, call.plan.matrix, &m, call.plan.bias, &b),
            "cudnnGetRNNWeightParams");
      void* const at = matrix ? m : b;
      if (rows > 0 && at != theirs.as<char>() + rows * columns * size_of(s.dtype)) flush();
      if (rows == 0) theirs.data = at;
      rows += s.hidden;
    }
    flush();
  };
  part(w_ih, 0, true);
  part(w_hh, s.gates, true);
  if (!b_ih.defined() && !b_hh.defined()) return;
  part(b_ih, 0, false);
  part(b_hh, s.gates, false);
}

void pack_weights(Call& call, const Sizes& s, const RnnInputs& in, void* space) {
  each_weight(call, s, space, in.w_ih, in.w_hh, in.b_ih, in.b_hh, [&](const View& ours, const View& theirs) {
    if (ours.defined()) call.backend.copy(call.context, ours, theirs);
    else call.backend.fill(call.context, 0, theirs);  // one bias of two
  });
}

}  // namespace

bool takes(CudaBackend& backend, const RnnLayer& layer, const RnnInputs& in) {
  if (!use_cudnn() || !is_floating(in.x.dtype)) return false;
  const Sizes s(layer, in);
  for (const int64_t size : {s.steps, s.batch, s.inputs, s.hidden})
    if (size < 1 || size > std::numeric_limits<int32_t>::max()) return false;
  if (s.batch * s.hidden > std::numeric_limits<int32_t>::max()) return false;
  const Library* const lib = library();
  if (!lib) return false;
  DeviceState& state = state_of(backend.index());
  const std::lock_guard lock(state.mutex);
  if (state.broken) return false;
  try {
    return plan_for(state, *lib, backend.records(), layer, in).usable;
  } catch (const CudaError&) {
    return false;
  }
}

int64_t reserve_size(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in) {
  const Call call(backend, context, layer, in);
  return elements_of(call.plan, in.x.dtype);
}

void forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out) {
  using Flow = Packed::Flow;
  Call call(backend, context, layer, in);
  const Plan& plan = call.plan;
  const Sizes s(layer, in);
  const bool lstm = layer.mode == RnnMode::kLstm, training = out.reserve.defined();
  if (training) expect_reserve(plan, out.reserve);
  const Packed x(call, in.x, s.dtype, Flow::kIn, layer.reverse), h0(call, in.h0, s.dtype, Flow::kIn), c0(call, lstm ? in.c0 : View{}, s.dtype, Flow::kIn);
  const Packed y(call, out.y, s.dtype, Flow::kOut, layer.reverse), hn(call, out.hn, s.dtype, Flow::kOut), cn(call, lstm ? out.cn : View{}, s.dtype, Flow::kOut);
  const Scratch weights(backend, context, plan.weights), work(backend, context, training ? plan.training_work : plan.inference_work);
  pack_weights(call, s, in, weights.as<void>());
  check(call.lib.cudnnRNNForward(call.state.handle, plan.rnn, training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, nullptr, plan.x, x.data(), plan.y, y.data(),
                                 plan.state, h0.data(), hn.data(), plan.state, c0.data(), cn.data(), plan.weights, weights.as<void>(), work.bytes(), work.as<void>(),
                                 training ? plan.reserve : 0, out.reserve.data),
        "cudnnRNNForward");
  y.finish(), hn.finish(), cn.finish();
}

void backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnGrads& grads) {
  using Flow = Packed::Flow;
  Call call(backend, context, layer, in);
  const Plan& plan = call.plan;
  const Library& lib = call.lib;
  const Sizes s(layer, in);
  const bool lstm = layer.mode == RnnMode::kLstm;
  expect_reserve(plan, out.reserve);
  const Packed x(call, in.x, s.dtype, Flow::kIn, layer.reverse), h0(call, in.h0, s.dtype, Flow::kIn), c0(call, lstm ? in.c0 : View{}, s.dtype, Flow::kIn);
  const Packed y(call, out.y, s.dtype, Flow::kIn, layer.reverse), late_h(call, dhn, s.dtype, Flow::kIn), late_c(call, lstm ? dcn : View{}, s.dtype, Flow::kIn);
  const Packed grad(call, dy, s.dtype, Flow::kIn, layer.reverse), dh0(call, grads.dh0, s.dtype, Flow::kOut), dc0(call, lstm ? grads.dc0 : View{}, s.dtype, Flow::kOut);
  const Packed dx(call, grads.dx, s.dtype, Flow::kOut, layer.reverse);
  const auto element = static_cast<size_t>(size_of(s.dtype)), rows = static_cast<size_t>(s.steps * s.batch);
  // cuDNN writes dx and reads dy whether or not anybody asked.
  const Scratch unwanted(backend, context, grads.dx.defined() ? 0 : rows * static_cast<size_t>(s.inputs) * element);
  const Scratch zeros(backend, context, dy.defined() ? 0 : rows * static_cast<size_t>(s.hidden) * element);
  void* const stream = backend.stream_of(context);
  if (!dy.defined()) runtime::fill(zeros.as<void>(), 0, zeros.bytes(), stream);
  const Scratch weights(backend, context, plan.weights), work(backend, context, plan.training_work), reserve(backend, context, plan.reserve);
  pack_weights(call, s, in, weights.as<void>());
  runtime::copy(reserve.as<void>(), out.reserve.data, plan.reserve, stream);  // it is written to, and a retained graph comes here again
  check(lib.cudnnRNNBackwardData_v8(call.state.handle, plan.rnn, nullptr, plan.y, y.data(), dy.defined() ? grad.data() : zeros.as<void>(), plan.x,
                                    grads.dx.defined() ? dx.data() : unwanted.as<void>(), plan.state, h0.data(), late_h.data(), dh0.data(), plan.state, c0.data(), late_c.data(), dc0.data(),
                                    plan.weights, weights.as<void>(), work.bytes(), work.as<void>(), plan.reserve, reserve.as<void>()),
        "cudnnRNNBackwardData_v8");
  dx.finish(), dh0.finish(), dc0.finish();
  const View wanted[] = {grads.dw_ih, grads.dw_hh, grads.db_ih, grads.db_hh};
  if (!wanted[0].defined() && !wanted[1].defined() && !wanted[2].defined() && !wanted[3].defined()) return;
  runtime::fill(weights.as<void>(), 0, plan.weights, stream);  // the weights are not needed any more; gradients are added to what lies there
  check(lib.cudnnRNNBackwardWeights_v8(call.state.handle, plan.rnn, CUDNN_WGRAD_MODE_ADD, nullptr, plan.x, x.data(), plan.state, h0.data(), plan.y, y.data(), plan.weights,
                                       weights.as<void>(), work.bytes(), work.as<void>(), plan.reserve, reserve.as<void>()),
        "cudnnRNNBackwardWeights_v8");
  each_weight(call, s, weights.as<void>(), grads.dw_ih, grads.dw_hh, grads.db_ih, grads.db_hh, [&](const View& ours, const View& theirs) {
    if (ours.defined()) backend.copy(context, theirs, ours);
  });
}

}  // namespace weft::cuda::cudnn

#endif
