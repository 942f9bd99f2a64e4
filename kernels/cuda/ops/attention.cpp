// Attention of the CUDA backend: on cuDNN if it accepts the call (host/attention_seam.h), else on weft's
// kernels (attention.h). The last size of the kept statistics tells a backward the implementation of its
// forward. Where cuDNN does not take the other call after all, they are converted: p = exp(s - top) * share
// for a softmax with this maximum and this 1 / sum, and with top = the logarithm of the sum and share = 1.
#include <cmath>
#include <limits>

#include <weft/kernels/cuda/host/attention_seam.h>
#include <weft/kernels/cuda/ops/attention_calls.h>

namespace weft::cuda {

namespace {
/// Room for the statistics of weft's kernels in a call whose own are cuDNN's.
struct OwnStats {
  Scratch kept;
  AttentionViews views;  // the call with this room
  View top, share;       // its columns [B, H, L, 1]
  OwnStats(CudaBackend& backend, const Context& c, const AttentionViews& v)
      : kept(backend, c, static_cast<size_t>(v.q.size(0) * v.q.size(1) * v.q.size(2)) * 2 * sizeof(float)),
        views(v) {
    const Shape both{v.q.size(0), v.q.size(1), v.q.size(2), 2};
    views.stats = {kept.as<void>(), kFloat32, both, contiguous_strides(both)};
    top = views.stats, top.sizes[3] = 1;
    share = top, share.data = kept.as<float>() + 1;
  }
};
}  // namespace

int64_t CudaBackend::attention_stats(Context& c, const AttentionViews& v, bool follows) {
  enter();
  if (!cudnn::takes(*this, v, follows)) return Accelerator::attention_stats(c, v, follows);
  return follows ? 1 : 0;
}

void CudaBackend::attention(Context& c, const AttentionViews& v) {
  enter();
  if (v.stats.defined() && v.stats.size(3) == 2) {
    if (is_half(v.q.dtype) && multiplies_halves()) return attention_half(*this, c, v);
    return attention_tiles(*this, c, v);
  }
  if (cudnn::attention(*this, c, v)) return;
  const OwnStats own(*this, c, v);
  attention(c, own.views);
  if (!v.stats.defined()) return;
  unary(c, Unary::kLog, {}, {}, own.share, v.stats);
  binary(c, Binary::kSub, {}, {}, own.top, v.stats, v.stats);
}

void CudaBackend::attention_backward(Context& c, const AttentionViews& v) {
  enter();
  if (v.stats.size(3) == 2) {
    if (is_half(v.q.dtype) && multiplies_halves()) return attention_half_backward(*this, c, v);
    return attention_tiles_backward(*this, c, v);
  }
  if (cudnn::attention_backward(*this, c, v)) return;
  const OwnStats own(*this, c, v);
  // a row of infinite scores has an infinite logarithm; finite, it gives p = 0, as in weft's kernels
  unary(c, Unary::kNanToNum, NAN, std::numeric_limits<float>::max(), v.stats, own.top);
  fill(c, 1, own.share);
  attention_backward(c, own.views);
}

}  // namespace weft::cuda
