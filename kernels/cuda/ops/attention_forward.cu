// Attention, forward: y = softmax(scale q k^T + mask) v (=), and for backward the maximum and the reciprocal
// sum of exponentials of each row. A block has 64 queries of a head (32 of doubles) and takes the keys and
// values in blocks of 64 (32). It keeps the maximum and the sum of each row so far. If a block of keys has a
// larger maximum, it rescales its result (online softmax). So the matrix of all products is never in memory.
// Causal rows end at the block of keys with their own.
//
// 2 L S (E + F) flops and L S exponentials per head; half of both if causal. The half types are converted on
// their way to shared memory, so they have the arithmetic of float32. A block reads all keys and values of
// its head: (E + F) S / 64 numbers per query. Its neighbours read them too, so they come mostly from the
// cache. A mask adds L S numbers per head. Few queries of few heads leave processors idle.
//
// A row keeps its maximum and 1 / sum separately, not one logarithm of the sum. For large products the
// logarithm would lose the digits of the sum.
#include <weft/kernels/cuda/ops/attention.h>

namespace weft::cuda {
namespace {

template <class C, int W> struct AttentionForward {
  using Tile = AttentionTile<C, W>;
  static constexpr int kThreads = Tile::kThreads, kMine = kAttentionRows<C>, kRows = kMine * Tile::kDown,
                       n = Tile::n;
  AttentionCall<C> call;
  AttentionResult y;
  C* stats;
  int64_t parts, tasks;  // blocks of queries of a head, and of all heads

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < tasks; task += t.blocks()) {
      const int64_t number = task / parts;
      // the last queries have the most keys if it is causal, so they begin first
      queries(t, number, (parts - 1 - task % parts) * kRows);
    }
  }

  WEFT_DEVICE void queries(Thread t, int64_t number, int64_t first) const {
    C* const mine = t.shared<C>();
    C* const others = mine + kRows * Tile::kRow;
    C* const weights = others + Tile::kColumns * Tile::kRow;
    fetch_rows<C, W, kRows>(t, call.q, call.q.begin(number), first, mine);
    C sum[kMine][Tile::kPacks * n] = {}, top[kMine], total[kMine];
    WEFT_UNROLL
    for (int i = 0; i < kMine; ++i) top[i] = AttentionCall<C>::kNone, total[i] = 0;
    const int64_t keys = call.causal && first + kRows < call.k.rows ? first + kRows : call.k.rows;
    for (int64_t key = 0; key < keys; key += Tile::kColumns) {
      fetch_rows<C, W, Tile::kColumns>(t, call.k, call.k.begin(number), key, others);
      t.sync();
      C s[kMine][n];
      multiply_rows<C, W>(t, mine, others, call.q.width, s);
      call.template finish<false>(number, first, key, s, Tile::places(t));
      WEFT_UNROLL
      for (int i = 0; i < kMine; ++i) {
        C most = top[i];
        WEFT_UNROLL
        for (int j = 0; j < n; ++j) most = std::fmax(most, s[i][j]);
        most = fold_lanes<kInAnyOrder>(t, most, Tile::kAcross, [](C a, C b) { return std::fmax(a, b); });
        const C shift = shift_of(most), fade = exponential(top[i] - shift);
        total[i] *= fade;
        WEFT_UNROLL
        for (int j = 0; j < n; ++j) {
          s[i][j] = exponential(s[i][j] - shift);
          total[i] += s[i][j];
        }
        WEFT_UNROLL
        for (int m = 0; m < Tile::kPacks * n; ++m) sum[i][m] *= fade;
        top[i] = most;
      }
      keep_products<C, W>(t, s, weights);
      t.sync();  // the keys were used
      fetch_rows<C, W, Tile::kColumns>(t, call.v, call.v.begin(number), key, others);
      t.sync();
      const int64_t left = keys - key;
      add_rows_by<C, W>(t, weights, others, left < Tile::kColumns ? static_cast<int>(left) : Tile::kColumns,
                        y.width, sum);
      t.sync();
    }
    const int64_t rows = call.q.rows;
    WEFT_UNROLL
    for (int i = 0; i < kMine; ++i) {
      total[i] = fold_lanes<kInAnyOrder>(t, total[i], Tile::kAcross, [](C a, C b) { return a + b; });
      const C share = total[i] == 0 ? C(0) : 1 / total[i];  // 0: no key takes part
      WEFT_UNROLL
      for (int m = 0; m < Tile::kPacks * n; ++m) sum[i][m] *= share;
      const int64_t row = first + Tile::down(t) + i * Tile::kDown;
      if (Tile::across(t) != 0 || row >= rows) continue;
      C* const kept = stats + (number * rows + row) * 2;
      kept[0] = shift_of(top[i]), kept[1] = share;
    }
    store_rows<C, W>(t, y, number * rows + first, rows - first, sum);
  }

  /// The shift of the exponentials of a row with this maximum.
  WEFT_DEVICE static C shift_of(C most) { return most == AttentionCall<C>::kNone ? C(0) : most; }
};

}  // namespace

bool CudaBackend::has_attention(DType t, int64_t width, int64_t values) const {
  const auto fits = [this](auto tag, auto most) {
    using C = typename decltype(tag)::type;
    using Tile = AttentionTile<C, most.value>;
    return Tile::shared(1, kAttentionRows<C> * Tile::kDown) <= shared_memory() &&
           Tile::shared(2, kAttentionBackwardRows * Tile::kDown) <= shared_memory();
  };
  const int64_t most = std::max(width, values);
  if (is_half(t) && multiplies_halves()) return most <= 128 && attention_half_shared(most) <= shared_memory();
  if (t == kFloat64) return most <= 64 && fits(TypeTag<double>{}, std::integral_constant<int, 64>());
  if (most <= 64) return fits(TypeTag<float>{}, std::integral_constant<int, 64>());
  return most <= 128 && fits(TypeTag<float>{}, std::integral_constant<int, 128>());
}

void attention_tiles(CudaBackend& backend, Context& c, const AttentionViews& v) {
  with_attention_tile(v, [&](auto tag, auto most) {
    using C = typename decltype(tag)::type;
    using Kernel = AttentionForward<C, most.value>;
    const int64_t parts = blocks_for(v.q.size(2), Kernel::kRows), tasks = v.q.size(0) * v.q.size(1) * parts;
    launch(backend.stream_of(c), "attention",
           {.blocks = one_round(tasks),
            .threads = Kernel::kThreads,
            .shared = Kernel::Tile::shared(1, Kernel::kRows)},
           Kernel{AttentionCall<C>(v), AttentionResult(v.y), v.stats.as<C>(), parts, tasks});
  });
}

}  // namespace weft::cuda
