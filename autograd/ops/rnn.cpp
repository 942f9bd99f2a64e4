// One direction of one recurrent layer over a whole sequence as one node. The kernel keeps `reserve` (gate
// values) for its backward; under create_graph the layer is composed step by step of plain operations. Gate
// order: LSTM i f g o, GRU r z n.
#include <weft/autograd/ops/inner/formula.h>
#include <weft/autograd/ops/inner/rnn_stack.h>

namespace weft {

namespace formula {
const char* rnn_name(RnnMode mode) {
  switch (mode) {
    case RnnMode::kLstm: return "lstm";
    case RnnMode::kGru: return "gru";
    case RnnMode::kTanh: return "rnn_tanh";
    case RnnMode::kRelu: return "rnn_relu";
  }
  return "rnn";
}
}  // namespace formula

namespace {

using formula::optional_view;

void expect(const char* name, const char* what, const Tensor& x, const Shape& sizes, const Tensor& like) {
  if (!x.defined()) launch::throw_undefined(name, what);
  if (!(x.sizes() == sizes)) throw ShapeError(str(name, ": ", what, " must be ", sizes, ", is ", x.sizes()));
  if (x.dtype() != like.dtype())
    throw DTypeError(str(name, ": ", what, " is ", x.dtype(), ", x is ", like.dtype()));
  launch::check_devices(name, like, x);
}

// The arguments of a layer: x, h0, c0, w_ih, w_hh, b_ih, b_hh.
using RnnArgs = std::vector<Tensor>;

/// The view [N, H] of a state, which may have a leading dim of 1; absent if it is undefined.
View state_view(const Tensor& state) {
  View v = optional_view(state);
  if (v.ndim() == 3) v.sizes = {v.size(1), v.size(2)}, v.strides = {v.stride(1), v.stride(2)};
  return v;
}

RnnInputs input_views(const RnnArgs& a) {
  return {optional_view(a[0]), state_view(a[1]),    state_view(a[2]),   optional_view(a[3]),
          optional_view(a[4]), optional_view(a[5]), optional_view(a[6])};
}

/// x in contiguous memory: itself, or `copy`, which this makes then.
const Tensor& contiguous(const Tensor& x, Tensor& copy) {
  return !x.defined() || x.is_contiguous() ? x : copy = launch::contiguous(x);
}

Tensor steps_cell(RnnMode mode, const RnnArgs& a, const Tensor& x, Tensor& h, Tensor& c) {
  const Tensor in = linear(x, a[3], a[5]), rec = linear(h, a[4], a[6]);
  const int64_t width = h.sizes()[1];
  if (mode == RnnMode::kTanh || mode == RnnMode::kRelu)
    return h = mode == RnnMode::kTanh ? tanh(in + rec) : relu(in + rec);
  const auto gate = [width](const Tensor& all, int64_t i) { return narrow(all, 1, i * width, width); };
  if (mode == RnnMode::kGru) {
    const Tensor r = sigmoid(gate(in, 0) + gate(rec, 0)), z = sigmoid(gate(in, 1) + gate(rec, 1));
    const Tensor n = tanh(gate(in, 2) + r * gate(rec, 2));
    return h = n + z * (h - n);
  }
  const Tensor all = in + rec;
  c = sigmoid(gate(all, 1)) * c + sigmoid(gate(all, 0)) * tanh(gate(all, 2));
  return h = sigmoid(gate(all, 3)) * tanh(c);
}

}  // namespace

std::vector<Tensor> formula::composed_rnn_layer(RnnMode mode, bool reverse, const RnnArgs& a) {
  const int64_t steps = a[0].sizes()[0];
  const bool leading = a[1].dim() == 3;  // a state [1, N, H]
  const auto inner = [leading](const Tensor& x) { return leading && x.defined() ? squeeze(x, 0) : x; };
  const auto outer = [leading](const Tensor& x) { return leading && x.defined() ? unsqueeze(x, 0) : x; };
  Tensor h = inner(a[1]), c = inner(a[2]);
  std::vector<Tensor> ys(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = reverse ? steps - 1 - i : i;
    ys[static_cast<size_t>(t)] = steps_cell(mode, a, select(a[0], 0, t), h, c);
  }
  return {stack(ys, 0), outer(h), outer(c)};
}

std::vector<Tensor> formula::contiguous_all(std::vector<Tensor> xs) {
  for (Tensor& x : xs)
    if (x.defined() && !x.is_contiguous()) x = launch::contiguous(x);
  return xs;
}

namespace {

struct SavedArgs {
  Saved x, h0, c0, w_ih, w_hh, b_ih, b_hh;
  RnnArgs get() const {
    const auto maybe = [](const Saved& s) { return s.defined() ? s.get() : Tensor(); };
    return {x.get(), h0.get(), maybe(c0), w_ih.get(), w_hh.get(), maybe(b_ih), maybe(b_hh)};
  }
};

GradList fused_backward(const RnnLayer& layer, const RnnArgs& saved, const RnnOutputs& outputs,
                        const GradList& gs, Needs needs) {
  const RnnArgs a = formula::contiguous_all(saved);
  const RnnArgs g = formula::contiguous_all({gs[0], gs[1], gs.size() > 2 ? gs[2] : Tensor()});
  GradList d(7);
  const auto want = [&](int i) -> const Tensor& {
    Tensor& of = d[static_cast<size_t>(i)];
    if (needs[i] && a[static_cast<size_t>(i)].defined()) of = empty_like(a[static_cast<size_t>(i)]);
    return of;
  };
  const RnnGrads grads{optional_view(want(0)), state_view(want(1)),    state_view(want(2)),
                       optional_view(want(3)), optional_view(want(4)), optional_view(want(5)),
                       optional_view(want(6))};
  launch::backend_of(a[0]).rnn_backward(launch::context(), layer, input_views(a), outputs,
                                        optional_view(g[0]), state_view(g[1]), state_view(g[2]), grads);
  return d;
}

}  // namespace

RnnResult rnn_layer(RnnMode mode, DeviceAutocastArg x, DeviceAutocastArg h0, DeviceAutocastArg c0,
                    DeviceAutocastArg w_ih, DeviceAutocastArg w_hh, DeviceAutocastArg b_ih,
                    DeviceAutocastArg b_hh, bool reverse) {
  const char* name = formula::rnn_name(mode);
  const RnnLayer layer{mode, reverse};
  launch::check_defined(name, x);
  if (x->dim() != 3) throw ShapeError(str(name, ": x must be [T, N, I], is ", x->sizes()));
  launch::check_floating(name, x);
  if (!w_hh->defined()) launch::throw_undefined(name, "w_hh");
  if (w_hh->dim() != 2) throw ShapeError(str(name, ": w_hh must be [G*H, H]"));
  const int64_t steps = x->sizes()[0], n = x->sizes()[1], width = w_hh->sizes()[1],
                rows = layer.gates() * width;
  if (steps == 0) throw ShapeError(str(name, ": the sequence is empty: x is ", x->sizes()));
  const Shape state = h0->defined() && h0->dim() == 3 ? Shape{1, n, width} : Shape{n, width};
  expect(name, "h0", h0, state, x);
  if (mode == RnnMode::kLstm) expect(name, "c0", c0, state, x);
  expect(name, "w_ih", w_ih, {rows, x->sizes()[2]}, x);
  expect(name, "w_hh", w_hh, {rows, width}, x);
  if (b_ih->defined()) expect(name, "b_ih", b_ih, {rows}, x);
  if (b_hh->defined()) expect(name, "b_hh", b_hh, {rows}, x);

  const bool lstm = mode == RnnMode::kLstm,
             wanted = detail::wants_record({x, h0, c0, w_ih, w_hh, b_ih, b_hh});
  Tensor copies[7];
  const RnnInputs in{optional_view(contiguous(x, copies[0])),
                     state_view(contiguous(h0, copies[1])),
                     lstm ? state_view(contiguous(c0, copies[2])) : View{},
                     optional_view(contiguous(w_ih, copies[3])),
                     optional_view(contiguous(w_hh, copies[4])),
                     optional_view(contiguous(b_ih, copies[5])),
                     optional_view(contiguous(b_hh, copies[6]))};
  const TensorOptions like{.dtype = x->dtype(), .device = x->device()};
  Tensor outputs[3] = {empty({steps, n, width}, like), empty(state, like),
                       lstm ? empty(state, like) : Tensor()};
  for (const Tensor* const w : {&w_ih.get(), &w_hh.get()})
    if (w->is_contiguous()) launch::watch_weight(*w);
  Backend& device = launch::backend_of(x);
  const Tensor reserve = wanted ? empty(device.rnn_reserve(launch::context(), layer, in), like) : Tensor();
  if (n != 0)
    device.rnn_forward(
        launch::context(), layer, in,
        {optional_view(outputs[0]), state_view(outputs[1]), state_view(outputs[2]), optional_view(reserve)});
  if (!wanted) return {std::move(outputs[0]), std::move(outputs[1]), std::move(outputs[2])};
  SavedArgs saved{Saved(x),    Saved(h0),  lstm ? Saved(c0) : Saved(), Saved(w_ih), Saved(w_hh),
                  Saved(b_ih), Saved(b_hh)};
  record(name, std::span<Tensor>(outputs, lstm ? 3 : 2), {x, h0, c0, w_ih, w_hh, b_ih, b_hh},
         [layer, saved = std::move(saved), y = SavedOutput(outputs[0], 0), hn = SavedOutput(outputs[1], 1),
          cn = lstm ? SavedOutput(outputs[2], 2) : SavedOutput(outputs[1], 1),
          reserve = Saved(reserve)](const GradList& gs, Needs needs) -> GradList {
           const RnnArgs args = saved.get();
           const bool two = layer.mode == RnnMode::kLstm;
           if (grad_enabled()) {
             return formula::composed_backward(
                 [&](const RnnArgs& taken) {
                   return formula::composed_rnn_layer(layer.mode, layer.reverse, taken);
                 },
                 args, {gs[0], gs[1], two ? gs[2] : Tensor()}, needs);
           }
           const RnnArgs out =
               formula::contiguous_all({y.get(), hn.get(), two ? cn.get() : Tensor(), reserve.get()});
           return fused_backward(
               layer, args,
               {optional_view(out[0]), state_view(out[1]), state_view(out[2]), optional_view(out[3])}, gs,
               needs);
         });
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace weft
