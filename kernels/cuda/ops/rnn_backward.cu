// Backward of weft's cell, from the reserve of forward (rnn.h). The steps run from last to first. In each,
// one kernel turns the gradient of h (and c) into the gradient of the gates before activation. Then one
// product with W_hh gives the gradient of the previous state. The gate gradients of all steps stay in one
// matrix. So dW_ih, dW_hh and the biases are one large product or column sum each at the end. dx is one
// product for each run of steps (rnn.h), usually all of them. All results are overwritten (=).
//
// A row of gate gradients: LSTM di df dg do; tanh and relu da; GRU dr dz dq dn. There dq is the gradient of q
// = W_hn h + b_hn, and dn that of n before tanh. W_hh uses the first 3 H numbers, W_ih uses (dr dz) and dn.
// They have the dtype of x; dh and dc are float32 for the half dtypes. 4 T N G H (I + H) flops. A step's
// kernel reads reserve_width + 2 numbers per (n, column) and writes G (GRU: 4). An LSTM may take all steps in
// one kernel instead (rnn_persistent.h).
#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/cuda/ops/rnn_persistent.h>

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

/// Columns [first, last) of a matrix.
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

template <class S> class Backward final : public CellPass {
 public:
  Backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
           const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn, const RnnGrads& grads,
           int64_t longest)
      : backend_(backend),
        context_(context),
        layer_(layer),
        in_x_(in.x),
        grads_(grads),
        steps_(in.x.size(0)),
        batch_(in.x.size(1)),
        hidden_(in.w_hh.size(1)),
        columns_(layer.gates() * hidden_),
        width_(gru() ? 4 * hidden_ : columns_),
        shared_(gru() ? 2 * hidden_ : columns_),
        w_ih_(backend, context, in.w_ih, kStored, Flow::kIn),
        w_hh_(backend, context, in.w_hh, kStored, Flow::kIn),
        h0_(backend, context, in.h0, kStored, Flow::kIn),
        c0_(backend, context, lstm() ? in.c0 : View{}, kStored, Flow::kIn),
        y_(backend, context, out.y, kStored, Flow::kIn, true),
        reserve_(backend, context, out.reserve, kStored, Flow::kIn),
        dy_(backend, context, dy, kStored, Flow::kIn),
        dx_(backend, context, grads.dx, kStored, Flow::kOut, true),
        dgates_(backend, context, static_cast<size_t>(steps_ * batch_ * width_) * sizeof(S)),
        dh_(backend, context, state_bytes()),
        dc_(backend, context, lstm() ? state_bytes() : 0),
        plan_(plan(longest)),
        all_{dgates_.as<void>(), kStored, {steps_ * batch_, width_}, {width_, 1}},
        dh_view_{dh_.as<void>(), kComputed, {batch_, hidden_}, {hidden_, 1}},
        dc_view_{dc_.as<void>(), kComputed, {batch_, hidden_}, {hidden_, 1}} {
    copy_state(backend, context, dhn, dh_view_);
    if (lstm()) copy_state(backend, context, dcn, dc_view_);
  }

  void run(int64_t first, int64_t last) override {
    if (plan_) all_steps(first, last);
    else
      for (int64_t s = last - 1; s >= first; --s) step(s);
    if (!dx_.defined()) return;
    const int64_t begin = std::min(time(first), time(last - 1)), end = begin + last - first;
    const View dx = dx_.matrix(begin, end), w = w_ih_.matrix();
    backend_.matmul(context_, 1, rows_of(joint(), begin * batch_, end * batch_), rows_of(w, 0, shared_), 0,
                    {}, dx);
    if (gru())
      backend_.matmul(context_, 1, rows_of(apart(), begin * batch_, end * batch_),
                      rows_of(w, shared_, columns_), 1, {}, dx);
  }

  void finish() override {
    dx_.finish();
    if (grads_.dh0.defined()) backend_.copy(context_, dh_view_, grads_.dh0);
    if (lstm() && grads_.dc0.defined()) backend_.copy(context_, dc_view_, grads_.dc0);
    if (grads_.dw_ih.defined() && in_x_.size(2) > 0) {
      const Dense x(backend_, context_, in_x_, kStored, Flow::kIn, true);
      backend_.matmul(context_, 1, transposed(joint()), x.matrix(), 0, {}, rows_of(grads_.dw_ih, 0, shared_));
      if (gru())
        backend_.matmul(context_, 1, transposed(apart()), x.matrix(), 0, {},
                        rows_of(grads_.dw_ih, shared_, columns_));
    }
    if (grads_.dw_hh.defined()) recurrent_weights();
    if (grads_.db_ih.defined()) {
      column_sums(backend_, context_, joint(), grads_.db_ih, 0);
      if (gru()) column_sums(backend_, context_, apart(), grads_.db_ih, shared_);
    }
    if (grads_.db_hh.defined()) {
      if (!gru() && grads_.db_ih.defined()) backend_.copy(context_, grads_.db_ih, grads_.db_hh);
      else column_sums(backend_, context_, recurrent(), grads_.db_hh, 0);
    }
  }

 private:
  using C = CellType<S>;
  using Flow = Dense::Flow;
  static constexpr DType kStored = dtype_of<S>, kComputed = dtype_of<C>;
  bool lstm() const { return layer_.mode == RnnMode::kLstm; }
  bool gru() const { return layer_.mode == RnnMode::kGru; }
  int64_t time(int64_t s) const { return layer_.reverse ? steps_ - 1 - s : s; }
  size_t state_bytes() const { return static_cast<size_t>(batch_ * hidden_) * sizeof(C); }
  // The gate gradients that W_hh uses, and those that W_ih uses: GRU's dn is not next to its dr dz.
  View recurrent() const { return columns_of(all_, 0, columns_); }
  View joint() const { return columns_of(all_, 0, shared_); }
  View apart() const { return columns_of(all_, 3 * hidden_, 4 * hidden_); }

  /// The plan of a persistent kernel; nullopt: there is a kernel per step.
  std::optional<persistent::Plan> plan(int64_t longest) const {
    if constexpr (std::is_same_v<S, double>) return std::nullopt;
    else return persistent::plan_backward<S>(backend_, layer_, {steps_, longest, batch_, hidden_});
  }
  /// The state before step s, c of an LSTM and h of others, and the distance of its rows.
  std::pair<const S*, int64_t> state_before(int64_t s) const {
    if (s == 0) {
      const Dense& first = lstm() ? c0_ : h0_;
      return {first.at<S>(0), first.row()};
    }
    if (lstm()) return {reserve_.at<S>(time(s - 1)) + 4 * hidden_, reserve_.row()};
    return {y_.at<S>(time(s - 1)), y_.row()};
  }
  void all_steps(int64_t first, int64_t last) {
    if constexpr (!std::is_same_v<S, double>) {
      const int64_t t = time(last - 1), back = layer_.reverse ? 1 : -1;
      const auto [before, before_row] = state_before(first);
      persistent::backward(
          backend_.stream_of(context_), *plan_,
          persistent::Backward<S>{last - first, batch_, hidden_, reserve_.at<S>(t), back * reserve_.of_step(),
                                  reserve_.row(), dy_.at<S>(t), back * dy_.of_step(), dy_.row(), before,
                                  before_row, w_hh_.at<S>(0), w_hh_.row(),
                                  dgates_.as<S>() + t * batch_ * width_, back * batch_ * width_, dh_.as<C>(),
                                  dc_.as<C>(), first > 0 || grads_.dh0.defined()});
    }
  }

  void step(int64_t s) {
    const int64_t t = time(s);
    const auto [before, before_row] = state_before(s);
    launch(backend_.stream_of(context_), "rnn_cell_backward", cell_grid(batch_, hidden_),
           CellStepBackward<S>{layer_.mode, batch_, hidden_, reserve_.at<S>(t), reserve_.row(), dy_.at<S>(t),
                               dy_.row(), before, before_row, dgates_.as<S>() + t * batch_ * width_, width_,
                               dh_.as<C>(), dc_.as<C>()});
    // The gate gradients through W_hh, added to the part that the kernel left in dh (GRU).
    if (s > 0 || grads_.dh0.defined())
      backend_.matmul(context_, 1, rows_of(recurrent(), t * batch_, (t + 1) * batch_), w_hh_.matrix(),
                      gru() ? 1 : 0, {}, dh_view_);
  }

  void recurrent_weights() {  // gate gradients of a step times the state before it
    const int64_t first = time(0), later = layer_.reverse ? 0 : 1, earlier = layer_.reverse ? 1 : 0,
                  rest = steps_ - 1;
    if (h0_.defined())
      backend_.matmul(context_, 1, transposed(rows_of(recurrent(), first * batch_, (first + 1) * batch_)),
                      h0_.matrix(), 0, {}, grads_.dw_hh);
    else if (rest == 0) backend_.fill(context_, 0, grads_.dw_hh);
    if (rest > 0)
      backend_.matmul(context_, 1, transposed(rows_of(recurrent(), later * batch_, (later + rest) * batch_)),
                      y_.matrix(earlier, earlier + rest), h0_.defined() ? 1 : 0, {}, grads_.dw_hh);
  }

  CudaBackend& backend_;
  Context& context_;
  const RnnLayer layer_;
  const View in_x_;
  const RnnGrads grads_;
  const int64_t steps_, batch_, hidden_, columns_, width_, shared_;
  const Dense w_ih_, w_hh_, h0_, c0_, y_, reserve_, dy_, dx_;
  const Scratch dgates_, dh_, dc_;
  const std::optional<persistent::Plan> plan_;
  const View all_, dh_view_, dc_view_;
};

}  // namespace

std::unique_ptr<CellPass> cell_backward(CudaBackend& backend, Context& context, const RnnLayer& layer,
                                        const RnnInputs& in, const RnnOutputs& out, const View& dy,
                                        const View& dhn, const View& dcn, const RnnGrads& grads,
                                        int64_t longest) {
  const auto make = [&]<class S>(TypeTag<S>) -> std::unique_ptr<CellPass> {
    return std::make_unique<Backward<S>>(backend, context, layer, in, out, dy, dhn, dcn, grads, longest);
  };
  switch (in.x.dtype) {
    case kFloat16: return make(TypeTag<Half>{});
    case kBFloat16: return make(TypeTag<BFloat16>{});
    case kFloat64: return make(TypeTag<double>{});
    default: return make(TypeTag<float>{});
  }
}

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
  const auto pass = cell_backward(backend, context, layer, in, out, dy, dhn, dcn, grads, in.x.size(0));
  pass->run(0, in.x.size(0));
  pass->finish();
}

}  // namespace weft::cuda
