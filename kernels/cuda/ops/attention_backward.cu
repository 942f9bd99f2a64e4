// Attention, backward: dq, dk, dv (=), each of which may be absent. p = exp(scale q k^T + mask - maximum) /
// sum is made again from the numbers that forward kept. With d = sum over F of dy y and ds = p (dy v^T - d)
// scale: dv = p^T dy, dk = ds^T q, dq = ds k. Three kernels:
//   along    d of each row, a warp per row: reads 2 F numbers per row
//   keys     dk and dv: a block has 32 keys with their values, and takes the queries in blocks of 64 (32 of
//            doubles): 4 L S (E + F) flops per head. It reads q and dy as often as there are blocks, q twice
//            each time, since q and dy have one place in shared memory.
//   queries  dq: a block has 32 queries with their dy, and takes keys and values in blocks of 64 (32):
//            2 L S (2 E + F) flops per head, and k and v once per block.
// So each result has one block that writes it, all sums have a fixed order, and nothing of L S numbers is in
// memory. The price: p and dy v^T are made twice, 2 L S (E + F) flops of 2 L S (4 E + 3 F). Causal calls have
// half of everything.
#include <weft/kernels/cuda/ops/attention.h>

namespace weft::cuda {
namespace {

/// along[row] = sum of dy y over a row of all heads.
template <class C> struct AttentionAlong {
  AttentionMatrix y, dy;
  C* along;
  int64_t count;  // of rows
  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t r = t.global() / kWarp; r < count; r += t.globals() / kWarp) {
      const int64_t number = r / y.rows, row = r % y.rows;
      C sum = 0;
      with_stored<C>(y.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T* const a = static_cast<const T*>(y.data) + y.begin(number) + row * y.row;
        const T* const b = static_cast<const T*>(dy.data) + dy.begin(number) + row * dy.row;
        for (int f = t.lane(); f < y.width; f += kWarp) sum += convert<C>(a[f]) * convert<C>(b[f]);
      });
      sum = fold_lanes<kInAnyOrder>(t, sum, kWarp, [](C p, C q) { return p + q; });
      if (t.lane() == 0) along[r] = sum;
    }
  }
};

/// The arguments of both kernels.
template <class C, int W> struct AttentionGradient {
  using Tile = AttentionTile<C, W>;
  static constexpr int kThreads = Tile::kThreads, kMine = kAttentionBackwardRows, kRows = kMine * Tile::kDown,
                       n = Tile::n;
  AttentionCall<C> call;
  AttentionMatrix dy;
  const C *stats, *along;
  int64_t parts, tasks;  // blocks of rows of a head, and of all heads

  /// The kept numbers of a query; zeros beyond the last, whose p is 0 then.
  struct Kept {
    C top = 0, share = 0, mean = 0;
  };
  WEFT_DEVICE Kept kept(int64_t number, int64_t query) const {
    if (query >= call.q.rows) return {};
    const int64_t row = number * call.q.rows + query;
    return {stats[row * 2], stats[row * 2 + 1], along ? along[row] : C(0)};
  }
  WEFT_DEVICE static int upto(int64_t left) {
    return left < Tile::kColumns ? static_cast<int>(left) : Tile::kColumns;
  }
};

