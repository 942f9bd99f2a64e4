// Recurrent layers: checks, stacking of rnn_layer over layers and directions, and dropout between layers.
// Where the device supports it, the whole stack is one call (rnn_stack), on parameters that lie as the call
// wants them (flatten_parameters).
#include <weft/nn/rnn.h>

#include <cmath>

#include <weft/autograd/ops/inner/rnn_stack.h>
#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/nn/init.h>
#include <weft/nn/inner/type_of_x.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/launch.h>

namespace weft::nn {
namespace {

const char* kind(RnnMode mode) {
  switch (mode) {
    case RnnMode::kLstm: return "LSTM";
    case RnnMode::kGru: return "GRU";
    case RnnMode::kTanh: return "RNN(tanh)";
    case RnnMode::kRelu: return "RNN(relu)";
  }
  return "";
}

}  // namespace

Recurrent::Recurrent(RnnMode mode, int64_t input, int64_t hidden, const RnnOptions& options)
    : mode_(mode), input_(input), hidden_(hidden), options_(options) {
  if (input < 1 || hidden < 1 || options.num_layers < 1)
    throw ValueError(str(kind(mode), ": input ", input, ", hidden ", hidden, " and num_layers ",
                         options.num_layers, " must be at least 1"));
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw ValueError(str(kind(mode), ": dropout must be in [0, 1), got ", options.dropout));
  const int64_t rows = RnnLayer{mode}.gates() * hidden;
  const int directions = options.bidirectional ? 2 : 1;
  const TensorOptions type{.dtype = options.dtype};
  for (int64_t layer = 0; layer < options.num_layers; ++layer)
    for (int d = 0; d < directions; ++d) {
      const std::string tail = "_l" + std::to_string(layer) + (d ? "_reverse" : "");
      Weights w;
      w.w_ih = add("weight_ih" + tail, empty({rows, layer == 0 ? input : hidden * directions}, type));
      w.w_hh = add("weight_hh" + tail, empty({rows, hidden}, type));
      if (options.bias) {
        w.b_ih = add("bias_ih" + tail, empty({rows}, type));
        w.b_hh = add("bias_hh" + tail, empty({rows}, type));
      }
      weights_.push_back(std::move(w));
    }
  reset_parameters(options.generator);
}

void Recurrent::reset_parameters(Generator* generator) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_));
  for (const Tensor& p : parameters()) init::uniform_(p, -bound, bound, generator);
}

Tensor Recurrent::zero_state(int64_t n) const {
  return zeros({static_cast<int64_t>(weights_.size()), n, hidden_},
               {.dtype = weights_[0].w_ih.dtype(), .device = weights_[0].w_ih.device()});
}

Tensor Recurrent::check_state(const char* what, const Tensor& state, const Tensor& x, int64_t n) const {
  if (!state.defined())
    return zeros({static_cast<int64_t>(weights_.size()), n, hidden_},
                 {.dtype = x.dtype(), .device = x.device()});
  const Shape wanted{static_cast<int64_t>(weights_.size()), n, hidden_};
  if (state.sizes() != wanted)
    throw ShapeError(str(kind(mode_), ": ", what, " must be ", wanted, ", got ", state.sizes()));
  check_type_of_x(kind(mode_), what, state, "x", x);
  return state;
}

RnnStack Recurrent::stack_of(double dropout) const {
  return {.mode = mode_, .layers = options_.num_layers, .both = options_.bidirectional, .dropout = dropout};
}

std::vector<Tensor> Recurrent::all_weights() const {
  std::vector<Tensor> all;
  for (const Weights& w : weights_) all.insert(all.end(), {w.w_ih, w.w_hh, w.b_ih, w.b_hh});
  return all;
}

