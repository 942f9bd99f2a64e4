// Forward of an LSTM over many steps as one kernel. Its blocks run together and share the hidden units. A
// block copies the rows of W_hh of its units' gates to shared memory once. In each step it copies h of the
// step before there, multiplies, applies the gates, and writes y, which is h for all blocks. A barrier of the
// grid ends the step. y has a place for each step, so no block overwrites a number that another one reads.
//
// A warp takes a unit and eight rows of the batch at a time. Its 32 lanes have a sum each: that of one gate
// and row. Sums do not depend on the number of blocks. c stays with the lane of the first gate.
//
// W_hh is read once per launch, and h once per step and block. 8 N H^2 flops per step; a warp's product loads
// 12 numbers from shared memory for 32 multiply-adds of a lane. Of x's parts, y and the reserve a block
// accesses its units' numbers in each row. So a sector has as many of them as a block has units.
#include <weft/kernels/cuda/blocks/lstm_tile.h>
#include <weft/kernels/cuda/ops/rnn_persistent.h>
#include <weft/kernels/math.h>

namespace weft::cuda::persistent {

namespace {

using kernels::math::sigmoid;
using kernels::math::tanh;

constexpr const char* kName = "rnn_lstm_persistent";

template <class S> struct LstmPersistent {
  static constexpr int kThreads = lstm::kThreads;
  using C = CellType<S>;
  Forward<S> f;
  int units, rows;
  lstm::RowCopy copy;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t first = t.block() * units;
    const int count = static_cast<int>(f.hidden - first < units ? f.hidden - first : units);
    S* const w = t.shared<S>();                        // [units, gates, width]
    S* const h = w + int64_t{4} * units * copy.width;  // [rows, width]
    copy(t, w, 4 * count,
         [&](int row) { return f.w_hh + (row % 4 * f.hidden + first + row / 4) * f.w_hh_row; });
    for (int64_t s = 0; s < f.steps; ++s) {
      const S* const before = s == 0 ? f.before : f.y + (s - 1) * f.y_step;
      const int64_t before_row = s == 0 ? f.before_row : f.y_row;
      for (int64_t row = 0; row < f.batch; row += rows) {
        const int used = static_cast<int>(f.batch - row < rows ? f.batch - row : rows),
                  groups = (used + lstm::kRight - 1) / lstm::kRight;
        if (before) {
          t.sync();  // the products of the rows before are done
          copy(t, h, groups * lstm::kRight,
               [&](int n) { return n < used ? before + (row + n) * before_row : nullptr; });
          t.sync();
        }
        for (int task = t.warp(); task < count * groups; task += t.count() / kWarp) {
          const int unit = task / groups, group = task % groups * lstm::kRight;
          step(t, s, row + group, first + unit, before ? w + unit * 4 * copy.width : nullptr,
               h + group * copy.width);
        }
      }
      if (s + 1 < f.steps) t.sync_grid();
    }
  }

  /// A step of hidden unit j for rows n to n + 7 of the batch; w: the unit's rows of W_hh, or null for a zero
  /// state.
  WEFT_DEVICE void step(Thread t, int64_t s, int64_t n, int64_t j, const S* w, const S* h) const {
    const int gate = t.lane() % 4;
    n += t.lane() / 4;
    const bool valid = n < f.batch;
    const int64_t column = gate * f.hidden + j;
    const C from_x = valid ? f.from_x[s * f.from_x_step + n * f.from_x_row + column] : C(0);
    C hidden = f.b_hh ? static_cast<C>(f.b_hh[column]) : C(0);
    if (w) hidden += lstm::products<C>(t, w, copy.width, h, copy.width);
    const C sum = from_x + (f.b_ih ? static_cast<C>(f.b_ih[column]) : C(0)) + hidden,
            mine = gate == 2 ? tanh(sum) : sigmoid(sum);
    const int of_row = t.lane() - gate;
    const C forget = t.shuffle(mine, of_row + 1), input = t.shuffle(mine, of_row + 2),
            output = t.shuffle(mine, of_row + 3);
    if (!valid) return;
    S* const kept = f.kept ? f.kept + s * f.kept_step + n * f.kept_row : nullptr;
    if (kept) kept[column] = S(mine);
    if (gate != 0) return;
    C& c = f.cell[n * f.hidden + j];
    c = forget * c + mine * input;
    const C tc = tanh(c);
    const S y = S(output * tc);
    f.y[s * f.y_step + n * f.y_row + j] = y;
    if (kept) kept[4 * f.hidden + j] = S(c), kept[5 * f.hidden + j] = S(tc);
    if (s + 1 < f.steps) return;
    if (f.hn) f.hn[n * f.hn_row + j] = y;
    if (f.cn) f.cn[n * f.cn_row + j] = S(c);
  }
};

}  // namespace

template <class S>
std::optional<Plan> plan_forward(const CudaBackend& backend, const RnnLayer& layer, const Sizes& sizes) {
  if (!allowed<S>(layer, sizes)) return std::nullopt;
  const int64_t batch = sizes.batch, hidden = sizes.hidden;
  const int64_t units = blocks_for(hidden, backend.processors()), blocks = blocks_for(hidden, units);
  const size_t row = static_cast<size_t>(lstm::width_of(hidden)) * sizeof(S);
  const int64_t left = static_cast<int64_t>(backend.shared_memory() / row) - 4 * units,
                rows = std::min(blocks_for(batch, lstm::kRight), left / lstm::kRight) * lstm::kRight;
  if (rows < lstm::kRight) return std::nullopt;
  const size_t shared = static_cast<size_t>(4 * units + rows) * row;
  if (blocks_together<LstmPersistent<S>>(kName, lstm::kThreads, shared) < blocks) return std::nullopt;
  return Plan{units, blocks, static_cast<int>(rows), 4, shared};
}

template <class S> void forward(void* stream, const Plan& plan, const Forward<S>& f) {
  const int pack = lstm::pack_of<S>({f.w_hh, f.before, f.y},
                                    {f.hidden, f.w_hh_row, f.before ? f.before_row : 0, f.y_step, f.y_row});
  launch_together(
      stream, kName, {.blocks = plan.blocks, .threads = lstm::kThreads, .shared = plan.shared},
      LstmPersistent<S>{f, static_cast<int>(plan.units), plan.rows, lstm::RowCopy(f.hidden, pack)});
}

#define WEFT_FOR(S)                                                                                \
  template std::optional<Plan> plan_forward<S>(const CudaBackend&, const RnnLayer&, const Sizes&); \
  template void forward<S>(void*, const Plan&, const Forward<S>&);
WEFT_FOR(float)
WEFT_FOR(Half)
WEFT_FOR(BFloat16)
#undef WEFT_FOR

}  // namespace weft::cuda::persistent
