// Single steps of recurrent layers, for hand-written loops. Layouts and gate order as in rnn.h; parameter
// names without the layer's suffix: weight_ih, weight_hh, bias_ih, bias_hh.
#pragma once

#include <weft/kernels/backend.h>
#include <weft/nn/module.h>

namespace weft::nn {

/// Options of LSTMCell, GRUCell and RNNCell.
struct CellOptions {
  bool bias = true;
  DType dtype = kFloat32;
  Generator* generator = nullptr;  ///< for the initial values; null: the process's default
};

/// The state of an LSTM after a step: `auto [h, c] = cell.forward(x, h0, c0);`
struct CellState {
  Tensor h;  ///< [N, H], or [H] for one sample
  Tensor c;  ///< undefined except for LSTM
};

/// The common base of LSTMCell, GRUCell and RNNCell. Init: all U(-1/sqrt(H), 1/sqrt(H)).
class WEFT_API RecurrentCell : public Module {
 public:
  void reset_parameters(Generator* generator = nullptr);
  std::string name() const override;
  int64_t input_size() const { return input_; }
  int64_t hidden_size() const { return hidden_; }
  Tensor weight_ih;  ///< [G*H, input]
  Tensor weight_hh;  ///< [G*H, H]
  Tensor bias_ih;    ///< [G*H]; undefined without biases
  Tensor bias_hh;

 protected:
  RecurrentCell(RnnMode mode, int64_t input, int64_t hidden, const CellOptions& options);
  CellState step(const Tensor& x, const Tensor& h, const Tensor& c) const;

 private:
  Tensor state(const char* what, const Tensor& given, const Tensor& x) const;
  RnnMode mode_;
  int64_t input_, hidden_;
};

/// c' = f c + i g, h' = o tanh(c').
/// Shape: x [N, input] or [input], h and c [N, H] or [H], undefined for zeros -> [N, H] or [H].
/// Throws: ShapeError; DTypeError if x and the weights have different dtypes.
class WEFT_API LSTMCell : public RecurrentCell {
 public:
  LSTMCell(int64_t input, int64_t hidden, const CellOptions& options = {})
      : RecurrentCell(RnnMode::kLstm, input, hidden, options) {}
  CellState forward(const Tensor& x, const Tensor& h = {}, const Tensor& c = {}) const {
    return step(x, h, c);
  }
};
/// h' = (1 - z) n + z h; returns h'. Shape and Throws: as LSTMCell.
class WEFT_API GRUCell : public RecurrentCell {
 public:
  GRUCell(int64_t input, int64_t hidden, const CellOptions& options = {})
      : RecurrentCell(RnnMode::kGru, input, hidden, options) {}
  Tensor forward(const Tensor& x, const Tensor& h = {}) const { return step(x, h, {}).h; }
};
/// h' = tanh or relu of W_ih x + b_ih + W_hh h + b_hh; returns h'. Shape and Throws: as LSTMCell.
class WEFT_API RNNCell : public RecurrentCell {
 public:
  enum class Nonlinearity { kTanh, kRelu };
  RNNCell(int64_t input, int64_t hidden, const CellOptions& options = {},
          Nonlinearity f = Nonlinearity::kTanh)
      : RecurrentCell(f == Nonlinearity::kTanh ? RnnMode::kTanh : RnnMode::kRelu, input, hidden, options) {}
  Tensor forward(const Tensor& x, const Tensor& h = {}) const { return step(x, h, {}).h; }
};

}  // namespace weft::nn
