// The methods of the recording backend. Each makes the call and adds it to the program, or gives the reason
// for which its run cannot be replayed: a result on the host depends on the values of that run.
#include <weft/autograd/tape/inner/recorder.h>

#include <algorithm>
#include <utility>

#include <weft/tensor/inner/launch.h>

namespace weft::trace {

template <auto Method, class... A>
void Recorder::add(const std::string& op, std::string_view roles, const A&... args) {
  if (!reason_.empty()) return;
  using First = std::tuple_element_t<0, std::tuple<A...>>;
  if constexpr (std::is_same_v<First, Unary> || std::is_same_v<First, Binary> ||
                std::is_same_v<First, Ternary>)
    note(std::make_unique<PointwiseCall<Method, A...>>(op, args...), roles);
  else note(std::make_unique<CallOf<Method, A...>>(op, args...), roles);
}

template <auto Method, class... A>
void Recorder::call(Context& context, const std::string& op, std::string_view roles, const A&... args) {
  try {
    (real_.*Method)(context, args...);
  } catch (...) {
    refuse("makes a call that throws");
    throw;
  }
  add<Method>(op, roles, args...);
}

namespace {
std::vector<View> list(std::span<const View> xs) { return {xs.begin(), xs.end()}; }
constexpr const char* kHostResult = "reads values on the host (count of non-zeros, norms)";
}  // namespace

void Recorder::copy_from_host(Context& c, const void* host, void* device, size_t bytes) {
  refuse("copies from the host");
  real_.copy_from_host(c, host, device, bytes);
}
void Recorder::copy_to_host(Context& c, const void* device, void* host, size_t bytes) {
  refuse("copies to the host");
  real_.copy_to_host(c, device, host, bytes);
}

void Recorder::unary(Context& c, Unary op, Scalar s, Scalar t, View x, View y) {
  call<&Backend::unary>(c, launch::op_name(to_string(op)), "rw", op, s, t, x, y);
}
void Recorder::binary(Context& c, Binary op, Scalar s, Scalar t, View a, View b, View y) {
  call<&Backend::binary>(c, launch::op_name(to_string(op)), "rrw", op, s, t, a, b, y);
}
void Recorder::ternary(Context& c, Ternary op, Scalar s, View x, View y, View z, View out) {
  call<&Backend::ternary>(c, launch::op_name(to_string(op)), "rrrw", op, s, x, y, z, out);
}
void Recorder::where(Context& c, View cond, View a, View b, View y) {
  call<&Backend::where>(c, "where", "rrrw", cond, a, b, y);
}
void Recorder::copy(Context& c, View x, View y) { call<&Backend::copy>(c, "copy", "rw", x, y); }
void Recorder::fill(Context& c, Scalar value, View y) { call<&Backend::fill>(c, "fill", "w", value, y); }
void Recorder::arange(Context& c, Scalar start, Scalar step, View y) {
  call<&Backend::arange>(c, "arange", "w", start, step, y);
}

void Recorder::reduce(Context& c, Reduce op, View x, View y) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "norm", "norm", "norm"};
  call<&Backend::reduce>(c, kNames[static_cast<int>(op)], "rw", op, x, y);
}
void Recorder::arg_reduce(Context& c, bool largest, int dim, View x, View values, View indices) {
  call<&Backend::arg_reduce>(c, largest ? "max" : "min", "rww", largest, dim, x, values, indices);
}
void Recorder::mean_var(Context& c, int64_t correction, View x, View mean, View var) {
  call<&Backend::mean_var>(c, "var", "rww", correction, x, mean, var);
}
void Recorder::cumulate(Context& c, Reduce op, int dim, View x, View y) {
  call<&Backend::cumulate>(c, op == Reduce::kSum ? "cumsum" : "cumprod", "rw", op, dim, x, y);
}
void Recorder::sort(Context& c, bool descending, View x, View values, View indices) {
  call<&Backend::sort>(c, "sort", "rww", descending, x, values, indices);
}
bool Recorder::median(Context& c, View x, View indices) {
  if (!real_.median(c, x, indices)) return false;
  add<&Backend::median>("median", "rw", x, indices);
  return true;
}

