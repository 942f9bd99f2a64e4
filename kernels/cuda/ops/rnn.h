// Shared parts of the recurrent layers. These are views as dense matrices, and forward and backward of weft's
// cell (rnn_forward.cu, rnn_backward.cu). rnn.cpp chooses between this cell and cuDNN, and rnn_wavefront.cpp
// runs the cells of a stack side by side.
#pragma once

#include <memory>

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda {

/// A view [T, N, C], [N, C] or [C] as elements of one dtype with contiguous columns and rows that do not
/// overlap. It is in place if the view has this layout, else a dense copy. `kIn` fills the copy; with `kOut`,
/// finish() writes it back to the view.
class Dense {
 public:
  enum class Flow { kIn, kOut };
  /// `flat`: row (t, n) must be row t * N + n of one matrix.
  Dense(CudaBackend& backend, Context& context, const View& v, DType dtype, Flow flow, bool flat = false)
      : backend_(backend),
        context_(context),
        target_(rank3(v)),
        in_place_(fits(v, target_, dtype, flat)),
        flow_(flow),
        copy_(backend, context, in_place_ ? 0 : static_cast<size_t>(v.numel() * size_of(dtype))) {
    if (in_place_) {
      view_ = target_;
      return;
    }
    view_ = {copy_.as<void>(), dtype, target_.sizes, contiguous_strides(target_.sizes)};
    if (flow == Flow::kIn) backend.copy(context, target_, view_);
  }
  void finish() const {
    if (!in_place_ && flow_ == Flow::kOut) backend_.copy(context_, view_, target_);
  }

  bool defined() const { return view_.defined(); }
  int64_t row() const { return defined() ? view_.stride(1) : 0; }
  int64_t of_step() const { return defined() ? view_.stride(0) : 0; }
  template <class T> T* at(int64_t t) const {
    return view_.as<T>() ? view_.as<T>() + t * view_.stride(0) : nullptr;
  }
  /// Step t [N, C].
  View step(int64_t t) const {
    return {at<char>(0) + t * view_.stride(0) * size_of(view_.dtype),
            view_.dtype,
            {view_.size(1), view_.size(2)},
            {row(), 1}};
  }
  /// Steps [first, last) as one matrix; of a flat one.
  View matrix(int64_t first, int64_t last) const {
    View v = step(first);
    v.sizes[0] = (last - first) * view_.size(1);
    return v;
  }
  View matrix() const { return matrix(0, view_.size(0)); }

 private:
  // [C] and [N, C] get leading dims of size 1; dims of size 1 get the strides of a dense matrix.
  static View rank3(const View& v) {
    const int r = v.ndim();
    if (!v.defined()) return {};
    View out{v.data,
             v.dtype,
             {r == 3 ? v.size(0) : 1, r >= 2 ? v.size(r - 2) : 1, v.size(r - 1)},
             {0, 0, v.stride(r - 1)}};
    if (out.size(2) == 1) out.strides[2] = 1;
    out.strides[0] = r == 3 ? v.stride(0) : 0;
    out.strides[1] = out.size(1) != 1 ? v.stride(r - 2) : out.size(0) > 1 ? out.stride(0) : out.size(2);
    if (out.size(0) == 1) out.strides[0] = out.size(1) * out.stride(1);
    return out;
  }
  static bool fits(const View& v, const View& at, DType dtype, bool flat) {
    if (!v.defined() || v.numel() == 0) return true;
    return at.dtype == dtype && at.stride(2) == 1 && at.stride(1) >= at.size(2) &&
           (!flat || at.stride(0) == at.size(1) * at.stride(1));
  }

  CudaBackend& backend_;
  Context& context_;
  View target_;
  bool in_place_;
  Flow flow_;
  Scratch copy_;
  View view_;
};

/// Copies `from` to `to`, or zeros if `from` is absent.
inline void copy_state(CudaBackend& backend, Context& context, const View& from, const View& to) {
  if (!to.defined()) return;
  if (from.defined()) backend.copy(context, from, to);
  else backend.fill(context, 0, to);
}

inline View transposed(View v) {
  std::swap(v.sizes[0], v.sizes[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

/// Rows [first, last) of a matrix, or steps of a sequence.
inline View rows_of(View v, int64_t first, int64_t last) {
  v.data = v.as<char>() + first * v.stride(0) * size_of(v.dtype);
  v.sizes[0] = last - first;
  return v;
}

/// Forward or backward of weft's cell over the sequence of one layer, in runs of steps. A run reads its steps
/// of x (dy in a backward) and writes those of y (dx), so that another layer may use them before the rest.
class CellPass {
 public:
  virtual ~CellPass() = default;
  /// Issues steps [first, last), counted from the one that the layer takes first. Forward takes them from the
  /// first to the last, backward from the last to the first.
  virtual void run(int64_t first, int64_t last) = 0;
  /// Issues the rest of the pass, behind the run of every step.
  virtual void finish() = 0;
};

/// Passes of weft's cell, over at least one step, row and column; runs have at most `longest` steps. All work
/// goes to the stream of `context`, which outlives the pass. The reserve is the same as on the CPU: per
/// (t, n) a row of reserve_width * H numbers in blocks of H:
///   LSTM  i f g o c tanh(c)     (gates after their activation; c after the step)
///   GRU   r z n q               (q = W_hn h + b_hn, before r multiplies it)
///   tanh, relu  h
std::unique_ptr<CellPass> cell_forward(CudaBackend& backend, Context& context, const RnnLayer& layer,
                                       const RnnInputs& in, const RnnOutputs& out, int64_t longest);
std::unique_ptr<CellPass> cell_backward(CudaBackend& backend, Context& context, const RnnLayer& layer,
                                        const RnnInputs& in, const RnnOutputs& out, const View& dy,
                                        const View& dhn, const View& dcn, const RnnGrads& grads,
                                        int64_t longest);

/// Whole passes, also over empty sequences.
void rnn_cell_forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
                      const RnnOutputs& out);
void rnn_cell_backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
                       const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn,
                       const RnnGrads& grads);

/// The compute type of a cell, and the type of its running state.
template <class S> using CellType = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// The grid of the elementwise kernels of a step: blocks over columns, rows of blocks over the batch.
inline Grid cell_grid(int64_t batch, int64_t hidden) {
  constexpr int kThreads = 128;
  return {.blocks = blocks_for(hidden, kThreads), .rows = batch < 65535 ? batch : 65535, .threads = kThreads};
}

}  // namespace weft::cuda
