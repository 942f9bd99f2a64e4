// rnn_seam.h over cuDNN's RNN API: a stack of layers, or one direction of one layer. Gates are in weft's
// order (LSTM i f g o, GRU r z n with r applied to W_hn h + b_hn). Each gate is a block in an opaque weight
// space, which is filled before each call and read after it. Weights of a stack that lie as in that space
// (Plan::holds) are used where they are, and so are such gradients. The library cuDNN runs a single direction
// forwards only, so a reversed layer gets reversed sequences. All sequences have the length in the
// descriptor; since 8.9.1 the array of lengths on the device is null. Bits repeat as far as cuDNN's do; its
// documentation asks for CUBLAS_WORKSPACE_CONFIG=:4096:2.
#include <weft/kernels/cuda/host/rnn_seam.h>

#include <weft/kernels/cuda/host/cuda_backend.h>

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
void prepare_recording(CudaBackend&) noexcept {}
}  // namespace weft::cuda::cudnn

#else

#include <weft/kernels/cuda/toolkit/relaxed_capture.h>
#include <weft/kernels/cuda/toolkit/rnn_cudnn_plan.h>
#include <weft/kernels/cuda/toolkit/with_room.h>

#include <limits>
#include <memory>
#include <vector>

#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::cudnn {

namespace {

/// One call: the device's handle on the context's stream, and the plan.
struct Call {
  CudaBackend& backend;
  Context& context;
  DeviceState& state = state_of(backend.index());
  const std::lock_guard<std::mutex> lock{state.mutex};
  // during a recording: cuDNN allocates in the first calls on a handle, which must not be recorded
  const RelaxedCapture mode;
  const Library& lib = *library();
  Plan& plan;
  cudnnHandle_t handle = state.handle;
  Call(CudaBackend& b, Context& c, const Job& job)
      : backend(b), context(c), plan(plan_for(b, state, lib, job)) {
    if (!plan.usable)
      throw CudaError(str("cudnn: it takes no layer of ", job.in.x.sizes, " with ", job.hidden, " hidden of ",
                          job.dtype, "; was allow_tf32 changed since its forward?"));
    if (job.prepares || b.recording(c)) {
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

/// Prepares the random states for the call's stream. They continue after the last call, unless the generator
/// was reseeded.
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

/// A view as dense memory for cuDNN; with `turned`, [T, ..] from the last step to the first. kOut: finish()
/// copies it back to the view.
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

/// Calls f(ours, theirs) for each weight and bias of a cell. `theirs` is a gate's block in the weight space,
/// `ours` the same rows of the cell's view. Blocks that are adjacent in both are joined.
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

/// Sizes of weights and reserve if cuDNN is found, enabled and accepts the job, else nullopt.
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
      return RnnStackRoom{.weights = elements_of(plan.weights, job.dtype),
                          .reserve = elements_of(plan.reserve, job.dtype),
                          .layout = plan.layout,
                          .in_place = plan.holds(job.in.space, job.dtype, job.in.cells)};
  } catch (const CudaError&) {
    // nothing can be added to a spoilt recording, and this is its cause
    if (runtime::capture_failed(backend.stream_of({}))) throw;
  } catch (const OutOfMemoryError&) {  // another implementation may need less memory
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
  const bool kept = out.weights.defined(),
             in_place = !kept && plan.holds(job.in.space, job.dtype, job.in.cells);
  const Scratch unkept(backend, context, kept || in_place ? 0 : plan.weights),
      work(backend, context, training ? plan.training_work : plan.inference_work);
  void* const weights = kept ? out.weights.data : in_place ? job.in.space.data : unkept.as<void>();
  if (!in_place) pack_weights(call, job, weights);
  if (draws) begin_draws(call, job.stack);
  with_room(backend, [&] {
    const TraceSpan span("cudnnRNNForward", backend.stream_of(context));
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
  // cuDNN always writes dx and reads dy.
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
  const View& given = out.weights.defined()                               ? out.weights
                      : plan.holds(job.in.space, job.dtype, job.in.cells) ? job.in.space
                                                                          : View{};
  const bool packs = !given.defined(), gathers = wanted && !plan.holds(grads.space, job.dtype, grads.cells);
  // Gradients that are copied take the place of weights that were packed for this call.
  const Scratch space(backend, context, packs || gathers ? plan.weights : 0),
      work(backend, context, plan.training_work), reserve(backend, context, plan.reserve);
  void* const weights = packs ? space.as<void>() : given.data;
  void* const sums = gathers ? space.as<void>() : grads.space.data;
  if (packs) pack_weights(call, job, weights);
  with_room(backend, [&] {
    const TraceSpan span("cudnnRNNBackwardData", stream);
    // cuDNN writes to it, and a retained graph needs it again
    runtime::copy(reserve.as<void>(), out.reserve.data, plan.reserve, stream);
    check(lib.cudnnRNNBackwardData_v8(
              call.handle, plan.rnn, nullptr, plan.y, y.data(), dy.defined() ? grad.data() : zeros.as<void>(),
              plan.x, grads.dx.defined() ? dx.data() : unwanted.as<void>(), plan.state, h0.data(),
              late_h.data(), dh0.data(), plan.state, c0.data(), late_c.data(), dc0.data(), plan.weights,
              weights, work.bytes(), work.as<void>(), plan.reserve, reserve.as<void>()),
          "cudnnRNNBackwardData_v8");
  });
  dx.finish(), dh0.finish(), dc0.finish();
  if (!wanted) return;
  with_room(backend, [&] {
    const TraceSpan span("cudnnRNNBackwardWeights", stream);
    runtime::fill(sums, 0, plan.weights, stream);  // cuDNN adds gradients to the memory
    check(
        lib.cudnnRNNBackwardWeights_v8(call.handle, plan.rnn, CUDNN_WGRAD_MODE_ADD, nullptr, plan.x, x.data(),
                                       plan.state, h0.data(), plan.y, y.data(), plan.weights, sums,
                                       work.bytes(), work.as<void>(), plan.reserve, reserve.as<void>()),
        "cudnnRNNBackwardWeights_v8");
  });
  if (!gathers) return;
  for (int64_t cell = 0; cell < job.stack.cells(); ++cell)
    each_weight(call, job, space.as<void>(), cell, grads.cells[static_cast<size_t>(cell)],
                [&](const View& ours, const View& theirs) {
                  if (ours.defined()) backend.copy(context, theirs, ours);
                });
}

/// One call of each kind on the handle for recordings, for a small stack of two layers.
void first_calls(CudaBackend& backend) {
  constexpr int64_t kLayers = 2, kSteps = 2, kBatch = 1, kHidden = 8, kGates = 4;
  constexpr int64_t kWeights = kGates * kHidden * kHidden, kRows = kSteps * kBatch * kHidden,
                    kStates = kLayers * kBatch * kHidden;
  Context context{};
  const auto zeros = [&](int64_t numel) {
    auto memory = std::make_unique<Scratch>(backend, context, static_cast<size_t>(numel) * sizeof(float));
    runtime::fill(memory->as<void>(), 0, memory->bytes(), backend.stream_of(context));
    return memory;
  };
  const auto inputs = zeros(2 * kLayers * kWeights + kRows + 2 * kStates),
             results = zeros(2 * kLayers * kWeights + 4 * kRows + 8 * kStates);
  const auto place = [](float*& at, const Shape& sizes) {
    const View view{at, kFloat32, sizes, contiguous_strides(sizes)};
    at += view.numel();
    return view;
  };
  const Shape matrix{kGates * kHidden, kHidden}, sequence{kSteps, kBatch, kHidden},
      states{kLayers, kBatch, kHidden};
  float *in = inputs->as<float>(), *out = results->as<float>();
  std::vector<RnnWeights> weights(kLayers), grads(kLayers);
  for (RnnWeights& w : weights) w.w_ih = place(in, matrix), w.w_hh = place(in, matrix);
  for (RnnWeights& w : grads) w.w_ih = place(out, matrix), w.w_hh = place(out, matrix);
  Job job{.stack = {.layers = kLayers},
          .in = {place(in, sequence), place(in, states), place(in, states), weights},
          .prepares = true};
  const auto room = room_of(backend, job);
  if (!room) throw CudaError("cudnn: it takes no small stack");
  const auto reserve = zeros(room->reserve);
  RnnStackOutputs to{place(out, sequence), place(out, states), place(out, states), {}, {}};
  run_forward(backend, context, job, to);
  to.reserve = {reserve->as<void>(), kFloat32, {room->reserve}, {1}};
  run_forward(backend, context, job, to);
  run_backward(backend, context, job, to, place(out, sequence), place(out, states), place(out, states),
               {place(out, sequence), place(out, states), place(out, states), grads});
  runtime::synchronize(backend.stream_of(context));
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

void prepare_recording(CudaBackend& backend) noexcept {
  DeviceState& state = state_of(backend.index());
  const std::lock_guard one_thread(state.preparing);
  if (backend.records()) return;  // the handle may take part in that recording
  {
    const std::lock_guard lock(state.mutex);
    if (!state.handle || state.ready_to_record || state.broken || !use_cudnn()) return;
  }
  try {
    first_calls(backend);
    const std::lock_guard lock(state.mutex);
    state.ready_to_record = true;
  } catch (const std::exception&) {
    cudaGetLastError();  // clears the error for the next launch
  }
}

}  // namespace weft::cuda::cudnn

#endif
