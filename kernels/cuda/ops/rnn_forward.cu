// Forward of one direction of one recurrent layer over a whole sequence, by weft's cell. x [T, N, I] -> y [T,
// N, H] (=), hn, cn [N, H] (=). One product computes the input projections of all steps, in the reserve if
// that has the compute type. Then each step runs one product W_hh h and one kernel. The kernel adds the two,
// applies the gates, and writes the state, y and the reserve. The half dtypes keep pre-activations and the
// running state in float32.
//
// 2 T N G H (I + H) flops. Per (t, n, column) a step's kernel reads 2 G numbers and the biases, and writes y
// and reserve_width numbers.
#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/math.h>

namespace weft::cuda {

namespace {

using kernels::math::sigmoid;
using kernels::math::tanh;

template <class S> struct CellStep {
  static constexpr bool kIndependent = true;
  using C = CellType<S>;
  RnnMode mode;
  int64_t batch, hidden;
  const C* from_x;  // [N, G * H] in rows of from_x_row
  int64_t from_x_row;
  const C* from_h;       // [N, G * H], or null for a zero state
  const S *b_ih, *b_hh;  // [G * H] or null
  const S* before;       // h of the step before, or null
  int64_t before_row;
  C* cell;  // LSTM: running c [N, H]
  S* y;
  int64_t y_row;
  S* kept;  // row of the reserve, or null; from_x may be the same memory
  int64_t kept_row;
  S *hn, *cn;  // of the last step, or null
  int64_t hn_row, cn_row;

  WEFT_DEVICE C hidden_part(int64_t n, int64_t gate) const {
    C sum = b_hh ? static_cast<C>(b_hh[gate]) : C(0);
    if (from_h) sum += from_h[n * gates() * hidden + gate];
    return sum;
  }
  WEFT_DEVICE C input_part(int64_t n, int64_t gate) const {
    return from_x[n * from_x_row + gate] + (b_ih ? static_cast<C>(b_ih[gate]) : C(0));
  }
  WEFT_DEVICE C sum(int64_t n, int64_t gate) const { return input_part(n, gate) + hidden_part(n, gate); }
  WEFT_DEVICE int64_t gates() const { return mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1; }

  WEFT_DEVICE C lstm(int64_t n, int64_t j, S* row) const {
    const C i = sigmoid(sum(n, j)), f = sigmoid(sum(n, hidden + j)), g = tanh(sum(n, 2 * hidden + j)),
            o = sigmoid(sum(n, 3 * hidden + j));
    C& c = cell[n * hidden + j];
    c = f * c + i * g;
    const C tc = tanh(c);
    if (row)
      row[j] = S(i), row[hidden + j] = S(f), row[2 * hidden + j] = S(g), row[3 * hidden + j] = S(o),
      row[4 * hidden + j] = S(c), row[5 * hidden + j] = S(tc);
    if (cn) cn[n * cn_row + j] = S(c);
    return o * tc;
  }
  WEFT_DEVICE C gru(int64_t n, int64_t j, S* row) const {
    const C r = sigmoid(sum(n, j)), z = sigmoid(sum(n, hidden + j)), q = hidden_part(n, 2 * hidden + j),
            m = tanh(input_part(n, 2 * hidden + j) + r * q);
    if (row) row[j] = S(r), row[hidden + j] = S(z), row[2 * hidden + j] = S(m), row[3 * hidden + j] = S(q);
    const C h = before ? static_cast<C>(before[n * before_row + j]) : C(0);
    return m + z * (h - m);
  }
  WEFT_DEVICE C plain(int64_t n, int64_t j, S* row) const {
    const C a = sum(n, j), h = mode == RnnMode::kTanh ? tanh(a) : a <= 0 ? C(0) : a;
    if (row) row[j] = S(h);
    return h;
  }

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t n = t.row(); n < batch; n += t.rows())
      for (int64_t j = t.global(); j < hidden; j += t.globals()) {
        S* const row = kept ? kept + n * kept_row : nullptr;
        const S h = S(mode == RnnMode::kLstm  ? lstm(n, j, row)
                      : mode == RnnMode::kGru ? gru(n, j, row)
                                              : plain(n, j, row));
        y[n * y_row + j] = h;
        if (hn) hn[n * hn_row + j] = h;
      }
  }
};

