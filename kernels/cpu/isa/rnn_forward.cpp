// Forward of one direction of one recurrent layer over a whole sequence: x [T, N, I] -> y [T, N, H] (=), hn,
// cn [N, H] (=). One product writes the input projections of all steps into the rows that become the reserve
// (rnn.h). Then each step adds the recurrent product, with W_hh packed once per sequence or kept
// (packed_b.h), and a fused kernel applies the gates in place. 2 T N G H (I + H) flops; W_hh is read T times,
// from cache. For a few rows in all, as in one step of inference, W_hh is read in place: packing would cost
// more than the products.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/packed_b.h>
#include <weft/kernels/cpu/isa/rnn.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

// passes over W_hh, of kDotsRows rows each, up to which packing costs more than it saves
inline constexpr int64_t kDirectPasses = 3;

template <class T> struct Forward {
  RnnMode mode;
  bool reverse;
  int64_t steps, batch, hidden;
  T* gates;       // [T, N, width * H]: projections, then activations
  int64_t width;  // of a row of gates
  Dense<T> y, h0, c0, cn;
  const T* packed;  // gate after gate, each H x H; null: the products take `weights`
  int64_t packed_size;
  Operand<T> weights;         // W_hh [G * H, H]
  const T* bias_q = nullptr;  // GRU: b_hn
  T* cells = nullptr;         // LSTM without reserve: c of the step before [N, H], in cn where it fits
  bool keep;

  int64_t time(int64_t s) const { return reverse ? steps - 1 - s : s; }
  const T* h_before(int64_t s, int64_t n) const {
    return s == 0 ? (h0.defined() ? h0.at(0, n) : nullptr) : y.at(time(s - 1), n);
  }
  T* row(int64_t t, int64_t n) const { return gates + (t * batch + n) * width; }

  /// Adds W_hh h of columns [j0, j1) of H to the gates of rows [n0, n1); `state` is of state_before.
  void recur(int64_t s, int64_t n0, int64_t n1, int64_t j0, int64_t j1, const T* state) const {
    T* out = row(time(s), n0);
    const int gate_count = mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1;
    if (state && !packed && mode == RnnMode::kLstm && j1 - j0 == hidden)  // all gates at once
      return multiply_direct<T>(n1 - n0, 4 * hidden, hidden, {state, state_row(s), 1}, weights.transposed(),
                                out, width, {1, 1, nullptr});
    for (int g = 0; g < gate_count; ++g) {
      Finish<T> finish{1, 1, nullptr};
      T* to = out + g * hidden;
      if (mode == RnnMode::kGru && g == 2) finish = {1, 0, bias_q}, to = out + 3 * hidden;
      if (state && packed) {
        multiply<T>(n1 - n0, hidden, hidden, {state, {}}, {packed + g * packed_size, {}}, j0, j1, to, width,
                    finish);
      } else if (state) {
        if (finish.bias) finish.bias += j0;
        multiply_direct<T>(n1 - n0, j1 - j0, hidden, {state, state_row(s), 1},
                           weights.from(g * hidden + j0, 0).transposed(), to + j0, width, finish);
      } else if (finish.beta == 0) {  // no state yet: q is its bias
        for (int64_t n = 0; n < n1 - n0; ++n)
          for (int64_t j = j0; j < j1; ++j) to[n * width + j] = bias_q ? bias_q[j] : T(0);
      }
    }
  }

  void lstm(int64_t t, int64_t s, int64_t n, int64_t j0, int64_t j1) const {
    T *i = row(t, n), *f = i + hidden, *g = f + hidden, *o = g + hidden, *h = y.at(t, n);
    T* kept = keep ? o + hidden : cells + n * hidden;
    const T* before = s == 0 ? (c0.defined() ? c0.at(0, n) : nullptr)
                      : keep ? row(time(s - 1), n) + 4 * hidden
                             : cells + n * hidden;
    T* tanh_kept = keep ? kept + hidden : nullptr;
    each_vector<T>(
        j0, j1, [&](auto get, auto put) __attribute__((always_inline)) {
          const Vec<T> vi = vsigmoid<T>(get(i)), vf = vsigmoid<T>(get(f)), vg = vtanh<T>(get(g)),
                       vo = vsigmoid<T>(get(o));
          const Vec<T> c = before ? vf * get(before) + vi * vg : vi * vg, tc = vtanh<T>(c);
          put(h, vo * tc);
          put(kept, c);
          if (keep) put(i, vi), put(f, vf), put(g, vg), put(o, vo), put(tanh_kept, tc);
        });
  }
  void gru(int64_t t, int64_t s, int64_t n, int64_t j0, int64_t j1) const {
    T *r = row(t, n), *z = r + hidden, *m = z + hidden, *q = m + hidden, *h = y.at(t, n);
    const T* before = h_before(s, n);
    each_vector<T>(
        j0, j1, [&](auto get, auto put) __attribute__((always_inline)) {
          const Vec<T> vr = vsigmoid<T>(get(r)), vz = vsigmoid<T>(get(z)),
                       vm = vtanh<T>(get(m) + vr * get(q));
          put(h, before ? vm + vz * (get(before) - vm) : vm - vz * vm);
          put(r, vr), put(z, vz), put(m, vm);
        });
  }
  void plain(int64_t t, int64_t n, int64_t j0, int64_t j1) const {
    T *a = row(t, n), *h = y.at(t, n);
    each_vector<T>(
        j0, j1, [&](auto get, auto put) __attribute__((always_inline)) {
          // The order of vmax's arguments keeps a NaN.
          const Vec<T> v = mode == RnnMode::kTanh ? vtanh<T>(get(a)) : vmax(Vec<T>{}, get(a));
          put(h, v);
          put(a, v);
        });
  }

  void cell(int64_t s, int64_t n0, int64_t n1, int64_t j0, int64_t j1) const {
    const int64_t t = time(s);
    for (int64_t n = n0; n < n1; ++n) {
      if (mode == RnnMode::kLstm) lstm(t, s, n, j0, j1);
      else if (mode == RnnMode::kGru) gru(t, s, n, j0, j1);
      else plain(t, n, j0, j1);
    }
  }

  int64_t state_row(int64_t s) const { return s == 0 ? h0.row : y.row; }
  /// The state before step s, as strips for the tile kernel or, without packed weights, in place; null when
  /// it is zero.
  const T* state_before(int64_t s, int64_t n0, int64_t n1, T* strips) const {
    const T* h = h_before(s, n0);
    if (!h || !packed) return h;
    pack_a<T>(strips, {h, state_row(s), 1}, n1 - n0, hidden);
    return strips;
  }

  void run(const RnnPartition& partition) const {
    if (partition.by_rows) {
      each_task(partition.rows.count, [&](int64_t part) {
        const int64_t n0 = partition.rows.begin(part), n1 = partition.rows.begin(part + 1);
        const Scratch<T> buffer(packed ? (n1 - n0) * hidden : 0);
        for (int64_t s = 0; s < steps; ++s) {
          recur(s, n0, n1, 0, hidden, state_before(s, n0, n1, buffer.get()));
          cell(s, n0, n1, 0, hidden);
        }
      });
      return;
    }
    const Scratch<T> buffer(packed ? batch * hidden : 0);
    for (int64_t s = 0; s < steps; ++s) {
      const T* strips = state_before(s, 0, batch, buffer.get());
      each_task(partition.panels.count, [&](int64_t part) {
        recur(s, 0, batch, partition.first(part), partition.last(part), strips);
        cell(s, 0, batch, partition.first(part), partition.last(part));
      });
    }
  }
};