void Recurrent::flatten_parameters() {
  const Tensor& first = weights_[0].w_ih;
  if (first.device().is_cpu() || launch::backend_of(first).recording(launch::context())) return;
  const std::vector<Tensor> all = all_weights();
  for (const Tensor& p : all) {
    if (!p.defined()) continue;
    const Storage& s = *p.body().storage;
    if (s.use_count() != 1 || s.is_borrowed() || s.is_read_only() || s.lock() ||
        p.device() != first.device() || p.dtype() != first.dtype() || !p.is_leaf())
      return;
  }
  const std::vector<Tensor> fresh = rnn_stack_weights(stack_of(0), all);
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (!fresh[i].defined()) continue;
    const Tensor gradient = all[i].grad();
    set_data(all[i], fresh[i]);
    all[i].set_grad(gradient);
  }
}

void Recurrent::parameters_moved() {
  try {
    flatten_parameters();
  } catch (const OutOfMemoryError&) {  // they have moved all the same
  }
}

/// The stack in one call, or nullopt if x's device does not support it.
std::optional<RnnOutput> Recurrent::whole(const Tensor& x, const Tensor& h0, const Tensor& c0) const {
  const bool drops = is_training() && options_.num_layers > 1;
  auto out = rnn_stack(stack_of(drops ? options_.dropout : 0), x, h0, c0, all_weights(), generator());
  if (!out) return std::nullopt;
  return RnnOutput{options_.batch_first ? out->y.transpose(0, 1) : out->y, out->hn, out->cn};
}

RnnOutput Recurrent::forward(const Tensor& input, const Tensor& h0, const Tensor& c0) const {
  if (!input.defined()) launch::throw_undefined(kind(mode_), "x");
  if (input.dim() != 3 || input.size(2) != input_)
    throw ShapeError(str(kind(mode_), ": x must be ", options_.batch_first ? "[N, T, " : "[T, N, ", input_,
                         "], got ", input.sizes()));
  check_type_of_x(kind(mode_), "x", input, "weight_ih_l0", weights_[0].w_ih);
  Tensor x = options_.batch_first ? input.transpose(0, 1) : input;
  const bool lstm = mode_ == RnnMode::kLstm;
  if (c0.defined() && !lstm) throw ValueError(str(kind(mode_), ": has no cell state, but c0 was given"));
  const Tensor h_in = check_state("h0", h0, x, x.size(1));
  const Tensor c_in = lstm ? check_state("c0", c0, x, x.size(1)) : Tensor();

  if (!x.device().is_cpu())
    if (auto out = whole(x, h_in, c_in)) return std::move(*out);
  if (weights_.size() == 1) {  // its states are those of the only cell
    const Weights& w = weights_[0];
    RnnResult out = rnn_layer(mode_, x, h_in, c_in, w.w_ih, w.w_hh, w.b_ih, w.b_hh);
    return {options_.batch_first ? out.y.transpose(0, 1) : std::move(out.y), std::move(out.hn),
            std::move(out.cn)};
  }
  const int directions = options_.bidirectional ? 2 : 1;
  std::vector<Tensor> h_out, c_out;
  for (int64_t layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<Tensor> ys;
    for (int d = 0; d < directions; ++d) {
      const int64_t at = layer * directions + d;
      const Weights& w = weights_[static_cast<size_t>(at)];
      auto [y, h, c] = rnn_layer(mode_, x, h_in.select(0, at), lstm ? c_in.select(0, at) : Tensor(), w.w_ih,
                                 w.w_hh, w.b_ih, w.b_hh, d == 1);
      ys.push_back(std::move(y));
      h_out.push_back(std::move(h));
      if (lstm) c_out.push_back(std::move(c));
    }
    x = directions == 1 ? ys[0] : cat(ys, 2);
    if (layer + 1 < options_.num_layers && is_training() && options_.dropout > 0)
      x = dropout(x, options_.dropout, true, &generator());
  }
  return {options_.batch_first ? x.transpose(0, 1) : x, stack(h_out, 0), lstm ? stack(c_out, 0) : Tensor()};
}

std::string Recurrent::name() const {
  std::string out = str(kind(mode_), "(", input_, ", ", hidden_);
  if (options_.num_layers != 1) out += str(", num_layers=", options_.num_layers);
  if (options_.dropout != 0) out += str(", dropout=", options_.dropout);
  if (options_.batch_first) out += ", batch_first";
  if (options_.bidirectional) out += ", bidirectional";
  return out + ")";
}

}  // namespace weft::nn
