// Recurrent layers. Each direction of each layer is one fused op over the whole sequence (autograd/rnn.cpp), or all of them are where the device takes a
// stack (autograd/rnn_stack.h); this file stacks them, puts dropout between layers and names the parameters as PyTorch does (weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ..._reverse).
// Gate order: LSTM i f g o, GRU r z n.
#pragma once

#include <optional>

#include <weft/kernels/backend.h>
#include <weft/nn/module.h>

namespace weft::nn {

struct RnnOptions {
  int64_t num_layers = 1;
  double dropout = 0;  ///< on the output of every layer but the last, in training
  bool bias = true;
  bool batch_first = false;  ///< x and y are [N, T, ...] instead of [T, N, ...]
  bool bidirectional = false;
  DType dtype = kFloat32;
  Generator* generator = nullptr;
};

/// What a recurrent layer returns; c is undefined but for the LSTM.
struct RnnOutput {
  Tensor y;  ///< [T, N, D * H]: the last layer's output at every step
  Tensor h;  ///< [layers * D, N, H]: the last hidden state of every layer and direction
  Tensor c;  ///< [layers * D, N, H]
};

/// The common part of LSTM, GRU and RNN.
/// Init: all U(-1/sqrt(H), 1/sqrt(H)).
class WEFT_API Recurrent : public Module {
 public:
  /// h0 and c0 [layers * D, N, H]; undefined means zeros. Throws: ShapeError, DTypeError.
  RnnOutput forward(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {});
  void reset_parameters(Generator* generator = nullptr);
  std::string name() const override;
  int64_t input_size() const { return input_; }
  int64_t hidden_size() const { return hidden_; }
  /// Zero state for a batch of n: [layers * D, n, H].
  Tensor zero_state(int64_t n) const;

 protected:
  Recurrent(RnnMode mode, int64_t input, int64_t hidden, const RnnOptions& options);

 private:
  struct Weights {
    Tensor w_ih, w_hh, b_ih, b_hh;
  };
  std::optional<RnnOutput> whole(const Tensor& x, const Tensor& h0, const Tensor& c0);
  Tensor check_state(const char* what, const Tensor& state, const Tensor& x, int64_t n) const;
  RnnMode mode_;
  int64_t input_, hidden_;
  RnnOptions options_;
  std::vector<Weights> weights_;  // layer-major, forward before reverse
};

/// Source: Hochreiter & Schmidhuber 1997 with forget gates; c' = f c + i g, h' = o tanh(c').
class WEFT_API LSTM : public Recurrent {
 public:
  LSTM(int64_t input, int64_t hidden, const RnnOptions& options = {})
      : Recurrent(RnnMode::kLstm, input, hidden, options) {}
};
/// Source: Cho et al. 2014, the form with r applied to W_hn h + b_hn; h' = (1 - z) n + z h.
class WEFT_API GRU : public Recurrent {
 public:
  GRU(int64_t input, int64_t hidden, const RnnOptions& options = {})
      : Recurrent(RnnMode::kGru, input, hidden, options) {}
};
/// h' = tanh(...) or relu(...) of W_ih x + b_ih + W_hh h + b_hh.
class WEFT_API RNN : public Recurrent {
 public:
  enum class Nonlinearity { kTanh, kRelu };
  RNN(int64_t input, int64_t hidden, const RnnOptions& options = {}, Nonlinearity f = Nonlinearity::kTanh)
      : Recurrent(f == Nonlinearity::kTanh ? RnnMode::kTanh : RnnMode::kRelu, input, hidden, options) {}
};

}  // namespace weft::nn
