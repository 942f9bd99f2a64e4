// Forward of one direction of one recurrent layer over a whole sequence, by weft's cell. x [T, N, I] -> y [T,
// N, H] (=), hn, cn [N, H] (=). One product computes the input projections of a run of steps (rnn.h), usually
// all of them, in the reserve if that has the compute type. Then each step runs one product W_hh h and one
// kernel. The kernel adds the two, applies the gates, and writes the state, y and the reserve. The half
// dtypes keep pre-activations and the running state in float32. An LSTM may take all steps in one kernel
// instead (rnn_persistent.h).
//
// 2 T N G H (I + H) flops. Per (t, n, column) a step's kernel reads 2 G numbers and the biases, and writes y
// and reserve_width numbers.
#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/cuda/ops/rnn_persistent.h>
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

template <class S> class Forward final : public CellPass {
 public:
  Forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
          const RnnOutputs& out, int64_t longest)
      : backend_(backend),
        context_(context),
        layer_(layer),
        steps_(in.x.size(0)),
        batch_(in.x.size(1)),
        hidden_(in.w_hh.size(1)),
        columns_(layer.gates() * hidden_),
        x_(backend, context, in.x, kStored, Flow::kIn, true),
        w_ih_(backend, context, in.w_ih, kStored, Flow::kIn),
        w_hh_(backend, context, in.w_hh, kStored, Flow::kIn),
        b_ih_(backend, context, in.b_ih, kStored, Flow::kIn),
        b_hh_(backend, context, in.b_hh, kStored, Flow::kIn),
        h0_(backend, context, in.h0, kStored, Flow::kIn),
        y_(backend, context, out.y, kStored, Flow::kOut),
        hn_(backend, context, out.hn, kStored, Flow::kOut),
        cn_(backend, context, lstm() ? out.cn : View{}, kStored, Flow::kOut),
        reserve_(backend, context, out.reserve, kStored, Flow::kOut, true),
        in_reserve_(reserve_.defined() && kStored == kComputed),
        plan_(plan(longest)),
        apart_(backend, context, in_reserve_ ? 0 : bytes_of(std::min(longest, steps_) * batch_ * columns_)),
        from_h_(backend, context, plan_ ? 0 : bytes_of(batch_ * columns_)),
        cell_(backend, context, lstm() ? bytes_of(batch_ * hidden_) : 0) {
    if (lstm())
      copy_state(backend, context, in.c0, {cell_.as<C>(), kComputed, {batch_, hidden_}, {hidden_, 1}});
  }

  void run(int64_t first, int64_t last) override {
    // Input projections: in the reserve's rows, or in separate memory.
    const int64_t begin = std::min(time(first), time(last - 1)), end = begin + last - first,
                  from_x_row = in_reserve_ ? reserve_.row() : columns_;
    C* const from_x = in_reserve_ ? reserve_.at<C>(begin) : apart_.as<C>();
    backend_.matmul(context_, 1, x_.matrix(begin, end), transposed(w_ih_.matrix()), 0, {},
                    {from_x, kComputed, {(end - begin) * batch_, columns_}, {from_x_row, 1}});
    const auto from_x_of = [&](int64_t s) { return from_x + (time(s) - begin) * batch_ * from_x_row; };
    if (plan_) return all_steps(first, last, from_x_of(first), from_x_row);
    for (int64_t s = first; s < last; ++s) step(s, from_x_of(s), from_x_row);
  }
  void finish() override { y_.finish(), hn_.finish(), cn_.finish(), reserve_.finish(); }

 private:
  using C = CellType<S>;
  using Flow = Dense::Flow;
  static constexpr DType kStored = dtype_of<S>, kComputed = dtype_of<C>;
  static size_t bytes_of(int64_t numbers) { return static_cast<size_t>(numbers) * sizeof(C); }
  bool lstm() const { return layer_.mode == RnnMode::kLstm; }
  int64_t time(int64_t s) const { return layer_.reverse ? steps_ - 1 - s : s; }

  /// The plan of a persistent kernel; nullopt: there is a kernel per step.
  std::optional<persistent::Plan> plan(int64_t longest) const {
    if constexpr (std::is_same_v<S, double>) return std::nullopt;
    else return persistent::plan_forward<S>(backend_, layer_, {steps_, longest, batch_, hidden_});
  }
  void all_steps(int64_t first, int64_t last, const C* from_x, int64_t from_x_row) {
    if constexpr (!std::is_same_v<S, double>) {
      const int64_t t = time(first), forward = layer_.reverse ? -1 : 1;
      const Dense& before = first == 0 ? h0_ : y_;
      const bool ends = last == steps_;
      persistent::forward(backend_.stream_of(context_), *plan_,
                          persistent::Forward<S>{last - first,
                                                 batch_,
                                                 hidden_,
                                                 from_x,
                                                 forward * batch_ * from_x_row,
                                                 from_x_row,
                                                 w_hh_.at<S>(0),
                                                 w_hh_.row(),
                                                 b_ih_.at<S>(0),
                                                 b_hh_.at<S>(0),
                                                 before.at<S>(first == 0 ? 0 : time(first - 1)),
                                                 before.row(),
                                                 cell_.as<C>(),
                                                 y_.at<S>(t),
                                                 forward * y_.of_step(),
                                                 y_.row(),
                                                 reserve_.at<S>(t),
                                                 forward * reserve_.of_step(),
                                                 reserve_.row(),
                                                 ends ? hn_.at<S>(0) : nullptr,
                                                 ends ? cn_.at<S>(0) : nullptr,
                                                 hn_.row(),
                                                 cn_.row()});
    }
  }

  void step(int64_t s, const C* from_x, int64_t from_x_row) {
    const int64_t t = time(s);
    const Dense& before = s == 0 ? h0_ : y_;
    const int64_t at = s == 0 ? 0 : time(s - 1);
    if (before.defined())
      backend_.matmul(context_, 1, before.step(at), transposed(w_hh_.matrix()), 0, {},
                      {from_h_.as<C>(), kComputed, {batch_, columns_}, {columns_, 1}});
    const bool last = s + 1 == steps_;
    launch(backend_.stream_of(context_), "rnn_cell", cell_grid(batch_, hidden_),
           CellStep<S>{layer_.mode, batch_, hidden_, from_x, from_x_row,
                       before.defined() ? from_h_.as<C>() : nullptr, b_ih_.at<S>(0), b_hh_.at<S>(0),
                       before.at<S>(at), before.row(), cell_.as<C>(), y_.at<S>(t), y_.row(),
                       reserve_.at<S>(t), reserve_.row(), last ? hn_.at<S>(0) : nullptr,
                       last ? cn_.at<S>(0) : nullptr, hn_.row(), cn_.row()});
  }

  CudaBackend& backend_;
  Context& context_;
  const RnnLayer layer_;
  const int64_t steps_, batch_, hidden_, columns_;
  const Dense x_, w_ih_, w_hh_, b_ih_, b_hh_, h0_, y_, hn_, cn_, reserve_;
  const bool in_reserve_;
  const std::optional<persistent::Plan> plan_;
  const Scratch apart_, from_h_, cell_;
};

}  // namespace

std::unique_ptr<CellPass> cell_forward(CudaBackend& backend, Context& context, const RnnLayer& layer,
                                       const RnnInputs& in, const RnnOutputs& out, int64_t longest) {
  const auto make = [&]<class S>(TypeTag<S>) -> std::unique_ptr<CellPass> {
    return std::make_unique<Forward<S>>(backend, context, layer, in, out, longest);
  };
  switch (in.x.dtype) {
    case kFloat16: return make(TypeTag<Half>{});
    case kBFloat16: return make(TypeTag<BFloat16>{});
    case kFloat64: return make(TypeTag<double>{});
    default: return make(TypeTag<float>{});
  }
}

void rnn_cell_forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
                      const RnnOutputs& out) {
  const int64_t steps = in.x.size(0);
  if (in.x.size(1) == 0 || in.w_hh.size(1) == 0) return;
  if (steps == 0) {
    copy_state(backend, context, in.h0, out.hn);
    if (layer.mode == RnnMode::kLstm) copy_state(backend, context, in.c0, out.cn);
    return;
  }
  const auto pass = cell_forward(backend, context, layer, in, out, steps);
  pass->run(0, steps);
  pass->finish();
}

}  // namespace weft::cuda
