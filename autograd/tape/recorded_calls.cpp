// The methods of the recording backend. Each makes the call and adds it to the program, or states the reason
// for which its run cannot be replayed. Such a reason is a result on the host that depends on the run's
// values.
#include <weft/autograd/tape/inner/recorder.h>

#include <algorithm>
#include <utility>

#include <weft/tensor/inner/launch.h>

namespace weft::trace {

template <auto Method, class... A>
void Recorder::add(const std::string& op, std::string_view roles, const A&... args) {
  if (!reason_.empty()) return;
  if constexpr (kPointwise<Method>) note(std::make_unique<PointwiseCall<Method, A...>>(op, args...), roles);
  else note(std::make_unique<CallOf<Method, A...>>(op, args...), roles);
}

template <auto Method, class... A>
auto Recorder::call(Context& context, const std::string& op, std::string_view roles, const A&... args) {
  const auto run = [&] {
    try {
      return (real_.*Method)(context, args...);
    } catch (...) {
      refuse("makes a call that throws");
      throw;
    }
  };
  if constexpr (std::is_void_v<decltype(run())>) {
    run();
    add<Method>(op, roles, args...);
  } else {
    const bool done = run();
    if (done) add<Method>(op, roles, args...);
    return done;
  }
}

namespace {
template <class Op> std::string label_of(Op op) { return launch::op_name(to_string(op)); }
const char* label_of(Reduce op) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "norm", "norm", "norm"};
  return kNames[static_cast<int>(op)];
}
std::vector<View> list(std::span<const View> xs) { return {xs.begin(), xs.end()}; }
constexpr const char* kHostResult = "reads values on the host (count of non-zeros, norms)";
}  // namespace

#define WEFT_CPU_KERNEL(result, name, label, roles, parameters, arguments)     \
  result Recorder::name(Context& context, WEFT_UNPACK parameters) {            \
    return call<&Backend::name>(context, label, roles, WEFT_UNPACK arguments); \
  }
#define WEFT_KERNEL(...) WEFT_CPU_KERNEL(void, __VA_ARGS__)
#define WEFT_KERNEL_BY_HAND(...)
#include <weft/kernels/inner/kernel_methods.inc>

void Recorder::copy_from_host(Context& c, const void* host, void* device, size_t bytes) {
  refuse("copies from the host");
  real_.copy_from_host(c, host, device, bytes);
}
void Recorder::copy_to_host(Context& c, const void* device, void* host, size_t bytes) {
  refuse("copies to the host");
  real_.copy_to_host(c, device, host, bytes);
}

void Recorder::matmul(Context& c, double alpha, View a, View b, double beta, View bias, View y, bool relu) {
  call<&Backend::matmul>(c, "matmul", beta == 0 ? "rrrw" : "rrrb", alpha, a, b, beta, bias, y, relu);
}
int64_t Recorder::count_nonzero(Context& c, View x) {
  refuse(kHostResult);
  return real_.count_nonzero(c, x);
}
Shape Recorder::rnn_reserve(Context& c, const RnnLayer& layer, const RnnInputs& in) {
  return real_.rnn_reserve(c, layer, in);
}
std::optional<RnnStackRoom> Recorder::rnn_stack(Context& c, const RnnStack& stack, const RnnStackInputs& in) {
  const std::optional<RnnStackRoom> room = real_.rnn_stack(c, stack, in);
  if (room) refuse("runs a stack of recurrent layers in one call");
  return room;
}

void Recorder::step(Context& c, const StepKernel& kernel, DType dtype, std::span<const StepTensor> tensors,
                    const NextStep& next, const double* skip) {
  std::optional<Stepping> known = std::exchange(stepping_, std::nullopt);
  const bool copies = std::any_of(tensors.begin(), tensors.end(), [](const StepTensor& t) { return t.out; });
  if (!known || known->functor_bytes.size() != tensors.size() || skip || copies)
    refuse("takes a step that no replay can repeat (GradScaler, a step of your own)");
  real_.step(c, kernel, dtype, tensors, next, skip);
  if (!reason_.empty()) return;
  program_->steps = true;
  note(std::make_unique<StepCall>("step", kernel, dtype, tensors, std::move(known->functor_bytes),
                                  std::move(known->replay)),
       StepCall::roles(tensors.size()));
  if (reason_.empty()) count_steps(*program_->calls.back());
}
void Recorder::powers(Context& c, double p, std::span<const View> xs, double* out) {
  refuse(kHostResult);
  real_.powers(c, p, xs, out);
}
void Recorder::clip_norm(Context& c, double max_norm, double p, std::span<const View> xs, View norm,
                         View factor) {
  call<&Backend::clip_norm>(c, "clip_grad_norm", std::string(xs.size(), 'b') + "w", max_norm, p, list(xs),
                            norm, factor);
}
void Recorder::unscale(Context& c, std::span<const View> xs, View state) {
  call<&Backend::unscale>(c, "unscale", "b", list(xs), state);
}
void Recorder::update_scale(Context& c, double growth, double backoff, int64_t interval, View state) {
  call<&Backend::update_scale>(c, "update_scale", "b", growth, backoff, interval, state);
}

}  // namespace weft::trace