void Recorder::softmax(Context& c, bool log, View x, View y) {
  call<&Backend::softmax>(c, "softmax", "rw", log, x, y);
}
void Recorder::softmax_backward(Context& c, bool log, View y, View dy, View dx) {
  call<&Backend::softmax_backward>(c, "softmax", "rrw", log, y, dy, dx);
}
void Recorder::logsumexp(Context& c, View x, View y) {
  call<&Backend::logsumexp>(c, "logsumexp", "rw", x, y);
}
void Recorder::cross_entropy(Context& c, View x, View target, View weight, int64_t ignore, double smoothing,
                             View loss, View log_sums) {
  call<&Backend::cross_entropy>(c, "cross_entropy", "rrrww", x, target, weight, ignore, smoothing, loss,
                                log_sums);
}
void Recorder::cross_entropy_backward(Context& c, View x, View log_sums, View target, View weight,
                                      int64_t ignore, double smoothing, View g, View dx) {
  call<&Backend::cross_entropy_backward>(c, "cross_entropy", "rrrrrw", x, log_sums, target, weight, ignore,
                                         smoothing, g, dx);
}
bool Recorder::linear_cross_entropy(Context& c, const LinearLossViews& v, int64_t ignore, double smoothing) {
  if (!real_.linear_cross_entropy(c, v, ignore, smoothing)) return false;
  add<&Backend::linear_cross_entropy>("linear_cross_entropy", "rrrrrrwwww", v, ignore, smoothing);
  return true;
}
void Recorder::attention(Context& c, const AttentionViews& v) {
  call<&Backend::attention>(c, "scaled_dot_product_attention", "rrrrww", v);
}
void Recorder::attention_backward(Context& c, const AttentionViews& v) {
  call<&Backend::attention_backward>(c, "scaled_dot_product_attention", "rrrrrrrw", v);
}
void Recorder::layer_norm(Context& c, View x, View weight, View bias, double eps, View y, View mean,
                          View rstd) {
  call<&Backend::layer_norm>(c, "layer_norm", "rrrw", x, weight, bias, eps, y, mean, rstd);
}
void Recorder::layer_norm_backward(Context& c, View x, View weight, View mean, View rstd, View dy, View dx,
                                   View dweight, View dbias) {
  call<&Backend::layer_norm_backward>(c, "layer_norm", "rrrrrw", x, weight, mean, rstd, dy, dx, dweight,
                                      dbias);
}

void Recorder::matmul(Context& c, double alpha, View a, View b, double beta, View bias, View y, bool relu) {
  call<&Backend::matmul>(c, "matmul", beta == 0 ? "rrrw" : "rrrb", alpha, a, b, beta, bias, y, relu);
}

void Recorder::take_rows(Context& c, View x, View index, View y) {
  call<&Backend::take_rows>(c, "index_select", "rrw", x, index, y);
}
void Recorder::add_rows(Context& c, View index, View dy, int64_t skip, View dx) {
  call<&Backend::add_rows>(c, "index_add", "rrb", index, dy, skip, dx);
}
void Recorder::gather(Context& c, int dim, View x, View index, View y) {
  call<&Backend::gather>(c, "gather", "rrw", dim, x, index, y);
}
void Recorder::scatter(Context& c, ScatterRule rule, int dim, View index, View src, View y) {
  call<&Backend::scatter>(c, "scatter", "rrb", rule, dim, index, src, y);
}
int64_t Recorder::count_nonzero(Context& c, View x) {
  refuse(kHostResult);
  return real_.count_nonzero(c, x);
}
void Recorder::nonzero(Context& c, View x, View out) { call<&Backend::nonzero>(c, "nonzero", "rw", x, out); }
void Recorder::triangle(Context& c, bool upper, int64_t k, View x, View y) {
  call<&Backend::triangle>(c, upper ? "triu" : "tril", "rw", upper, k, x, y);
}

void Recorder::uniform(Context& c, PhiloxKey key, double low, double high, View y) {
  call<&Backend::uniform>(c, "uniform", "w", key, low, high, y);
}
void Recorder::normal(Context& c, PhiloxKey key, double mean, double stddev, View y) {
  call<&Backend::normal>(c, "normal", "w", key, mean, stddev, y);
}
void Recorder::bernoulli(Context& c, PhiloxKey key, View p, View y) {
  call<&Backend::bernoulli>(c, "bernoulli", "rw", key, p, y);
}
void Recorder::random_int(Context& c, PhiloxKey key, int64_t low, int64_t high, View y) {
  call<&Backend::random_int>(c, "randint", "w", key, low, high, y);
}
void Recorder::dropout(Context& c, PhiloxKey key, double p, View x, View y) {
  call<&Backend::dropout>(c, "dropout", "rw", key, p, x, y);
}
void Recorder::multinomial(Context& c, PhiloxKey key, bool replacement, View p, View indices) {
  call<&Backend::multinomial>(c, "multinomial", "rw", key, replacement, p, indices);
}

Shape Recorder::rnn_reserve(Context& c, const RnnLayer& layer, const RnnInputs& in) {
  return real_.rnn_reserve(c, layer, in);
}
void Recorder::rnn_forward(Context& c, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out) {
  call<&Backend::rnn_forward>(c, "rnn", "rrrrrrrw", layer, in, out);
}
void Recorder::rnn_backward(Context& c, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out,
                            View dy, View dhn, View dcn, const RnnGrads& grads) {
  call<&Backend::rnn_backward>(c, "rnn", "rrrrrrrrrrrrrrw", layer, in, out, dy, dhn, dcn, grads);
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
void Recorder::scale(Context& c, double factor, std::span<const View> xs) {
  call<&Backend::scale>(c, "clip_grad_norm", "b", factor, list(xs));
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
