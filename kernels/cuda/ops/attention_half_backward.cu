// Attention of half types on tensor cores, backward: as attention_backward.cu, in the same three kernels. p
// and ds are rounded to the half type before they are multiplied; the factor `scale` comes last.
//   keys     dk and dv: a block has 64 keys with their values, 16 per warp, and takes the queries in blocks
//            of 64, or of 32 where heads have more than 64 numbers: 4 L S (E + F) flops per head
//   queries  dq: a block has 64 queries with their dy, and takes keys and values in blocks of 64: 2 L S
//            (2 E + F) flops per head
// A block of the other matrices is kept twice where its rows are multiplied and summed: as rows and turned.
#include <weft/kernels/cuda/ops/attention_half.h>

namespace weft::cuda {
namespace {

/// The arguments of both kernels.
template <class H, int W> struct HalfGradient {
  using Tile = HalfTile<W>;
  static constexpr int kThreads = Tile::kThreads;
  AttentionCall<float> call;
  AttentionMatrix dy;
  const float *stats, *along;
  int64_t parts, tasks;  // blocks of rows of a head, and of all heads

  /// The kept numbers of queries query .. query + R: maximum, share and the sum of dy y. Zeros beyond the
  /// last, whose p is 0 then.
  template <int R> WEFT_DEVICE void fetch_kept(Thread t, int64_t number, int64_t query, float* to) const {
    for (int i = t.id(); i < R; i += t.count()) {
      const bool in = query + i < call.q.rows;
      const int64_t row = number * call.q.rows + query + i;
      to[i] = in ? stats[row * 2] : 0.0f;
      to[R + i] = in ? stats[row * 2 + 1] : 0.0f;
      to[2 * R + i] = in && along ? along[row] : 0.0f;
    }
  }
};

template <class H, int W> struct HalfKeys : HalfGradient<H, W> {
  using Tile = HalfTile<W>;
  static constexpr int kRows = Tile::kRows, R = kKeysOthers<W>, N = R / 8;
  static constexpr size_t kShared =
      (2 * Tile::plain_words(kRows) + 2 * Tile::plain_words(R) + 2 * Tile::turned_words(R) + 3 * R) *
      sizeof(uint32_t);
  AttentionResult dk, dv;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < this->tasks; task += t.blocks()) {
      keys(t, task / this->parts, task % this->parts * kRows);
      t.sync();
    }
  }

  WEFT_DEVICE void keys(Thread t, int64_t number, int64_t first) const {
    const AttentionCall<float>& call = this->call;
    uint32_t* const mine = t.shared<uint32_t>();
    uint32_t* const values = mine + Tile::plain_words(kRows);
    uint32_t* const q = values + Tile::plain_words(kRows);
    uint32_t* const dy = q + Tile::plain_words(R);
    uint32_t* const q_turned = dy + Tile::plain_words(R);
    uint32_t* const dy_turned = q_turned + Tile::turned_words(R);
    float* const kept = reinterpret_cast<float*>(dy_turned + Tile::turned_words(R));
    fetch_plain<W, kRows>(t, call.k, call.k.begin(number), first, mine);
    if (dk.data) fetch_plain<W, kRows>(t, call.v, call.v.begin(number), first, values);
    const int64_t rows = call.k.rows, queries = call.q.rows;
    const bool idle = first + t.warp() * Tile::kOfWarp >= rows;  // a warp beyond the last key
    const auto place = Tile::places(t);
    float of_keys[W / 8][4] = {}, of_values[W / 8][4] = {};
    // if it is causal, earlier queries take none of the keys
    const int64_t begin = call.causal ? first / R * R : 0, at = call.q.begin(number),
                  at_dy = this->dy.begin(number);
    for (int64_t query = begin; query < queries; query += R) {
      const int count = queries - query < R ? static_cast<int>(queries - query) : R;
      if (query > begin) t.sync();  // the block before was used
      fetch_plain<W, R>(t, call.q, at, query, q);
      this->template fetch_kept<R>(t, number, query, kept);
      if (dv.data) fetch_turned<W, R>(t, this->dy, at_dy, query, dy_turned);
      if (dk.data) {
        fetch_plain<W, R>(t, this->dy, at_dy, query, dy);
        fetch_turned<W, R>(t, call.q, at, query, q_turned);
      }
      t.sync();
      if (idle) continue;
      float p[N][4];
      multiply_halves<H, W>(t, mine, q, call.q.width, count, p);
      call.template finish<true>(number, query, first, p, place);
      WEFT_UNROLL
      for (int j = 0; j < N; ++j) {
        WEFT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int column = place(j, i).across;
          p[j][i] = exponential(p[j][i] - kept[column]) * kept[R + column];
        }
      }
      if (dv.data) add_halves<H, W, R>(t, p, dy_turned, count, dv.width, of_values);
      if (!dk.data) continue;
      float d[N][4];
      multiply_halves<H, W>(t, values, dy, this->dy.width, count, d);
      WEFT_UNROLL
      for (int j = 0; j < N; ++j) {
        WEFT_UNROLL
        for (int i = 0; i < 4; ++i) d[j][i] = (d[j][i] - kept[2 * R + place(j, i).across]) * p[j][i];
      }
      add_halves<H, W, R>(t, d, q_turned, count, dk.width, of_keys);
    }
    if (idle) return;
    if (dk.data)
      store_halves<H, W>(t, dk, number * rows + first, rows - first, of_keys, {call.scale, call.scale});
    if (dv.data) store_halves<H, W>(t, dv, number * rows + first, rows - first, of_values, {1, 1});
  }
};