template <class S>
void run(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
         const RnnOutputs& out) {
  using C = CellType<S>;
  using Flow = Dense::Flow;
  constexpr DType kStored = dtype_of<S>, kComputed = dtype_of<C>;
  const int64_t steps = in.x.size(0), batch = in.x.size(1), hidden = in.w_hh.size(1),
                columns = layer.gates() * hidden;
  const bool lstm = layer.mode == RnnMode::kLstm;
  const auto time = [&](int64_t s) { return layer.reverse ? steps - 1 - s : s; };

  const Dense x(backend, context, in.x, kStored, Flow::kIn, true),
      w_ih(backend, context, in.w_ih, kStored, Flow::kIn),
      w_hh(backend, context, in.w_hh, kStored, Flow::kIn);
  const Dense b_ih(backend, context, in.b_ih, kStored, Flow::kIn),
      b_hh(backend, context, in.b_hh, kStored, Flow::kIn), h0(backend, context, in.h0, kStored, Flow::kIn);
  const Dense y(backend, context, out.y, kStored, Flow::kOut),
      hn(backend, context, out.hn, kStored, Flow::kOut);
  const Dense cn(backend, context, lstm ? out.cn : View{}, kStored, Flow::kOut),
      reserve(backend, context, out.reserve, kStored, Flow::kOut, true);

  // Input projections: in the reserve's rows, or in separate memory.
  const bool in_reserve = reserve.defined() && kStored == kComputed;
  const int64_t from_x_row = in_reserve ? reserve.row() : columns;
  const Scratch apart(backend, context,
                      in_reserve ? 0 : static_cast<size_t>(steps * batch * columns) * sizeof(C));
  C* const from_x = in_reserve ? reserve.at<C>(0) : apart.as<C>();
  backend.matmul(context, 1, x.matrix(), transposed(w_ih.matrix()), 0, {},
                 {from_x, kComputed, {steps * batch, columns}, {from_x_row, 1}});

  const Scratch from_h(backend, context, static_cast<size_t>(batch * columns) * sizeof(C)),
      cell(backend, context, lstm ? static_cast<size_t>(batch * hidden) * sizeof(C) : 0);
  if (lstm) copy_state(backend, context, in.c0, {cell.as<C>(), kComputed, {batch, hidden}, {hidden, 1}});
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t t = time(s);
    const Dense& before = s == 0 ? h0 : y;
    const int64_t at = s == 0 ? 0 : time(s - 1);
    if (before.defined())
      backend.matmul(context, 1, before.step(at), transposed(w_hh.matrix()), 0, {},
                     {from_h.as<C>(), kComputed, {batch, columns}, {columns, 1}});
    const bool last = s + 1 == steps;
    launch(backend.stream_of(context), "rnn_cell", cell_grid(batch, hidden),
           CellStep<S>{layer.mode, batch, hidden, from_x + t * batch * from_x_row, from_x_row,
                       before.defined() ? from_h.as<C>() : nullptr, b_ih.at<S>(0), b_hh.at<S>(0),
                       before.at<S>(at), before.row(), cell.as<C>(), y.at<S>(t), y.row(), reserve.at<S>(t),
                       reserve.row(), last ? hn.at<S>(0) : nullptr, last ? cn.at<S>(0) : nullptr, hn.row(),
                       cn.row()});
  }
  y.finish(), hn.finish(), cn.finish(), reserve.finish();
}

}  // namespace

void rnn_cell_forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
                      const RnnOutputs& out) {
  if (in.x.size(1) == 0 || in.w_hh.size(1) == 0) return;
  if (in.x.size(0) == 0) {
    copy_state(backend, context, in.h0, out.hn);
    if (layer.mode == RnnMode::kLstm) copy_state(backend, context, in.c0, out.cn);
    return;
  }
  switch (in.x.dtype) {
    case kFloat16: return run<Half>(backend, context, layer, in, out);
    case kBFloat16: return run<BFloat16>(backend, context, layer, in, out);
    case kFloat64: return run<double>(backend, context, layer, in, out);
    default: return run<float>(backend, context, layer, in, out);
  }
}

}  // namespace weft::cuda
