// rnn_seam.h over cuDNN's RNN API: a stack of layers, or one direction of one. Gates come in our order (LSTM i f g o, GRU r z n with r applied to
// W_hn h + b_hn), each a block of its own in an opaque weight space that is filled before, and read after, each call. A direction of its own runs
// forwards only: a reversed layer gets its sequences turned round. Sequences have the lengths of their descriptors; since 8.9.1 the array on
// the device is null. Bits repeat from run to run as far as cuDNN's do; its notes ask for CUBLAS_WORKSPACE_CONFIG=:4096:2.
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
void backward(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, const View&,
              const View&, const View&, const RnnGrads&) {
  missing();
}
std::optional<RnnStackRoom> takes(CudaBackend&, const Context&, const RnnStack&, const RnnStackInputs&) {
  return std::nullopt;
}
void forward(CudaBackend&, Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&) {
  missing();
}
void backward(CudaBackend&, Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&,
              const View&, const View&, const View&, const RnnStackGrads&) {
  missing();
}
}  // namespace weft::cuda::cudnn

#else

#include <weft/kernels/cuda/device/cudnn.h>
#include <weft/kernels/cuda/device/relaxed_capture.h>
#include <weft/kernels/cuda/device/with_room.h>

#include <array>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::cudnn {

namespace {

constexpr size_t kMaxPlans = 256;

/// What cuDNN is to run: a stack, or a direction of a layer, which is a stack of one and may be turned round.
struct Job {
  RnnStack stack;
  RnnStackInputs in;
  bool reverse = false;
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
/// Of a layer; `cell` becomes its weights.
Job job_of(const RnnLayer& layer, const RnnInputs& in, RnnWeights& cell) {
  cell = {in.w_ih, in.w_hh, in.b_ih, in.b_hh};
  return {.stack = {.mode = layer.mode}, .in = {in.x, in.h0, in.c0, {&cell, 1}}, .reverse = layer.reverse};
}

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
  bool usable = false;  // described without a refusal
  size_t weights = 0, reserve = 0, training_work = 0, inference_work = 0;
};

/// Random numbers of dropout: all plans of a device draw from the same states, one call after the other.
struct Random {
  void* states = nullptr;  // used until the process ends
  size_t bytes = 0;
  uint64_t epoch = 0;  // of the generator that they were seeded from
  runtime::Stream stream = nullptr;
  runtime::Event drawn = nullptr;  // behind the last call that drew, on `stream`
};

using Key = std::array<int64_t, 11>;
struct DeviceState {
  std::mutex mutex;  // held while a call is issued: the handle serves one thread at a time
  cudnnHandle_t handle = nullptr;
  cudnnHandle_t recording_handle =
      nullptr;  // cuDNN's own streams of a handle belong to a recording that used it until that ends
  bool broken =
      false;  // a part of the library is missing, or does not fit the driver: the own cell does the work
  Random random;
  std::map<Key, std::unique_ptr<Plan>> plans;
};
DeviceState& state_of(int device) {
  static DeviceState* const all = new DeviceState[128];  // used until the process ends
  return all[device];
}

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

/// Sets states going from a seed.
void seed_states(CudaBackend& backend, const Library& lib, cudnnHandle_t handle,
                 cudnnDropoutDescriptor_t dropout, double p, void* states, size_t bytes, uint64_t seed) {
  with_room(backend, [&] {
    check(lib.cudnnSetDropoutDescriptor(dropout, handle, static_cast<float>(p), states, bytes, seed),
          "cudnnSetDropoutDescriptor for the random numbers of dropout");
  });
}

/// The plan's descriptor of dropout. The states are made by the first plan that has any.
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
    check(lib.cudnnSetStream(state.handle, nullptr), "cudnnSetStream");  // the last call's may be gone
    seed_states(backend, lib, state.handle, plan.dropout, p, states, random.bytes, 0);
  } catch (...) {
    runtime::release(states);
    throw;
  }
  random.states = states;
  random.drawn = runtime::new_event(false);
  runtime::record(random.drawn, nullptr);
}

