// Backward of one direction of one recurrent layer, from the reserve of forward (rnn.h). The steps run from
// last to first. In each, the fused kernel turns the gradient of h (and c) into the gradient of the gates
// before activation. Then a small product with W_hh gives the gradient of the previous state. The gate
// gradients of all steps stay in one matrix. So dx, dW_ih, dW_hh and the biases are one large product or
// column sum each at the end. All results are overwritten. 4 T N G H (I + H) flops.
//
// A row of gate gradients: LSTM di df dg do; tanh and relu da; GRU dr dz dq dn. There dq is the gradient of q
// = W_hn h + b_hn, and dn that of n before tanh. W_hh uses the first 3 H numbers, W_ih uses (dr dz) and dn.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/packed_b.h>
#include <weft/kernels/cpu/isa/rnn.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

template <class T> struct Backward {
  RnnMode mode;
  bool reverse;
  int64_t steps, batch, hidden;
  Dense<T> y, h0, c0, reserve, dy;
  T* dgates;  // [T * N, width]
  int64_t width;
  T *dh, *dc;       // [N, H]: gradient from the next step
  const T* packed;  // W_hh [G * H, H]

  int64_t time(int64_t s) const { return reverse ? steps - 1 - s : s; }
  const T* h_before(int64_t s, int64_t n) const {
    return s == 0 ? (h0.defined() ? h0.at(0, n) : nullptr) : y.at(time(s - 1), n);
  }
  int64_t recurrent_columns() const {
    return mode == RnnMode::kLstm ? 4 * hidden : mode == RnnMode::kGru ? 3 * hidden : hidden;
  }

  /// Gradient of the gates of one row. It leaves in dh the part of the previous state's gradient that does
  /// not pass through W_hh.
  void cell(int64_t s, int64_t n) const {
    const int64_t t = time(s);
    const T* const kept = reserve.at(t, n);
    const T* const grad = dy.defined() ? dy.at(t, n) : nullptr;
    T* const out = dgates + (t * batch + n) * width;
    T* const later = dh + n * hidden;
    const auto block = [this](auto* p, int64_t i) { return p + i * hidden; };
    if (mode == RnnMode::kLstm) {
      T* const later_c = dc + n * hidden;
      const T* const before =
          s == 0 ? (c0.defined() ? c0.at(0, n) : nullptr) : block(reserve.at(time(s - 1), n), 4);
      each_vector<T>(
          0, hidden, [&](auto get, auto put) __attribute__((always_inline)) {
            const Vec<T> i = get(kept), f = get(block(kept, 1)), g = get(block(kept, 2)),
                         o = get(block(kept, 3)), tc = get(block(kept, 5));
            const Vec<T> d = grad ? get(later) + get(grad) : get(later);
            const Vec<T> c = get(later_c) + d * o * (1 - tc * tc);
            put(out, c * g * i * (1 - i));
            put(block(out, 1), before ? c * get(before) * f * (1 - f) : Vec<T>{});
            put(block(out, 2), c * i * (1 - g * g));
            put(block(out, 3), d * tc * o * (1 - o));
            put(later_c, c * f);
          });
    } else if (mode == RnnMode::kGru) {
      const T* const before = h_before(s, n);
      each_vector<T>(
          0, hidden, [&](auto get, auto put) __attribute__((always_inline)) {
            const Vec<T> r = get(kept), z = get(block(kept, 1)), m = get(block(kept, 2)),
                         q = get(block(kept, 3));
            const Vec<T> d = grad ? get(later) + get(grad) : get(later);
            const Vec<T> state = before ? get(before) : Vec<T>{};
            const Vec<T> dm = d * (1 - z) * (1 - m * m);
            put(out, dm * q * r * (1 - r));
            put(block(out, 1), d * (state - m) * z * (1 - z));
            put(block(out, 2), dm * r);
            put(block(out, 3), dm);
            put(later, d * z);
          });
    } else {
      each_vector<T>(
          0, hidden, [&](auto get, auto put) __attribute__((always_inline)) {
            const Vec<T> h = get(kept), d = grad ? get(later) + get(grad) : get(later);
            put(out, mode == RnnMode::kTanh ? d * (1 - h * h) : (h <= 0 ? Vec<T>{} : d));
          });
    }
  }

  /// dh of rows [n0, n1) and columns [j0, j1): the gate gradients through W_hh, added to the part that the
  /// cell left there (GRU).
  void recur(int64_t n0, int64_t n1, int64_t j0, int64_t j1, const T* strips) const {
    const Finish<T> finish{1, mode == RnnMode::kGru ? T(1) : T(0), nullptr};
    multiply<T>(n1 - n0, hidden, recurrent_columns(), {strips, {}}, {packed, {}}, j0, j1, dh + n0 * hidden,
                hidden, finish);
  }

  const T* pack_gates(int64_t s, int64_t n0, int64_t n1, T* strips) const {
    pack_a<T>(strips, {dgates + (time(s) * batch + n0) * width, width, 1}, n1 - n0, recurrent_columns());
    return strips;
  }

  void run(const RnnPartition& partition) const {
    if (partition.by_rows) {
      each_task(partition.rows.count, [&](int64_t part) {
        const int64_t n0 = partition.rows.begin(part), n1 = partition.rows.begin(part + 1);
        const Scratch<T> buffer((n1 - n0) * recurrent_columns());
        for (int64_t s = steps - 1; s >= 0; --s) {
          for (int64_t n = n0; n < n1; ++n) cell(s, n);
          recur(n0, n1, 0, hidden, pack_gates(s, n0, n1, buffer.get()));
        }
      });
      return;
    }
    const Scratch<T> buffer(batch * recurrent_columns());
    for (int64_t s = steps - 1; s >= 0; --s) {
      each_rows(batch, hidden, [&](int64_t n0, int64_t n1) {
        for (int64_t n = n0; n < n1; ++n) cell(s, n);
      });
      const T* strips = pack_gates(s, 0, batch, buffer.get());
      each_task(partition.panels.count,
                [&](int64_t part) { recur(0, batch, partition.first(part), partition.last(part), strips); });
    }
  }

  /// dw[G * H, H] = sum over steps of gate gradients^T times the state before; rows of dw for gate gradient
  /// columns [c0, c0 + count).
  void state_product(int64_t column, int64_t count, T* dw, int64_t dw_row) const {
    const int64_t first = time(0), rest = (steps - 1) * batch;
    const T* g = dgates + column;
    const Operand<T> first_grads{g + first * batch * width, 1, width},
        rest_grads{g + (reverse ? 0 : batch * width), 1, width};
    if (h0.defined()) gemm<T>(count, hidden, batch, first_grads, h0.matrix(), dw, dw_row);
    else copy_rows<T>(dw, dw_row, nullptr, 0, count, hidden);
    if (rest > 0)
      gemm<T>(count, hidden, rest, rest_grads, {y.at(reverse ? 1 : 0, 0), y.row, 1}, dw, dw_row,
              {1, 1, nullptr});
  }
};