template <class C, int W> struct AttentionKeys : AttentionGradient<C, W> {
  using Tile = AttentionTile<C, W>;
  using Base = AttentionGradient<C, W>;
  static constexpr int kMine = Base::kMine, kRows = Base::kRows, n = Base::n;
  AttentionResult dk, dv;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < this->tasks; task += t.blocks())
      keys(t, task / this->parts, task % this->parts * kRows);
  }

  WEFT_DEVICE void keys(Thread t, int64_t number, int64_t first) const {
    const AttentionCall<C>& call = this->call;
    C* const mine = t.shared<C>();
    C* const values = mine + kRows * Tile::kRow;
    C* const others = values + kRows * Tile::kRow;
    C* const weights = others + Tile::kColumns * Tile::kRow;
    fetch_rows<C, W, kRows>(t, call.k, call.k.begin(number), first, mine);
    if (dk.data) fetch_rows<C, W, kRows>(t, call.v, call.v.begin(number), first, values);
    C of_keys[kMine][Tile::kPacks * n] = {}, of_values[kMine][Tile::kPacks * n] = {};
    const int64_t queries = call.q.rows;
    // if it is causal, earlier queries take none of the keys
    const int64_t begin = call.causal ? first / Tile::kColumns * Tile::kColumns : 0;
    for (int64_t query = begin; query < queries; query += Tile::kColumns) {
      const int count = this->upto(queries - query);
      fetch_rows<C, W, Tile::kColumns>(t, call.q, call.q.begin(number), query, others);
      t.sync();
      C p[kMine][n], mean[n];
      multiply_rows<C, W>(t, mine, others, call.q.width, p);
      call.template finish<true>(number, query, first, p, Tile::places(t));
      WEFT_UNROLL
      for (int j = 0; j < n; ++j) {
        const auto kept = this->kept(number, query + Tile::across(t) + j * Tile::kAcross);
        mean[j] = kept.mean;
        WEFT_UNROLL
        for (int i = 0; i < kMine; ++i) p[i][j] = exponential(p[i][j] - kept.top) * kept.share;
      }
      if (dv.data) keep_products<C, W>(t, p, weights);
      t.sync();  // q was used
      fetch_rows<C, W, Tile::kColumns>(t, this->dy, this->dy.begin(number), query, others);
      t.sync();
      if (dv.data) add_rows_by<C, W>(t, weights, others, count, dv.width, of_values);
      if (dk.data) {
        C d[kMine][n];
        multiply_rows<C, W>(t, values, others, this->dy.width, d);
        WEFT_UNROLL
        for (int i = 0; i < kMine; ++i) {
          WEFT_UNROLL
          for (int j = 0; j < n; ++j) d[i][j] = (d[i][j] - mean[j]) * p[i][j] * call.scale;
        }
        t.sync();  // p and dy were used
        keep_products<C, W>(t, d, weights);
        fetch_rows<C, W, Tile::kColumns>(t, call.q, call.q.begin(number), query, others);
        t.sync();
        add_rows_by<C, W>(t, weights, others, count, dk.width, of_keys);
      }
      t.sync();
    }
    const int64_t rows = call.k.rows, at = number * rows + first;
    if (dk.data) store_rows<C, W>(t, dk, at, rows - first, of_keys);
    if (dv.data) store_rows<C, W>(t, dv, at, rows - first, of_values);
    t.sync();  // a causal block may have had no query, and so no barrier
  }
};