/// Throws: CudaError where cuDNN refuses the job, in whichever call it does so.
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

void make_handle(CudaBackend& backend, const Library& lib, cudnnHandle_t& handle) {
  if (handle) return;
  with_room(backend, [&] {
    cudnnHandle_t made = nullptr;
    check(lib.cudnnCreate(&made), "cudnnCreate");
    handle = made;
  });
}

/// The caller holds the state's mutex. While a graph is in the making, calls may fail that do not otherwise. Throws: OutOfMemoryError, of which nothing is kept.
Plan& plan_for(CudaBackend& backend, DeviceState& state, const Library& lib, const Job& job) {
  const bool recording = backend.records();
  const bool tf32 = job.dtype == kFloat32 && allow_tf32();
  const Key key{static_cast<int64_t>(job.stack.mode),
                static_cast<int64_t>(job.dtype),
                job.biased(),
                tf32,
                job.steps,
                job.batch,
                job.inputs,
                job.hidden,
                job.stack.layers,
                job.stack.both,
                std::bit_cast<int64_t>(job.stack.dropout)};
  if (const auto found = state.plans.find(key); found != state.plans.end()) return *found->second;
  std::unique_ptr<Plan> plan;
  try {
    make_handle(backend, lib, state.handle);
    plan.reset(new Plan{lib});
  } catch (const CudaError&) {
    cudaGetLastError();  // the next launch is not to find it
    state.broken = !recording;
    throw;
  }
  try {
    describe_dropout(backend, *plan, state, job.stack.dropout);
    with_room(backend, [&] { describe(*plan, state, job, tf32); });
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
  const RelaxedCapture
      mode;  // while a graph is recorded: cuDNN allocates in the first calls on a handle, and none of that is recorded
  const Library& lib = *library();
  Plan& plan;
  cudnnHandle_t handle = state.handle;
  Call(CudaBackend& b, Context& c, const Job& job)
      : backend(b), context(c), plan(plan_for(b, state, lib, job)) {
    if (!plan.usable)
      throw CudaError(str("cudnn: it takes no layer of ", job.in.x.sizes, " with ", job.hidden, " hidden of ",
                          job.dtype, "; was allow_tf32 changed since its forward?"));
    if (b.recording(c)) {
      make_handle(b, lib, state.recording_handle);
      handle = state.recording_handle;
    }
    check(lib.cudnnSetStream(handle, static_cast<cudaStream_t>(b.stream_of(c))), "cudnnSetStream");
  }
};

int64_t elements_of(size_t bytes, DType dtype) {
  return static_cast<int64_t>(bytes / static_cast<size_t>(size_of(dtype)) + 1);
}

void expect_room(const char* what, const View& given, size_t bytes) {
  if (given.numel() != elements_of(bytes, given.dtype))
    throw CudaError(str("cudnn: the ", what, " has ", given.numel(), " elements, the layer wants ",
                        elements_of(bytes, given.dtype), "; was allow_tf32 changed since?"));
}

/// From here on the call's stream may draw. Numbers go on from where the last call left them, unless the generator was set anew.
void begin_draws(Call& call, const RnnStack& stack) {
  Random& random = call.state.random;
  const runtime::Stream stream = call.backend.stream_of(call.context);
  if (random.stream != stream) runtime::wait(stream, random.drawn);
  if (random.epoch == stack.key_epoch) return;
  const uint64_t seed = stack.key.seed ^ (stack.key.offset + 1) * 0x9E3779B97F4A7C15u;
  seed_states(call.backend, call.lib, call.handle, call.plan.dropout, stack.dropout, random.states,
              random.bytes, seed);
  random.epoch = stack.key_epoch;
}
void end_draws(Call& call) {
  Random& random = call.state.random;
  random.stream = call.backend.stream_of(call.context);
  runtime::record(random.drawn, random.stream);
}

/// A view as cuDNN wants it, without gaps; [T, ..] from the last step to the first when `turned`. kOut: finish() brings it to the view.
class Packed {
 public:
  enum class Flow { kIn, kOut };
  Packed(Call& call, const View& v, DType dtype, Flow flow, bool turned = false)
      : call_(call),
        target_(turned ? turn(v) : v),
        flow_(flow),
        in_place_(!v.defined() || (!turned && v.dtype == dtype && v.is_contiguous())),
        copy_(call.backend, call.context, in_place_ ? 0 : static_cast<size_t>(v.numel() * size_of(dtype))),
        view_(target_) {
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

/// Calls f(ours, theirs) for each weight and bias of a cell, where `theirs` is a gate's block in the weight space and `ours` the same rows of the cell's view;
/// blocks that follow one another in both are one.
template <class F>
void each_weight(Call& call, const Job& job, void* space, int64_t cell, const RnnWeights& w, const F& f) {
  const auto part = [&](const View& whole, int first_id, bool matrix) {
    View ours = whole, theirs;
    int64_t rows = 0, done = 0;
    const int64_t columns = !matrix ? 1 : first_id == 0 ? job.inputs_of(cell) : job.hidden;
    const auto flush = [&] {
      if (rows == 0) return;
      theirs.dtype = job.dtype;
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
    for (int g = 0; g < job.gates(); ++g) {
      void *m = nullptr, *b = nullptr;
      check(call.lib.cudnnGetRNNWeightParams(call.handle, call.plan.rnn, static_cast<int32_t>(cell),
                                             call.plan.weights, space, first_id + g, call.plan.matrix, &m,
                                             call.plan.bias, &b),
            "cudnnGetRNNWeightParams");
      void* const at = matrix ? m : b;
      if (rows > 0 && at != theirs.as<char>() + rows * columns * size_of(job.dtype)) flush();
      if (rows == 0) theirs.data = at;
      rows += job.hidden;
    }
    flush();
  };
  part(w.w_ih, 0, true);
  part(w.w_hh, job.gates(), true);
  if (!job.biased()) return;
  part(w.b_ih, 0, false);
  part(w.b_hh, job.gates(), false);
}

void pack_weights(Call& call, const Job& job, void* space) {
  for (int64_t cell = 0; cell < job.stack.cells(); ++cell)
    each_weight(call, job, space, cell, job.in.cells[static_cast<size_t>(cell)],
                [&](const View& ours, const View& theirs) {
                  if (ours.defined()) call.backend.copy(call.context, ours, theirs);
                  else call.backend.fill(call.context, 0, theirs);  // one bias of two
                });
}

/// Elements of the weights and of the reserve, where cuDNN is there, wanted, and takes the job.
std::optional<RnnStackRoom> room_of(CudaBackend& backend, const Job& job) {
  if (!use_cudnn() || !is_floating(job.dtype)) return std::nullopt;
  for (const int64_t size : {job.steps, job.batch, job.inputs, job.hidden, job.stack.layers})
    if (size < 1 || size > std::numeric_limits<int32_t>::max() / 2) return std::nullopt;
  if (job.batch * job.hidden > std::numeric_limits<int32_t>::max()) return std::nullopt;
  const Library* const lib = library();
  if (!lib) return std::nullopt;
  DeviceState& state = state_of(backend.index());
  const std::lock_guard lock(state.mutex);
  if (state.broken) return std::nullopt;
  const RelaxedCapture mode;
  try {
    const Plan& plan = plan_for(backend, state, *lib, job);
    if (backend.thread_records()) make_handle(backend, *lib, state.recording_handle);
    if (plan.usable)
      return RnnStackRoom{elements_of(plan.weights, job.dtype), elements_of(plan.reserve, job.dtype)};
  } catch (const CudaError&) {
  } catch (const OutOfMemoryError&) {  // another way may need less
  }
  return std::nullopt;
}

void run_forward(CudaBackend& backend, Context& context, const Job& job, const RnnStackOutputs& out) {
  using Flow = Packed::Flow;
  Call call(backend, context, job);
  const Plan& plan = call.plan;
  const bool training = out.reserve.defined(), draws = training && job.stack.dropout > 0;
  if (training) expect_room("reserve", out.reserve, plan.reserve);
  if (out.weights.defined()) expect_room("space of the weights", out.weights, plan.weights);
  const Packed x(call, job.in.x, job.dtype, Flow::kIn, job.reverse),
      h0(call, job.in.h0, job.dtype, Flow::kIn),
      c0(call, job.lstm() ? job.in.c0 : View{}, job.dtype, Flow::kIn);
  const Packed y(call, out.y, job.dtype, Flow::kOut, job.reverse), hn(call, out.hn, job.dtype, Flow::kOut),
      cn(call, job.lstm() ? out.cn : View{}, job.dtype, Flow::kOut);
  const Scratch unkept(backend, context, out.weights.defined() ? 0 : plan.weights),
      work(backend, context, training ? plan.training_work : plan.inference_work);
  void* const weights = out.weights.defined() ? out.weights.data : unkept.as<void>();
  pack_weights(call, job, weights);
  if (draws) begin_draws(call, job.stack);
  with_room(backend, [&] {
    check(call.lib.cudnnRNNForward(call.handle, plan.rnn,
                                   training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, nullptr,
                                   plan.x, x.data(), plan.y, y.data(), plan.state, h0.data(), hn.data(),
                                   plan.state, c0.data(), cn.data(), plan.weights, weights, work.bytes(),
                                   work.as<void>(), training ? plan.reserve : 0, out.reserve.data),
          "cudnnRNNForward");
  });
  if (draws) end_draws(call);
  y.finish(), hn.finish(), cn.finish();
}

void run_backward(CudaBackend& backend, Context& context, const Job& job, const RnnStackOutputs& out,
                  const View& dy, const View& dhn, const View& dcn, const RnnStackGrads& grads) {
  using Flow = Packed::Flow;
  Call call(backend, context, job);
  const Plan& plan = call.plan;
  const Library& lib = call.lib;
  expect_room("reserve", out.reserve, plan.reserve);
  const Packed x(call, job.in.x, job.dtype, Flow::kIn, job.reverse),
      h0(call, job.in.h0, job.dtype, Flow::kIn),
      c0(call, job.lstm() ? job.in.c0 : View{}, job.dtype, Flow::kIn);
  const Packed y(call, out.y, job.dtype, Flow::kIn, job.reverse), late_h(call, dhn, job.dtype, Flow::kIn),
      late_c(call, job.lstm() ? dcn : View{}, job.dtype, Flow::kIn);
  const Packed grad(call, dy, job.dtype, Flow::kIn, job.reverse), dh0(call, grads.dh0, job.dtype, Flow::kOut),
      dc0(call, job.lstm() ? grads.dc0 : View{}, job.dtype, Flow::kOut);
  const Packed dx(call, grads.dx, job.dtype, Flow::kOut, job.reverse);
  const auto element = static_cast<size_t>(size_of(job.dtype)),
             rows = static_cast<size_t>(job.steps * job.batch);
  // cuDNN writes dx and reads dy whether or not anybody asked.
  const Scratch unwanted(backend, context,
                         grads.dx.defined() ? 0 : rows * static_cast<size_t>(job.inputs) * element);
  const Scratch zeros(
      backend, context,
      dy.defined() ? 0 : rows * static_cast<size_t>(job.stack.directions() * job.hidden) * element);
  void* const stream = backend.stream_of(context);
  if (!dy.defined()) runtime::fill(zeros.as<void>(), 0, zeros.bytes(), stream);
  bool wanted = false;
  for (const RnnWeights& w : grads.cells)
    wanted = wanted || w.w_ih.defined() || w.w_hh.defined() || w.b_ih.defined() || w.b_hh.defined();
  const bool packed = out.weights.defined();
  // Weights that were packed for this call alone make room for their gradients.
  const Scratch space(backend, context, packed && !wanted ? 0 : plan.weights),
      work(backend, context, plan.training_work), reserve(backend, context, plan.reserve);
  if (!packed) pack_weights(call, job, space.as<void>());
  with_room(backend, [&] {
    runtime::copy(reserve.as<void>(), out.reserve.data, plan.reserve,
                  stream);  // it is written to, and a retained graph comes here again
    check(lib.cudnnRNNBackwardData_v8(
              call.handle, plan.rnn, nullptr, plan.y, y.data(), dy.defined() ? grad.data() : zeros.as<void>(),
              plan.x, grads.dx.defined() ? dx.data() : unwanted.as<void>(), plan.state, h0.data(),
              late_h.data(), dh0.data(), plan.state, c0.data(), late_c.data(), dc0.data(), plan.weights,
              packed ? out.weights.data : space.as<void>(), work.bytes(), work.as<void>(), plan.reserve,
              reserve.as<void>()),
          "cudnnRNNBackwardData_v8");
  });
  dx.finish(), dh0.finish(), dc0.finish();
  if (!wanted) return;
  with_room(backend, [&] {
    runtime::fill(space.as<void>(), 0, plan.weights, stream);  // gradients are added to what lies there
    check(lib.cudnnRNNBackwardWeights_v8(call.handle, plan.rnn, CUDNN_WGRAD_MODE_ADD, nullptr, plan.x,
                                         x.data(), plan.state, h0.data(), plan.y, y.data(), plan.weights,
                                         space.as<void>(), work.bytes(), work.as<void>(), plan.reserve,
                                         reserve.as<void>()),
          "cudnnRNNBackwardWeights_v8");
  });
  for (int64_t cell = 0; cell < job.stack.cells(); ++cell)
    each_weight(call, job, space.as<void>(), cell, grads.cells[static_cast<size_t>(cell)],
                [&](const View& ours, const View& theirs) {
                  if (ours.defined()) backend.copy(context, theirs, ours);
                });
}

}  // namespace

bool takes(CudaBackend& backend, const RnnLayer& layer, const RnnInputs& in) {
  RnnWeights cell;
  return room_of(backend, job_of(layer, in, cell)).has_value();
}
int64_t reserve_size(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in) {
  RnnWeights cell;
  const Call call(backend, context, job_of(layer, in, cell));
  return elements_of(call.plan.reserve, in.x.dtype);
}
void forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
             const RnnOutputs& out) {
  RnnWeights cell;
  run_forward(backend, context, job_of(layer, in, cell), {out.y, out.hn, out.cn, {}, out.reserve});
}
void backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
              const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnGrads& grads) {
  RnnWeights cell;
  const RnnWeights wanted{grads.dw_ih, grads.dw_hh, grads.db_ih, grads.db_hh};
  run_backward(backend, context, job_of(layer, in, cell), {out.y, out.hn, out.cn, {}, out.reserve}, dy, dhn,
               dcn, {grads.dx, grads.dh0, grads.dc0, {&wanted, 1}});
}

std::optional<RnnStackRoom> takes(CudaBackend& backend, const Context& context, const RnnStack& stack,
                                  const RnnStackInputs& in) {
  if (stack.dropout > 0 && (!cudnn_dropout() || backend.recording(context))) return std::nullopt;
  return room_of(backend, {.stack = stack, .in = in});
}
void forward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
             const RnnStackOutputs& out) {
  run_forward(backend, context, {.stack = stack, .in = in}, out);
}
void backward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
              const RnnStackOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnStackGrads& grads) {
  run_backward(backend, context, {.stack = stack, .in = in}, out, dy, dhn, dcn, grads);
}

}  // namespace weft::cuda::cudnn

#endif
