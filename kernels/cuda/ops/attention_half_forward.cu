// Attention of half types on tensor cores, forward: as attention_forward.cu, with the same kept numbers. A
// block has 64 queries of a head, 16 per warp, and takes keys and values in blocks of 64. A warp has its rows
// of a tile in registers, from the products over the softmax to the operand of the next product. There they
// are rounded to the half type, before they are divided by their sum.
//
// 2 L S (E + F) flops and L S exponentials per head; half of both if causal. A block reads all keys and
// values of its head: (E + F) S / 64 numbers per query, mostly from the cache. A lane reads 2 words of shared
// memory per product of 16 x 8 x 16.
#include <weft/kernels/cuda/ops/attention_half.h>

namespace weft::cuda {
namespace {

template <class H, int W> struct HalfForward {
  using Tile = HalfTile<W>;
  static constexpr int kThreads = Tile::kThreads, kRows = Tile::kRows, kOthers = 64, N = kOthers / 8;
  static constexpr size_t kShared =
      (Tile::plain_words(kRows) + Tile::plain_words(kOthers) + Tile::turned_words(kOthers)) *
      sizeof(uint32_t);
  AttentionCall<float> call;
  AttentionResult y;
  float* stats;
  int64_t parts, tasks;  // blocks of queries of a head, and of all heads

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < tasks; task += t.blocks()) {
      // the last queries have the most keys if it is causal, so they begin first
      queries(t, task / parts, (parts - 1 - task % parts) * kRows);
      t.sync();
    }
  }

  WEFT_DEVICE void queries(Thread t, int64_t number, int64_t first) const {
    uint32_t* const mine = t.shared<uint32_t>();
    uint32_t* const others = mine + Tile::plain_words(kRows);
    uint32_t* const values = others + Tile::plain_words(kOthers);
    fetch_plain<W, kRows>(t, call.q, call.q.begin(number), first, mine);
    const int64_t rows = call.q.rows;
    const bool idle = first + t.warp() * Tile::kOfWarp >= rows;  // a warp beyond the last query
    const auto place = Tile::places(t);
    float sum[W / 8][4] = {}, top[2], total[2] = {};
    top[0] = top[1] = AttentionCall<float>::kNone;
    const int64_t keys = call.causal && first + kRows < call.k.rows ? first + kRows : call.k.rows;
    for (int64_t key = 0; key < keys; key += kOthers) {
      const int count = keys - key < kOthers ? static_cast<int>(keys - key) : kOthers;
      if (key > 0) t.sync();  // the block before was used
      fetch_plain<W, kOthers>(t, call.k, call.k.begin(number), key, others);
      fetch_turned<W, kOthers>(t, call.v, call.v.begin(number), key, values);
      t.sync();
      if (idle) continue;
      float s[N][4];
      multiply_halves<H, W>(t, mine, others, call.q.width, count, s);
      call.template finish<false>(number, first, key, s, place);
      WEFT_UNROLL
      for (int half = 0; half < 2; ++half) {
        float most = top[half];
        WEFT_UNROLL
        for (int j = 0; j < N; ++j) most = std::fmax(most, std::fmax(s[j][2 * half], s[j][2 * half + 1]));
        most = fold_lanes<kInAnyOrder>(t, most, 4, [](float a, float b) { return std::fmax(a, b); });
        const float shift = shift_of(most), fade = exponential(top[half] - shift);
        total[half] *= fade;
        WEFT_UNROLL
        for (int j = 0; j < N; ++j) {
          WEFT_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[j][i] = exponential(s[j][i] - shift);
            total[half] += s[j][i];
          }
        }
        WEFT_UNROLL
        for (int f = 0; f < W / 8; ++f) sum[f][2 * half] *= fade, sum[f][2 * half + 1] *= fade;
        top[half] = most;
      }
      add_halves<H, W, kOthers>(t, s, values, count, y.width, sum);
    }
    if (idle) return;
    float share[2];
    WEFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      total[half] = fold_lanes<kInAnyOrder>(t, total[half], 4, [](float a, float b) { return a + b; });
      share[half] = total[half] == 0 ? 0.0f : 1 / total[half];  // 0: no key takes part
      const int64_t row = first + place(0, 2 * half).down;
      if (Tile::c(t) != 0 || row >= rows) continue;
      float* const kept = stats + (number * rows + row) * 2;
      kept[0] = shift_of(top[half]), kept[1] = share[half];
    }
    store_halves<H, W>(t, y, number * rows + first, rows - first, sum, share);
  }

  /// The shift of the exponentials of a row with this maximum.
  WEFT_DEVICE static float shift_of(float most) { return most == AttentionCall<float>::kNone ? 0 : most; }
};

}  // namespace

void attention_half(CudaBackend& backend, Context& c, const AttentionViews& v) {
  with_half_tile(v, [&](auto tag, auto most) {
    using Kernel = HalfForward<typename decltype(tag)::type, most.value>;
    const int64_t parts = blocks_for(v.q.size(2), Kernel::kRows), tasks = v.q.size(0) * v.q.size(1) * parts;
    launch(backend.stream_of(c), "attention",
           {.blocks = one_round(tasks), .threads = Kernel::kThreads, .shared = Kernel::kShared},
           Kernel{AttentionCall<float>(v), AttentionResult(v.y), v.stats.as<float>(), parts, tasks});
  });
}

}  // namespace weft::cuda
