// Backward of weft's cell, from the reserve of forward (rnn.h). The steps run from last to first. In each,
// one kernel turns the gradient of h (and c) into the gradient of the gates before activation. Then one
// product with W_hh gives the gradient of the previous state. The gate gradients of all steps stay in one
// matrix. So dx, dW_ih, dW_hh and the biases are one large product or column sum each at the end. All results
// are overwritten (=).
//
// A row of gate gradients: LSTM di df dg do; tanh and relu da; GRU dr dz dq dn. There dq is the gradient of q
// = W_hn h + b_hn, and dn that of n before tanh. W_hh uses the first 3 H numbers, W_ih uses (dr dz) and dn.
// They have the dtype of x; dh and dc are float32 for the half dtypes. 4 T N G H (I + H) flops. A step's
// kernel reads reserve_width + 2 numbers per (n, column) and writes G (GRU: 4).
#include <weft/kernels/cuda/ops/rnn.h>

namespace weft::cuda {

namespace {

template <class S> struct CellStepBackward {
  static constexpr bool kIndependent = true;
  using C = CellType<S>;
  RnnMode mode;
  int64_t batch, hidden;
  const S* kept;  // row of the reserve
  int64_t kept_row;
  const S* dy;  // or null
  int64_t dy_row;
  const S* before;  // LSTM: c, GRU: h of the step before; or null for zeros
  int64_t before_row;
  S* dgates;
  int64_t width;
  C *dh, *dc;  // [N, H]: gradient from the next step

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t n = t.row(); n < batch; n += t.rows())
      for (int64_t j = t.global(); j < hidden; j += t.globals()) {
        const S* const k = kept + n * kept_row + j;
        S* const out = dgates + n * width + j;
        C& later = dh[n * hidden + j];
        const C d = dy ? later + static_cast<C>(dy[n * dy_row + j]) : later;
        const C state = before ? static_cast<C>(before[n * before_row + j]) : C(0);
        const auto value = [&](int64_t block) { return static_cast<C>(k[block * hidden]); };
        if (mode == RnnMode::kLstm) {
          const C i = value(0), f = value(1), g = value(2), o = value(3), tc = value(5);
          C& later_c = dc[n * hidden + j];
          const C c = later_c + d * o * (1 - tc * tc);
          out[0] = S(c * g * i * (1 - i));
          out[hidden] = S(c * state * f * (1 - f));
          out[2 * hidden] = S(c * i * (1 - g * g));
          out[3 * hidden] = S(d * tc * o * (1 - o));
          later_c = c * f;
        } else if (mode == RnnMode::kGru) {
          const C r = value(0), z = value(1), m = value(2), q = value(3), dm = d * (1 - z) * (1 - m * m);
          out[0] = S(dm * q * r * (1 - r));
          out[hidden] = S(d * (state - m) * z * (1 - z));
          out[2 * hidden] = S(dm * r);
          out[3 * hidden] = S(dm);
          later = d * z;
        } else {
          const C h = value(0);
          out[0] = S(mode == RnnMode::kTanh ? d * (1 - h * h) : h <= 0 ? C(0) : d);
        }
      }
  }
};

/// Rows [first, last) or columns of a matrix.
View rows_of(View v, int64_t first, int64_t last) {
  v.data = v.as<char>() + first * v.stride(0) * size_of(v.dtype);
  v.sizes[0] = last - first;
  return v;
}
View columns_of(View v, int64_t first, int64_t last) {
  return transposed(rows_of(transposed(v), first, last));
}

/// db[k] = sum over rows of m[row, k].
void column_sums(CudaBackend& backend, Context& context, const View& m, const View& db, int64_t first) {
  const int64_t columns = m.size(1);
  backend.reduce(context, Reduce::kSum, m,
                 {db.as<char>() + first * db.stride(0) * size_of(db.dtype),
                  db.dtype,
                  {1, columns},
                  {columns * db.stride(0), db.stride(0)}});
}

