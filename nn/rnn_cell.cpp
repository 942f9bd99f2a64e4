// Recurrent cells. A step is the fused rnn_layer over a sequence of length one. A single sample gets a batch
// dim of 1.
#include <weft/nn/rnn_cell.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/nn/init.h>
#include <weft/nn/inner/type_of_x.h>
#include <weft/tensor/factories.h>

namespace weft::nn {
namespace {

const char* kind_of_cell(RnnMode mode) {
  switch (mode) {
    case RnnMode::kLstm: return "LSTMCell";
    case RnnMode::kGru: return "GRUCell";
    case RnnMode::kTanh: return "RNNCell(tanh)";
    case RnnMode::kRelu: return "RNNCell(relu)";
  }
  return "";
}

}  // namespace

RecurrentCell::RecurrentCell(RnnMode mode, int64_t input, int64_t hidden, const CellOptions& options)
    : mode_(mode), input_(input), hidden_(hidden) {
  if (input < 1 || hidden < 1)
    throw ValueError(
        str(kind_of_cell(mode), ": input ", input, " and hidden ", hidden, " must be at least 1"));
  const int64_t rows = RnnLayer{mode}.gates() * hidden;
  const TensorOptions type{.dtype = options.dtype};
  using Cell = RecurrentCell;
  add("weight_ih", &Cell::weight_ih, empty({rows, input}, type));
  add("weight_hh", &Cell::weight_hh, empty({rows, hidden}, type));
  add("bias_ih", &Cell::bias_ih, options.bias ? empty({rows}, type) : Tensor());
  add("bias_hh", &Cell::bias_hh, options.bias ? empty({rows}, type) : Tensor());
  reset_parameters(options.generator);
}

void RecurrentCell::reset_parameters(Generator* generator) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_));
  for (const Tensor& p : parameters()) init::uniform_(p, -bound, bound, generator);
}

/// The given state as [N, H], or zeros.
Tensor RecurrentCell::state(const char* what, const Tensor& given, const Tensor& x) const {
  Shape wanted = x.sizes();
  wanted[x.dim() - 1] = hidden_;
  if (!given.defined())
    return zeros(x.dim() == 1 ? Shape{1, hidden_} : wanted, {.dtype = x.dtype(), .device = x.device()});
  if (given.sizes() != wanted)
    throw ShapeError(str(kind_of_cell(mode_), ": ", what, " must be ", wanted, ", got ", given.sizes()));
  check_type_of_x(kind_of_cell(mode_), what, given, "x", x);
  return x.dim() == 1 ? given.unsqueeze(0) : given;
}

CellState RecurrentCell::step(const Tensor& x, const Tensor& h, const Tensor& c) const {
  if (!x.defined()) launch::throw_undefined(kind_of_cell(mode_), "x");
  if ((x.dim() != 1 && x.dim() != 2) || x.size(-1) != input_)
    throw ShapeError(
        str(kind_of_cell(mode_), ": x must be [N, ", input_, "] or [", input_, "], got ", x.sizes()));
  check_type_of_x(kind_of_cell(mode_), "x", x, "weight_ih", weight_ih);
  const bool lstm = mode_ == RnnMode::kLstm, one = x.dim() == 1;
  const Tensor h_in = state("h", h, x), c_in = lstm ? state("c", c, x) : Tensor();
  const RnnResult out = rnn_layer(mode_, one ? x.view({1, 1, input_}) : x.unsqueeze(0), h_in, c_in, weight_ih,
                                  weight_hh, bias_ih, bias_hh);
  if (!one) return {out.hn, out.cn};
  return {out.hn.squeeze(0), lstm ? out.cn.squeeze(0) : Tensor()};
}

std::string RecurrentCell::name() const {
  return str(kind_of_cell(mode_), "(", input_, ", ", hidden_, bias_ih.defined() ? ")" : ", bias=false)");
}

}  // namespace weft::nn
