// Recurrent layers: LSTM, GRU and RNN. Each direction of each layer is one fused operation over the whole
// sequence (autograd/ops/rnn.cpp). A device that supports it runs the whole stack in one call
// (autograd/ops/inner/rnn_stack.h). Parameters have PyTorch's names (weight_ih_l0, weight_hh_l0, bias_ih_l0,
// bias_hh_l0, .._reverse). Gate order: LSTM i f g o, GRU r z n.
#pragma once

#include <optional>

#include <weft/kernels/backend.h>
#include <weft/nn/module.h>

namespace weft::nn {

/// Options of LSTM, GRU and RNN.
struct RnnOptions {
  int64_t num_layers = 1;
  double dropout = 0;  ///< on the output of every layer but the last, in training
  bool bias = true;
  bool batch_first = false;  ///< x and y are [N, T, ..] instead of [T, N, ..]
  bool bidirectional = false;
  DType dtype = kFloat32;
  Generator* generator = nullptr;
};

/// The outputs of a recurrent layer, with D directions; c is undefined except for LSTM.
struct RnnOutput {
  Tensor y;  ///< [T, N, D * H]: the last layer's output at every step
  Tensor h;  ///< [layers * D, N, H]: the last hidden state of every layer and direction
  Tensor c;  ///< [layers * D, N, H]
};

/// The common base of LSTM, GRU and RNN. Init: all U(-1/sqrt(H), 1/sqrt(H)).
class WEFT_API Recurrent : public Module {
 public:
  /// Shape: x [T, N, input], h0 and c0 [layers * D, N, H], undefined for zeros; RnnOutput has the results.
  /// Throws: ShapeError, DTypeError.
  RnnOutput forward(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {}) const;
  void reset_parameters(Generator* generator = nullptr);
  /// Moves the parameters, with values and gradients, into one block of memory in cuDNN's layout. A call then
  /// copies no weights; otherwise it copies all of them into such a block. Each parameter stays a tensor of
  /// its own. A to() that moves parameters does this too. So it is needed only if cuda::set_use_cudnn(true)
  /// came later. A cuda::Graph that was recorded before uses the old memory, so it must be recorded anew.
  /// Nothing changes on the CPU, without cuDNN, and while a graph is recorded. Nothing changes either if
  /// other tensors or backward graphs use the memory of a parameter. The same holds if a parameter is frozen,
  /// marked concurrent or in memory of from_blob().
  /// Throws: OutOfMemoryError, with nothing changed; to() leaves the parameters as they are then.
  void flatten_parameters();
  std::string name() const override;
  int64_t input_size() const { return input_; }
  int64_t hidden_size() const { return hidden_; }
  /// Zeros of the parameters' dtype and device, for a batch of n. Shape: [layers * D, n, H].
  Tensor zero_state(int64_t n) const;

 protected:
  Recurrent(RnnMode mode, int64_t input, int64_t hidden, const RnnOptions& options);

 private:
  struct Weights {
    Tensor w_ih, w_hh, b_ih, b_hh;
  };
  void parameters_moved() override;
  RnnStack stack_of(double dropout) const;
  std::vector<Tensor> all_weights() const;
  std::optional<RnnOutput> whole(const Tensor& x, const Tensor& h0, const Tensor& c0) const;
  Tensor check_state(const char* what, const Tensor& state, const Tensor& x, int64_t n) const;
  RnnMode mode_;
  int64_t input_, hidden_;
  RnnOptions options_;
  std::vector<Weights> weights_;  // layer-major, forward before reverse
};

/// c' = f c + i g, h' = o tanh(c'). Source: Hochreiter & Schmidhuber 1997, with forget gates.
class WEFT_API LSTM : public Recurrent {
 public:
  LSTM(int64_t input, int64_t hidden, const RnnOptions& options = {})
      : Recurrent(RnnMode::kLstm, input, hidden, options) {}
};
/// h' = (1 - z) n + z h, with r applied to W_hn h + b_hn. Source: Cho et al. 2014.
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