template <class S>
void run(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
         const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn, const RnnGrads& grads) {
  using C = CellType<S>;
  using Flow = Dense::Flow;
  constexpr DType kStored = dtype_of<S>, kComputed = dtype_of<C>;
  const int64_t steps = in.x.size(0), batch = in.x.size(1), inputs = in.x.size(2), hidden = in.w_hh.size(1),
                columns = layer.gates() * hidden, rows = steps * batch;
  const bool lstm = layer.mode == RnnMode::kLstm, gru = layer.mode == RnnMode::kGru;
  const int64_t width = gru ? 4 * hidden : columns;
  const auto time = [&](int64_t s) { return layer.reverse ? steps - 1 - s : s; };

  const Dense w_ih(backend, context, in.w_ih, kStored, Flow::kIn),
      w_hh(backend, context, in.w_hh, kStored, Flow::kIn), h0(backend, context, in.h0, kStored, Flow::kIn);
  const Dense c0(backend, context, lstm ? in.c0 : View{}, kStored, Flow::kIn),
      y(backend, context, out.y, kStored, Flow::kIn, true);
  const Dense reserve(backend, context, out.reserve, kStored, Flow::kIn),
      grad(backend, context, dy, kStored, Flow::kIn);
  const Scratch dgates(backend, context, static_cast<size_t>(rows * width) * sizeof(S)),
      dh(backend, context, static_cast<size_t>(batch * hidden) * sizeof(C));
  const Scratch dc(backend, context, lstm ? static_cast<size_t>(batch * hidden) * sizeof(C) : 0);
  const View dh_view{dh.as<void>(), kComputed, {batch, hidden}, {hidden, 1}},
      dc_view{dc.as<void>(), kComputed, {batch, hidden}, {hidden, 1}};
  copy_state(backend, context, dhn, dh_view);
  if (lstm) copy_state(backend, context, dcn, dc_view);

  const View all{dgates.as<void>(), kStored, {rows, width}, {width, 1}};
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t t = time(s);
    const S* before = nullptr;
    int64_t before_row = 0;
    if (s == 0) {
      const Dense& first = lstm ? c0 : h0;
      before = first.at<S>(0), before_row = first.row();
    } else if (lstm) {
      before = reserve.at<S>(time(s - 1)) + 4 * hidden, before_row = reserve.row();
    } else {
      before = y.at<S>(time(s - 1)), before_row = y.row();
    }
    launch(backend.stream_of(context), "rnn_cell_backward", cell_grid(batch, hidden),
           CellStepBackward<S>{layer.mode, batch, hidden, reserve.at<S>(t), reserve.row(), grad.at<S>(t),
                               grad.row(), before, before_row, dgates.as<S>() + t * batch * width, width,
                               dh.as<C>(), dc.as<C>()});
    // The gate gradients through W_hh, added to the part that the kernel left in dh (GRU).
    if (s > 0 || grads.dh0.defined())
      backend.matmul(context, 1, columns_of(rows_of(all, t * batch, (t + 1) * batch), 0, columns),
                     w_hh.matrix(), gru ? 1 : 0, {}, dh_view);
  }
  if (grads.dh0.defined()) backend.copy(context, dh_view, grads.dh0);
  if (lstm && grads.dc0.defined()) backend.copy(context, dc_view, grads.dc0);

  const int64_t shared = gru ? 2 * hidden : columns;  // GRU: dn is not next to dr dz
  const View recurrent = columns_of(all, 0, columns), joint = columns_of(all, 0, shared),
             apart = gru ? columns_of(all, 3 * hidden, 4 * hidden) : View{};
  if (grads.dx.defined()) {
    const Dense dx(backend, context, grads.dx, kStored, Flow::kOut, true);
    backend.matmul(context, 1, joint, rows_of(w_ih.matrix(), 0, shared), 0, {}, dx.matrix());
    if (gru) backend.matmul(context, 1, apart, rows_of(w_ih.matrix(), shared, columns), 1, {}, dx.matrix());
    dx.finish();
  }
  if (grads.dw_ih.defined() && inputs > 0) {
    const Dense x(backend, context, in.x, kStored, Flow::kIn, true);
    backend.matmul(context, 1, transposed(joint), x.matrix(), 0, {}, rows_of(grads.dw_ih, 0, shared));
    if (gru)
      backend.matmul(context, 1, transposed(apart), x.matrix(), 0, {}, rows_of(grads.dw_ih, shared, columns));
  }
  if (grads.dw_hh.defined()) {  // gate gradients of a step times the state before it
    const int64_t first = time(0), later = layer.reverse ? 0 : 1, earlier = layer.reverse ? 1 : 0;
    if (h0.defined())
      backend.matmul(context, 1, transposed(rows_of(recurrent, first * batch, (first + 1) * batch)),
                     h0.matrix(), 0, {}, grads.dw_hh);
    else if (steps == 1) backend.fill(context, 0, grads.dw_hh);
    if (steps > 1)
      backend.matmul(context, 1, transposed(rows_of(recurrent, later * batch, (later + steps - 1) * batch)),
                     y.matrix(earlier, earlier + steps - 1), h0.defined() ? 1 : 0, {}, grads.dw_hh);
  }
  if (grads.db_ih.defined()) {
    column_sums(backend, context, joint, grads.db_ih, 0);
    if (gru) column_sums(backend, context, apart, grads.db_ih, shared);
  }
  if (grads.db_hh.defined()) {
    if (!gru && grads.db_ih.defined()) backend.copy(context, grads.db_ih, grads.db_hh);
    else column_sums(backend, context, recurrent, grads.db_hh, 0);
  }
}

}  // namespace

void rnn_cell_backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
                       const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn,
                       const RnnGrads& grads) {
  // no steps: the gradient of the state is passed on, all others are 0
  if (in.x.size(0) * in.x.size(1) * in.w_hh.size(1) == 0) {
    copy_state(backend, context, dhn, grads.dh0);
    if (layer.mode == RnnMode::kLstm) copy_state(backend, context, dcn, grads.dc0);
    for (const View& v : {grads.dx, grads.dw_ih, grads.dw_hh, grads.db_ih, grads.db_hh})
      copy_state(backend, context, {}, v);
    return;
  }
  switch (in.x.dtype) {
    case kFloat16: return run<Half>(backend, context, layer, in, out, dy, dhn, dcn, grads);
    case kBFloat16: return run<BFloat16>(backend, context, layer, in, out, dy, dhn, dcn, grads);
    case kFloat64: return run<double>(backend, context, layer, in, out, dy, dhn, dcn, grads);
    default: return run<float>(backend, context, layer, in, out, dy, dhn, dcn, grads);
  }
}

}  // namespace weft::cuda
