// Backward of an LSTM over many steps as one kernel, from the last step to the first. Its blocks run together
// and share the hidden units. A block copies the columns of W_hh of its units to shared memory once, as rows.
// In each step it turns the gradients of h and c of its units into those of their gates. It writes these for
// all blocks. After a barrier of the grid it multiplies the gates' gradients of all units by its part of
// W_hh. That gives its gradient of h for the step before. The gates' gradients of each step have a place of
// their own (rnn_backward.cu), so no block overwrites a number that another one reads.
//
// A warp takes a gate, four units and eight rows of the batch at a time. Four sums per unit and row, one of
// each gate, pass through shared memory and are added in their order. They do not depend on the number of
// blocks. W_hh is read once per launch. The gates' gradients are read once per step and block, in parts if
// shared memory has no room for four gates of eight rows. 8 N H^2 flops per step, and more where the units of
// a block are no multiple of four. Of dy, the reserve and dgates a block accesses its units' numbers in each
// row. So a sector has as many of them as a block has units.
#include <weft/kernels/cuda/blocks/lstm_tile.h>
#include <weft/kernels/cuda/ops/rnn_persistent.h>

namespace weft::cuda::persistent {

namespace {

constexpr const char* kName = "rnn_lstm_persistent_backward";

template <class S> struct LstmPersistentBackward {
  static constexpr int kThreads = lstm::kThreads;
  using C = CellType<S>;
  Backward<S> b;
  int units, rows, gates;
  lstm::RowCopy copy;
  Divider of_gate;  // rows in a gate's part of the tile

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t first = t.block() * units;
    const int count = static_cast<int>(b.hidden - first < units ? b.hidden - first : units),
              width = copy.width;
    S* const w = t.shared<S>();                      // [gates, units, width]
    S* const tile = w + int64_t{4} * units * width;  // [gates at once, rows, width]
    C* const parts = reinterpret_cast<C*>(tile + int64_t{gates} * rows * width);  // [gates, rows, units]
    for (int i = t.id(); i < 4 * width * count; i += t.count()) {
      const int unit = i % count, k = i / count % width, gate = i / count / width;
      w[(gate * units + unit) * width + k] =
          k < b.hidden ? b.w_hh[(gate * b.hidden + k) * b.w_hh_row + first + unit] : S(0);
    }
    for (int64_t s = 0; s < b.steps; ++s) {
      t.sync();  // dh of the step is complete
      for (int i = t.id(); i < count * static_cast<int>(b.batch); i += t.count())
        cell(s, i / count, first + i % count);
      if (s + 1 == b.steps && !b.wants_dh) return;
      t.sync_grid();
      for (int64_t row = 0; row < b.batch; row += rows)
        multiply(t, s, row, static_cast<int>(b.batch - row < rows ? b.batch - row : rows), first, count, w,
                 tile, parts);
    }
  }

  /// The gradients of the gates of hidden unit j and row n in step s.
  WEFT_DEVICE void cell(int64_t s, int64_t n, int64_t j) const {
    const S* const kept = b.kept + s * b.kept_step + n * b.kept_row + j;
    const S* const state = s + 1 < b.steps ? kept + b.kept_step + 4 * b.hidden
                           : b.before      ? b.before + n * b.before_row + j
                                           : nullptr;
    const auto value = [&](int64_t block) { return static_cast<C>(kept[block * b.hidden]); };
    const C i = value(0), f = value(1), g = value(2), o = value(3), tc = value(5),
            before = state ? static_cast<C>(*state) : C(0), later = b.dh[n * b.hidden + j],
            d = b.dy ? later + static_cast<C>(b.dy[s * b.dy_step + n * b.dy_row + j]) : later;
    C& later_c = b.dc[n * b.hidden + j];
    const C c = later_c + d * o * (1 - tc * tc);
    S* const out = b.dgates + s * b.dgates_step + n * 4 * b.hidden + j;
    out[0] = S(c * g * i * (1 - i));
    out[b.hidden] = S(c * before * f * (1 - f));
    out[2 * b.hidden] = S(c * i * (1 - g * g));
    out[3 * b.hidden] = S(d * tc * o * (1 - o));
    later_c = c * f;
  }