/// to = a + b over `columns` numbers; b has the first `most` of them. A null a or b counts as zeros.
template <class T> void add_rows(T* to, const T* a, int64_t columns, const T* b, int64_t most) {
  each_vector<T>(
      0, columns, [&](auto get, auto put) __attribute__((always_inline)) { put(to, a ? get(a) : Vec<T>{}); });
  if (b)
    each_vector<T>(
        0, most, [&](auto get, auto put) __attribute__((always_inline)) { put(to, get(to) + get(b)); });
}

template <class T> void run(const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out) {
  const int64_t steps = in.x.size(0), batch = in.x.size(1), inputs = in.x.size(2), hidden = in.w_hh.size(1);
  const int gate_count = layer.gates();
  const int64_t columns = gate_count * hidden;
  const bool lstm = layer.mode == RnnMode::kLstm, gru = layer.mode == RnnMode::kGru;
  Dense<T> hn(out.hn, Flow::kOut), cn(out.cn, Flow::kOut);
  Forward<T> f{layer.mode,
               layer.reverse,
               steps,
               batch,
               hidden,
               nullptr,
               0,
               {out.y, Flow::kOut},
               {in.h0, Flow::kIn},
               {lstm ? in.c0 : View{}, Flow::kIn},
               {},
               nullptr,
               packed_columns<T>(hidden) * hidden,
               {},
               nullptr,
               nullptr,
               out.reserve.defined()};
  Dense<T> reserve(out.reserve, Flow::kOut);
  f.width = f.keep ? layer.reserve_width() * hidden : gru ? 4 * hidden : columns;
  const Scratch<T> own_gates(f.keep && reserve.row == f.width && reserve.flat() ? 0
                                                                                : steps * batch * f.width);
  f.gates = own_gates.get() ? own_gates.get() : reserve.data();
  const bool cells_in_cn = lstm && !f.keep && cn.defined() && cn.row == hidden;
  const Scratch<T> cells(lstm && !f.keep && !cells_in_cn ? batch * hidden : 0);
  f.cells = cells_in_cn ? cn.data() : cells.get();

  if (steps > 0 && batch > 0 && hidden > 0) {
    // Biases: both at once, but GRU's b_hn belongs inside the reset gate's product.
    const Dense<T> b_ih(in.b_ih, Flow::kIn), b_hh(in.b_hh, Flow::kIn);
    const Scratch<T> bias(b_ih.defined() || b_hh.defined() ? columns : 0);
    if (bias.get()) add_rows(bias.get(), b_ih.data(), columns, b_hh.data(), gru ? 2 * hidden : columns);
    if (gru && b_hh.defined()) f.bias_q = b_hh.data() + 2 * hidden;
    {
      Dense<T> x(in.x, Flow::kIn);
      x.flatten();
      const Dense<T> w_ih(in.w_ih, Flow::kIn);
      gemm<T>(steps * batch, columns, inputs, x.matrix(), w_ih.matrix().transposed(), f.gates, f.width,
              {1, 0, bias.get()});
    }
    const Dense<T> w_hh(in.w_hh, Flow::kIn);
    f.weights = w_hh.matrix();
    const bool in_place = steps * ((batch + kDotsRows - 1) / kDotsRows) <= kDirectPasses;
    PackedB<T> packed;
    if (!in_place) packed.open(f.weights.transposed(), hidden, columns, gate_count);
    if (!in_place && !packed.is_filled()) {
      each_task(gate_count, [&](int64_t g) {
        pack_b(packed.get() + g * f.packed_size, f.weights.from(g * hidden, 0).transposed(), hidden, hidden,
               0, hidden);
      });
      packed.keep();
    }
    f.packed = packed.get();
    f.run(RnnPartition(batch, gate_count, hidden, kPanel<T>, sizeof(T), kLeastPanels<T>));
  }

  if (hn.defined()) {
    const T* last = steps > 0 ? f.y.at(f.time(steps - 1), 0) : f.h0.data();
    copy_rows(hn.data(), hn.row, last, steps > 0 ? f.y.row : f.h0.row, batch, hidden);
  }
  if (lstm && cn.defined() && !(cells_in_cn && steps > 0)) {
    const T* last = steps == 0 ? f.c0.data() : f.keep ? f.row(f.time(steps - 1), 0) + 4 * hidden : f.cells;
    copy_rows(cn.data(), cn.row, last, steps == 0 ? f.c0.row : f.keep ? f.width : hidden, batch, hidden);
  }
  for (int64_t t = 0; f.keep && f.gates != reserve.data() && t < steps; ++t)
    copy_rows(reserve.at(t, 0), reserve.row, f.row(t, 0), f.width, batch, f.width);
  f.y.finish(), hn.finish(), cn.finish(), reserve.finish();
}

}  // namespace

void IsaBackend::rnn_forward(Context&, const RnnLayer& layer, const RnnInputs& in, const RnnOutputs& out) {
  if (in.x.dtype == DType::kFloat64) return run<double>(layer, in, out);
  run<float>(layer, in, out);
}

}  // namespace weft::kernels::WEFT_ISA_NS