/// out[k] = sum over rows of m[row, k], in order.
template <class T> void column_sums(const T* m, int64_t row, int64_t rows, int64_t columns, T* out) {
  // Some neighbouring columns at least: a line of the cache has 16 floats, and all of it is fetched.
  constexpr int64_t kLeast = 2 * kPanel<T>;
  const int64_t wanted = 65536 / (rows + 1) / kPanel<T> * kPanel<T>;
  const Parts parts(columns, wanted < kLeast ? kLeast : wanted);
  each_task(parts.count, [&](int64_t part) {
    const int64_t begin = parts.begin(part), end = parts.begin(part + 1);
    for (int64_t k = begin; k < end; ++k) out[k] = 0;
    for (int64_t r = 0; r < rows; ++r)
      each_vector<T>(
          begin, end, [&](auto get, auto put) __attribute__((always_inline)) {
            put(out, get(out) + get(m + r * row));
          });
  });
}

template <class T>
void run(const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out, V dy, V dhn, V dcn,
         const RnnGrads& grads) {
  const int64_t steps = in.x.size(0), batch = in.x.size(1), inputs = in.x.size(2), hidden = in.w_hh.size(1);
  const bool lstm = layer.mode == RnnMode::kLstm, gru = layer.mode == RnnMode::kGru;
  const int64_t columns = layer.gates() * hidden, width = gru ? 4 * hidden : columns;
  const Scratch<T> dgates(steps * batch * width), dh(batch * hidden), dc(lstm ? batch * hidden : 0);
  Backward<T> b{layer.mode,
                layer.reverse,
                steps,
                batch,
                hidden,
                {out.y, Flow::kIn},
                {in.h0, Flow::kIn},
                {lstm ? in.c0 : View{}, Flow::kIn},
                {out.reserve, Flow::kIn},
                {dy, Flow::kIn},
                dgates.get(),
                width,
                dh.get(),
                dc.get(),
                nullptr};
  b.y.flatten();
  {
    const Dense<T> last_h(dhn, Flow::kIn), last_c(lstm ? dcn : View{}, Flow::kIn);
    copy_rows(dh.get(), hidden, static_cast<const T*>(last_h.data()), last_h.row, batch, hidden);
    if (lstm) copy_rows(dc.get(), hidden, static_cast<const T*>(last_c.data()), last_c.row, batch, hidden);
  }
  if (steps > 0 && batch > 0 && hidden > 0) {
    const Dense<T> w_hh(in.w_hh, Flow::kIn);
    PackedB<T> packed(w_hh.matrix(), columns, hidden);
    if (!packed.is_filled()) {
      pack_b(packed.get(), w_hh.matrix(), columns, hidden, 0, hidden);
      packed.keep();
    }
    b.packed = packed.get();
    b.run(RnnPartition(batch, layer.gates(), hidden, kPanel<T>, sizeof(T), kLeastPanels<T>));
  }

  const auto give = [&](V to, auto&& write) {
    if (!to.defined()) return;
    Dense<T> target(to, Flow::kOut);
    write(target);
    target.finish();
  };
  const auto copy_state = [&](const T* from) {
    return [=](Dense<T>& to) { copy_rows(to.data(), to.row, from, hidden, batch, hidden); };
  };
  give(grads.dh0, copy_state(dh.get()));
  if (lstm) give(grads.dc0, copy_state(dc.get()));

  const int64_t rows = steps * batch;
  const T* g = dgates.get();
  // GRU: dn is not next to dr dz
  const int64_t n_column = gru ? 3 * hidden : 0, shared = gru ? 2 * hidden : columns;
  give(grads.dx, [&](Dense<T>& dx) {
    const Dense<T> w_ih(in.w_ih, Flow::kIn);
    const bool direct = dx.flat();
    const Scratch<T> own(direct ? 0 : rows * inputs);
    T* to = direct ? dx.data() : own.get();
    const int64_t to_row = direct ? dx.row : inputs;
    gemm<T>(rows, inputs, shared, {g, width, 1}, w_ih.matrix(), to, to_row);
    if (gru)
      gemm<T>(rows, inputs, hidden, {g + n_column, width, 1}, {w_ih.data() + shared * w_ih.row, w_ih.row, 1},
              to, to_row, {1, 1, nullptr});
    for (int64_t t = 0; !direct && t < steps; ++t)
      copy_rows(dx.at(t, 0), dx.row, to + t * batch * inputs, inputs, batch, inputs);
  });
  give(grads.dw_ih, [&](Dense<T>& dw) {
    Dense<T> x(in.x, Flow::kIn);
    x.flatten();
    gemm<T>(shared, inputs, rows, {g, 1, width}, x.matrix(), dw.data(), dw.row);
    if (gru)
      gemm<T>(hidden, inputs, rows, {g + n_column, 1, width}, x.matrix(), dw.data() + shared * dw.row,
              dw.row);
  });
  give(grads.dw_hh, [&](Dense<T>& dw) {
    if (rows > 0) b.state_product(0, columns, dw.data(), dw.row);
    else copy_rows<T>(dw.data(), dw.row, nullptr, 0, columns, hidden);
  });
  const bool summed = grads.db_ih.defined() || grads.db_hh.defined();
  const Scratch<T> sums(summed ? columns : 0);
  if (summed) column_sums(g, width, rows, columns, sums.get());
  give(grads.db_ih, [&](Dense<T>& db) {
    copy_rows(db.data(), shared, static_cast<const T*>(sums.get()), shared, 1, shared);
    if (gru) column_sums(g + n_column, width, rows, hidden, db.data() + shared);
  });
  give(grads.db_hh, [&](Dense<T>& db) {
    copy_rows(db.data(), columns, static_cast<const T*>(sums.get()), columns, 1, columns);
  });
}

}  // namespace

void IsaBackend::rnn_backward(Context&, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out,
                              View dy, View dhn, View dcn, const RnnGrads& grads) {
  if (in.x.dtype == DType::kFloat64) return run<double>(layer, in, out, dy, dhn, dcn, grads);
  run<float>(layer, in, out, dy, dhn, dcn, grads);
}

}  // namespace weft::kernels::WEFT_ISA_NS