  /// dh of `used` rows of the batch from the gates' gradients of step s.
  WEFT_DEVICE void multiply(Thread t, int64_t s, int64_t row, int used, int64_t first, int count, const S* w,
                            S* tile, C* parts) const {
    const S* const from = b.dgates + s * b.dgates_step + row * 4 * b.hidden;
    const int width = copy.width, groups = (used + lstm::kRight - 1) / lstm::kRight,
              fours = (count + lstm::kLeft - 1) / lstm::kLeft;
    for (int gate = 0; gate < 4; gate += gates) {
      if (row > 0 || gate > 0) t.sync();  // the products of the part before are done
      copy(t, tile, gates * rows, [&](int at) {
        const auto g = static_cast<int>(of_gate.quotient(static_cast<uint32_t>(at))), n = at - g * rows;
        return n < used ? from + (int64_t{n} * 4 + gate + g) * b.hidden : nullptr;
      });
      t.sync();
      for (int task = t.warp(); task < gates * fours * groups; task += t.count() / kWarp) {
        const int g = task / (fours * groups), four = task / groups % fours * lstm::kLeft,
                  group = task % groups * lstm::kRight;
        // rows of W_hh behind the last unit are those of other gates or numbers of the tile, and are not used
        const C sum = lstm::products<C>(t, w + ((gate + g) * units + four) * width, width,
                                        tile + (g * rows + group) * width, width);
        const int unit = four + t.lane() % 4, n = group + t.lane() / 4;
        if (unit < count && n < used) parts[((gate + g) * rows + n) * units + unit] = sum;
      }
    }
    t.sync();
    for (int i = t.id(); i < used * count; i += t.count()) {
      const int n = i / count, unit = i % count;
      const C* const part = parts + n * units + unit;
      const int next = rows * units;
      b.dh[(row + n) * b.hidden + first + unit] = part[0] + part[next] + part[2 * next] + part[3 * next];
    }
  }
};

}  // namespace

template <class S>
std::optional<Plan> plan_backward(const CudaBackend& backend, const RnnLayer& layer, const Sizes& sizes) {
  if (!allowed<S>(layer, sizes)) return std::nullopt;
  const int64_t batch = sizes.batch, hidden = sizes.hidden;
  const int64_t units = blocks_for(hidden, backend.processors()), blocks = blocks_for(hidden, units);
  if (blocks * batch * 4 * hidden * static_cast<int64_t>(sizeof(S)) > kMostRead) return std::nullopt;
  const auto rounds = [&](int64_t gates, int64_t rows) {  // of the warps, in a part
    return blocks_for(gates * blocks_for(units, lstm::kLeft) * blocks_for(rows, lstm::kRight),
                      lstm::kThreads / kWarp);
  };
  std::optional<Plan> best;
  int64_t fewest = 2 * rounds(4, batch);
  for (const int gates : {4, 2, 1})
    for (int64_t rows = blocks_for(batch, lstm::kRight) * lstm::kRight; rows > 0; rows -= lstm::kRight) {
      const auto numbers = static_cast<size_t>((4 * units + gates * rows) * lstm::width_of(hidden)),
                 parts = static_cast<size_t>(4 * rows * units),
                 shared = numbers * sizeof(S) + parts * sizeof(CellType<S>);
      const int64_t all = 4 / gates * (batch / rows * rounds(gates, rows) + rounds(gates, batch % rows));
      if (shared > backend.shared_memory() || all > fewest || (best && all == fewest)) continue;
      fewest = all;
      best = Plan{units, blocks, static_cast<int>(rows), gates, shared};
    }
  if (best && blocks_together<LstmPersistentBackward<S>>(kName, lstm::kThreads, best->shared) < blocks)
    return std::nullopt;
  return best;
}

template <class S> void backward(void* stream, const Plan& plan, const Backward<S>& b) {
  const int pack = lstm::pack_of<S>({b.dgates}, {b.hidden, b.dgates_step});
  launch_together(stream, kName, {.blocks = plan.blocks, .threads = lstm::kThreads, .shared = plan.shared},
                  LstmPersistentBackward<S>{b, static_cast<int>(plan.units), plan.rows, plan.gates,
                                            lstm::RowCopy(b.hidden, pack), Divider(plan.rows)});
}

#define WEFT_FOR(S)                                                                                 \
  template std::optional<Plan> plan_backward<S>(const CudaBackend&, const RnnLayer&, const Sizes&); \
  template void backward<S>(void*, const Plan&, const Backward<S>&);
WEFT_FOR(float)
WEFT_FOR(Half)
WEFT_FOR(BFloat16)
#undef WEFT_FOR

}  // namespace weft::cuda::persistent
