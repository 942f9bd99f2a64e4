// The computation of a stack of recurrent layers in the emulated cuDNN, without descriptors and streams.
// It computes in double and rounds to the data's type where cuDNN stores values.
//
// Sequences are packed: step t holds a row of each sequence that is longer than t, the
// longest sequence first.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <vector>

#include <weft/kernels/dtype.h>

namespace weft::cuda::libraries {

struct Stack {
  cudnnRNNMode_t mode = CUDNN_LSTM;
  cudnnRNNBiasMode_t bias = CUDNN_RNN_DOUBLE_BIAS;
  int64_t directions = 1, layers = 1, inputs = 1, hidden = 1;
  DType type = kFloat32;
  double dropout = 0;
  void* states = nullptr;         ///< random number states, on the device
  std::vector<int> lengths = {};  ///< lengths of the sequences; empty where only the weights matter

  int64_t gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t width() const { return directions * hidden; }
  int64_t inputs_of(int64_t pseudo) const { return pseudo < directions ? inputs : width(); }
  /// Whether all gates of a weight follow one another in the weight space, as in NVIDIA's cuDNN. Its
  /// documentation does not promise that, so other sizes have another layout.
  bool joins_gates() const { return hidden % 3 == 0; }
  int64_t rows() const;
  /// The packed row of step t of sequence n.
  int64_t row(int64_t t, int64_t n) const;
  /// A key of the settings for which a reserve is valid.
  uint64_t key() const;
};

/// Byte offsets of a gate's matrix and bias in the weights; -1 if there is none.
struct Block {
  int64_t matrix = -1, bias = -1, rows = 0, columns = 0;
};
Block block_of(const Stack& s, int64_t pseudo, int64_t id);
int64_t weight_bytes(const Stack& s);
int64_t reserve_bytes(const Stack& s);
int64_t work_bytes(const Stack& s, bool training);

/// Random number states.
struct Random {
  static constexpr uint64_t kMade = 0x52414E444F4D2121u;
  uint64_t made = kMade, seed = 0, drawn = 0;
};

struct ForwardData {
  const void* x;
  void* y;
  const void* hx;
  void* hy;
  const void* cx;
  void* cy;
  const void* weights;
  void* reserve;  ///< null in inference
};
void forward(const Stack& s, const ForwardData& f);

struct BackwardData {
  const void *y, *dy;
  void* dx;
  const void *hx, *dhy;
  void* dhx;
  const void *cx, *dcy;
  void* dcx;
  const void* weights;
  void* reserve;
};
void backward_data(const Stack& s, const BackwardData& b);

void backward_weights(const Stack& s, const void* x, const void* hx, const void* y, void* weights,
                      void* reserve);

}  // namespace weft::cuda::libraries