template <class C, int W> struct AttentionQueries : AttentionGradient<C, W> {
  using Tile = AttentionTile<C, W>;
  using Base = AttentionGradient<C, W>;
  static constexpr int kMine = Base::kMine, kRows = Base::kRows, n = Base::n;
  AttentionResult dq;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < this->tasks; task += t.blocks())
      queries(t, task / this->parts, (this->parts - 1 - task % this->parts) * kRows);
  }

  WEFT_DEVICE void queries(Thread t, int64_t number, int64_t first) const {
    const AttentionCall<C>& call = this->call;
    C* const mine = t.shared<C>();
    C* const gradients = mine + kRows * Tile::kRow;
    C* const others = gradients + kRows * Tile::kRow;
    C* const weights = others + Tile::kColumns * Tile::kRow;
    fetch_rows<C, W, kRows>(t, call.q, call.q.begin(number), first, mine);
    fetch_rows<C, W, kRows>(t, this->dy, this->dy.begin(number), first, gradients);
    typename Base::Kept kept[kMine];
    WEFT_UNROLL
    for (int i = 0; i < kMine; ++i) kept[i] = this->kept(number, first + Tile::down(t) + i * Tile::kDown);
    C sum[kMine][Tile::kPacks * n] = {};
    const int64_t keys = call.causal && first + kRows < call.k.rows ? first + kRows : call.k.rows;
    for (int64_t key = 0; key < keys; key += Tile::kColumns) {
      fetch_rows<C, W, Tile::kColumns>(t, call.v, call.v.begin(number), key, others);
      t.sync();
      C d[kMine][n], s[kMine][n];
      multiply_rows<C, W>(t, gradients, others, this->dy.width, d);
      t.sync();  // the values were used
      fetch_rows<C, W, Tile::kColumns>(t, call.k, call.k.begin(number), key, others);
      t.sync();
      multiply_rows<C, W>(t, mine, others, call.q.width, s);
      call.template finish<false>(number, first, key, s, Tile::places(t));
      WEFT_UNROLL
      for (int i = 0; i < kMine; ++i) {
        WEFT_UNROLL
        for (int j = 0; j < n; ++j)
          s[i][j] =
              (d[i][j] - kept[i].mean) * (exponential(s[i][j] - kept[i].top) * kept[i].share) * call.scale;
      }
      keep_products<C, W>(t, s, weights);
      t.sync();
      add_rows_by<C, W>(t, weights, others, this->upto(keys - key), dq.width, sum);
      t.sync();
    }
    store_rows<C, W>(t, dq, number * call.q.rows + first, call.q.rows - first, sum);
  }
};

}  // namespace

void launch_attention_along(CudaBackend& backend, Context& c, const AttentionViews& v, void* along) {
  const int64_t rows = v.y.size(0) * v.y.size(1) * v.y.size(2);
  const AttentionMatrix y(v.y), dy(v.dy);
  const auto run = [&](auto tag) {
    using C = typename decltype(tag)::type;
    launch(backend.stream_of(c), "attention_along", CudaBackend::grid_for(rows * kWarp),
           AttentionAlong<C>{y, dy, static_cast<C*>(along), rows});
  };
  if (v.y.dtype == kFloat64) run(TypeTag<double>{});
  else run(TypeTag<float>{});
}

void attention_tiles_backward(CudaBackend& backend, Context& c, const AttentionViews& v) {
  with_attention_tile(v, [&](auto tag, auto most) {
    using C = typename decltype(tag)::type;
    using Keys = AttentionKeys<C, most.value>;
    using Queries = AttentionQueries<C, most.value>;
    using Gradient = AttentionGradient<C, most.value>;
    using Tile = typename Keys::Tile;
    void* const stream = backend.stream_of(c);
    const int64_t heads = v.q.size(0) * v.q.size(1), rows = heads * v.q.size(2);
    const bool products = v.dq.defined() || v.dk.defined();
    const Scratch along(backend, c, products ? static_cast<size_t>(rows) * sizeof(C) : 0);
    const AttentionMatrix dy(v.dy);
    if (products) launch_attention_along(backend, c, v, along.as<void>());
    const auto gradient = [&](int64_t length) {
      const int64_t parts = blocks_for(length, Keys::kRows);
      return Gradient{AttentionCall<C>(v), dy,    v.stats.as<const C>(),
                      along.as<const C>(), parts, heads * parts};
    };
    const auto grid = [&](int64_t tasks) {
      return Grid{
          .blocks = one_round(tasks), .threads = Keys::kThreads, .shared = Tile::shared(2, Keys::kRows)};
    };
    if (v.dk.defined() || v.dv.defined()) {
      const Keys keys{gradient(v.k.size(2)), AttentionResult(v.dk), AttentionResult(v.dv)};
      launch(stream, "attention_keys", grid(keys.tasks), keys);
    }
    if (v.dq.defined()) {
      const Queries queries{gradient(v.q.size(2)), AttentionResult(v.dq)};
      launch(stream, "attention_queries", grid(queries.tasks), queries);
    }
  });
}

}  // namespace weft::cuda