template <class H, int W> struct HalfQueries : HalfGradient<H, W> {
  using Tile = HalfTile<W>;
  static constexpr int kRows = Tile::kRows, R = 64, N = R / 8;
  static constexpr size_t kShared =
      (2 * Tile::plain_words(kRows) + 2 * Tile::plain_words(R) + Tile::turned_words(R) + 3 * kRows) *
      sizeof(uint32_t);
  AttentionResult dq;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < this->tasks; task += t.blocks()) {
      queries(t, task / this->parts, (this->parts - 1 - task % this->parts) * kRows);
      t.sync();
    }
  }

  WEFT_DEVICE void queries(Thread t, int64_t number, int64_t first) const {
    const AttentionCall<float>& call = this->call;
    uint32_t* const mine = t.shared<uint32_t>();
    uint32_t* const gradients = mine + Tile::plain_words(kRows);
    uint32_t* const k = gradients + Tile::plain_words(kRows);
    uint32_t* const v = k + Tile::plain_words(R);
    uint32_t* const k_turned = v + Tile::plain_words(R);
    float* const kept = reinterpret_cast<float*>(k_turned + Tile::turned_words(R));
    fetch_plain<W, kRows>(t, call.q, call.q.begin(number), first, mine);
    fetch_plain<W, kRows>(t, this->dy, this->dy.begin(number), first, gradients);
    this->template fetch_kept<kRows>(t, number, first, kept);
    const int64_t rows = call.q.rows;
    const bool idle = first + t.warp() * Tile::kOfWarp >= rows;  // a warp beyond the last query
    const auto place = Tile::places(t);
    float sum[W / 8][4] = {};
    const int64_t keys = call.causal && first + kRows < call.k.rows ? first + kRows : call.k.rows;
    for (int64_t key = 0; key < keys; key += R) {
      const int count = keys - key < R ? static_cast<int>(keys - key) : R;
      if (key > 0) t.sync();  // the block before was used
      fetch_plain<W, R>(t, call.k, call.k.begin(number), key, k);
      fetch_plain<W, R>(t, call.v, call.v.begin(number), key, v);
      fetch_turned<W, R>(t, call.k, call.k.begin(number), key, k_turned);
      t.sync();
      if (idle) continue;
      float s[N][4], d[N][4];
      multiply_halves<H, W>(t, mine, k, call.q.width, count, s);
      call.template finish<false>(number, first, key, s, place);
      multiply_halves<H, W>(t, gradients, v, this->dy.width, count, d);
      WEFT_UNROLL
      for (int j = 0; j < N; ++j) {
        WEFT_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = place(j, i).down;
          d[j][i] =
              (d[j][i] - kept[2 * kRows + row]) * (exponential(s[j][i] - kept[row]) * kept[kRows + row]);
        }
      }
      add_halves<H, W, R>(t, d, k_turned, count, dq.width, sum);
    }
    if (idle) return;
    store_halves<H, W>(t, dq, number * rows + first, rows - first, sum, {call.scale, call.scale});
  }
};

}  // namespace

size_t attention_half_shared(int64_t width) {
  if (width <= 64) return std::max(HalfKeys<Half, 64>::kShared, HalfQueries<Half, 64>::kShared);
  return std::max(HalfKeys<Half, 128>::kShared, HalfQueries<Half, 128>::kShared);
}

void attention_half_backward(CudaBackend& backend, Context& c, const AttentionViews& v) {
  with_half_tile(v, [&](auto tag, auto most) {
    using H = typename decltype(tag)::type;
    using Keys = HalfKeys<H, most.value>;
    using Queries = HalfQueries<H, most.value>;
    using Gradient = HalfGradient<H, most.value>;
    void* const stream = backend.stream_of(c);
    const int64_t heads = v.q.size(0) * v.q.size(1);
    const bool products = v.dq.defined() || v.dk.defined();
    const Scratch along(backend, c, products ? static_cast<size_t>(heads * v.q.size(2)) * sizeof(float) : 0);
    if (products) launch_attention_along(backend, c, v, along.as<void>());
    const auto gradient = [&](int64_t length) {
      const int64_t parts = blocks_for(length, Keys::kRows);
      return Gradient{AttentionCall<float>(v),
                      AttentionMatrix(v.dy),
                      v.stats.as<const float>(),
                      along.as<const float>(),
                      parts,
                      heads * parts};
    };
    const auto run = [&](const char* name, const auto& kernel) {
      using Kernel = std::remove_cvref_t<decltype(kernel)>;
      launch(stream, name,
             {.blocks = one_round(kernel.tasks), .threads = Kernel::kThreads, .shared = Kernel::kShared},
             kernel);
    };
    if (v.dk.defined() || v.dv.defined())
      run("attention_keys", Keys{gradient(v.k.size(2)), AttentionResult(v.dk), AttentionResult(v.dv)});
    if (v.dq.defined()) run("attention_queries", Queries{gradient(v.q.size(2)), AttentionResult(v.dq)});
  });
}

}  // namespace weft::cuda
