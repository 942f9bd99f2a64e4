// Attention as a graph of cuDNN, forward and backward.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/toolkit/cudnn_graph.h>

namespace weft::cuda::cudnn {

/// Sizes, strides and kind of a call: q [B, H, L, E], k [B, H, S, E], v [B, H, S, F].
struct AttentionSpec {
  using Strides = Graph::Sizes;  ///< the last is 1

  cudnnDataType_t type = CUDNN_DATA_HALF;  ///< of all but the statistics
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, width = 1, values = 1;
  bool causal = false;    ///< query i takes keys 0 .. i
  bool training = false;  ///< forward also writes the statistics
  bool backward = false;
  bool ordered = true;  ///< a backward adds in a fixed order, and needs L S halves per head for that
  Strides q{}, k{}, v{};
  Strides dy{};  ///< of a backward

  auto operator<=>(const AttentionSpec&) const = default;
};

/// The ids of the tensors. Results and y are contiguous. The statistics [B, H, L, 1], float32, are the
/// logarithms of the rows' sums of exponentials.
enum AttentionId : int64_t {
  kAttentionQ = 1,
  kAttentionK,
  kAttentionV,
  kAttentionY,
  kAttentionStats,
  kAttentionScale,  ///< float32, the factor of q k^T
  kAttentionNone,   ///< float32, -infinity; of causal calls
  kAttentionDy,     // the others are of a backward
  kAttentionDq,
  kAttentionDk,
  kAttentionDv,
  kAttentionOne,    ///< float32, 1
  kAttentionAlong,  ///< [B, H, L, 1], float32: for cuDNN's own use
  kAttentionSums,   ///< of dq's sizes, float32, for cuDNN's own use; unless it is ordered
};

/// The operations of the call.
Graph attention_graph(const Library& lib, const AttentionSpec& spec);

}  // namespace weft::cuda::cudnn
