// Attention of half types by tensor cores (attention_half_forward.cu, attention_half_backward.cu). A block of
// four warps keeps 64 rows of one or two matrices in shared memory, 16 rows of a tile per warp. It moves
// along the other matrices in blocks of R rows. Thread::multiply_add does all arithmetic, with sums in
// float32. Its operands are pairs of numbers that are neighbours in the direction of the sum. A matrix whose
// rows are multiplied is kept as it is, one whose rows are summed with its rows turned into columns.
#pragma once

#include <weft/kernels/cuda/ops/attention.h>

namespace weft::cuda {

/// Heads of up to W numbers. Shared memory is counted in words of two numbers.
template <int W> struct HalfTile {
  static constexpr int kThreads = 128, kRows = 64, kOfWarp = 16;
  /// Words from row to row: those that a warp reads together are in different banks.
  static constexpr int kRow = W / 2 + 4;
  static constexpr int turned_row(int rows) { return rows / 2 + 4; }
  static constexpr int plain_words(int rows) { return rows * kRow; }
  /// The place of a turned matrix's column, in words. Groups of eight columns begin half of the banks apart,
  /// since a warp writes to two of them at a time.
  static constexpr int turned_at(int column, int rows) {
    return column * turned_row(rows) + column / 8 * (kWarp / 2);
  }
  static constexpr int turned_words(int rows) { return turned_at(W - 1, rows) + turned_row(rows); }

  /// The lane's place in multiply_add: row `g` of a and d, column `g` of b, and word `c` along the sum.
  WEFT_DEVICE static int g(Thread t) { return t.lane() / 4; }
  WEFT_DEVICE static int c(Thread t) { return t.lane() % 4; }
  /// The place of s[j][i] in the tile of the block; each j is 8 columns.
  WEFT_DEVICE static auto places(Thread t) {
    return [row = t.warp() * kOfWarp + g(t), column = 2 * c(t)](int j, int i) {
      return TilePlace{row + i / 2 * 8, j * 8 + column + i % 2};
    };
  }
};

/// Two numbers as a word of multiply_add.
template <class H> WEFT_DEVICE inline uint32_t pair_of(float low, float high) {
  return convert<H>(low).bits | static_cast<uint32_t>(convert<H>(high).bits) << 16;
}

/// Copies rows first .. first + R of a head; those beyond the last row are zeros, and so are numbers beyond
/// the width, up to a multiple of 16.
template <int W, int R>
WEFT_DEVICE void fetch_plain(Thread t, const AttentionMatrix& m, int64_t begin, int64_t first, uint32_t* to) {
  using Tile = HalfTile<W>;
  const int count = m.rows - first < R ? static_cast<int>(m.rows - first) : R,
            filled = (m.width + 15) / 16 * 16;
  const uint16_t* const from = static_cast<const uint16_t*>(m.data) + begin + first * m.row;
  if (m.packs) {
    constexpr int across = W / 8, step = Tile::kThreads / across, rounds = R / step;
    const int column = t.id() % across * 8;
    if (column >= filled) return;
    Pack<uint32_t, 4> loaded[rounds] = {};
    WEFT_UNROLL
    for (int a = 0; a < rounds; ++a) {
      const int row = t.id() / across + a * step;
      if (row < count && column < m.width) loaded[a] = load_pack<uint32_t, 4>(from + row * m.row + column, 0);
    }
    WEFT_UNROLL
    for (int a = 0; a < rounds; ++a)
      store_pack(to, (t.id() / across + a * step) * Tile::kRow + column / 2, loaded[a]);
    return;
  }
  constexpr int across = W / 2, step = Tile::kThreads / across;
  const int column = t.id() % across * 2;
  if (column >= filled) return;
  WEFT_ROLLED for (int row = t.id() / across; row < R; row += step) {
    const uint16_t* const p = from + row * m.row + column;
    const uint32_t low = row < count && column < m.width ? p[0] : 0u,
                   high = row < count && column + 1 < m.width ? p[1] : 0u;
    to[row * Tile::kRow + column / 2] = low | high << 16;
  }
}

/// Copies the same rows as columns: word r of row f has the numbers (2 r, f) and (2 r + 1, f). Rows are zeros
/// up to a multiple of 8. A warp reads 16 pairs of rows, two packs of each, which are a whole sector.
template <int W, int R>
WEFT_DEVICE void fetch_turned(Thread t, const AttentionMatrix& m, int64_t begin, int64_t first,
                              uint32_t* to) {
  using Tile = HalfTile<W>;
  constexpr int together = kWarp / 2, groups = R / 2 / together, step = 2 * Tile::kThreads / kWarp / groups,
                row = Tile::turned_row(R);
  static_assert(groups * together * 2 == R);
  const int count = m.rows - first < R ? static_cast<int>(m.rows - first) : R,
            r = t.warp() % groups * together + t.lane() % together;
  const uint16_t* const from = static_cast<const uint16_t*>(m.data) + begin + (first + 2 * r) * m.row;
  WEFT_ROLLED for (int pack = t.warp() / groups * 2 + t.lane() / together; pack * 8 < m.width; pack += step) {
    uint32_t low[4] = {}, high[4] = {};  // eight numbers of two rows
    const auto load = [&](const uint16_t* p, uint32_t(&words)[4]) {
      if (m.packs) {
        const auto loaded = load_pack<uint32_t, 4>(p, 0);
        WEFT_UNROLL
        for (int i = 0; i < 4; ++i) words[i] = loaded.at[i];
        return;
      }
      WEFT_UNROLL
      for (int i = 0; i < 8; ++i)
        if (pack * 8 + i < m.width) words[i / 2] |= static_cast<uint32_t>(p[i]) << (i % 2 * 16);
    };
    if (2 * r < count) load(from + pack * 8, low);
    if (2 * r + 1 < count) load(from + m.row + pack * 8, high);
    uint32_t* const column = to + Tile::turned_at(pack * 8, R) + r;
    WEFT_UNROLL
    for (int i = 0; i < 4; ++i) {
      column[2 * i * row] = (low[i] & 0xFFFFu) | high[i] << 16;
      column[(2 * i + 1) * row] = low[i] >> 16 | (high[i] & 0xFFFF0000u);
    }
  }
}

/// s[j] = products of the warp's rows of a and the rows 8 j .. 8 j + 8 of b, for those below `count`.
template <class H, int W, int N>
WEFT_DEVICE void multiply_halves(Thread t, const uint32_t* a, const uint32_t* b, int width, int count,
                                 float (&s)[N][4]) {
  using Tile = HalfTile<W>;
  a += (t.warp() * Tile::kOfWarp + Tile::g(t)) * Tile::kRow + Tile::c(t);
  b += Tile::g(t) * Tile::kRow + Tile::c(t);
  WEFT_UNROLL
  for (int j = 0; j < N; ++j) {
    WEFT_UNROLL
    for (int i = 0; i < 4; ++i) s[j][i] = 0;
  }
  WEFT_ROLLED for (int e = 0; e < width; e += 16) {
    const uint32_t left[4] = {a[e / 2], a[8 * Tile::kRow + e / 2], a[e / 2 + 4],
                              a[8 * Tile::kRow + e / 2 + 4]};
    WEFT_UNROLL
    for (int j = 0; j < N; ++j) {
      if (j * 8 >= count) continue;
      const uint32_t right[2] = {b[j * 8 * Tile::kRow + e / 2], b[j * 8 * Tile::kRow + e / 2 + 4]};
      t.multiply_add<H>(left, right, s[j]);
    }
  }
}

/// sum[f] += the warp's rows of products p, rounded to H, times the `count` rows of a turned matrix.
template <class H, int W, int R, int N>
WEFT_DEVICE void add_halves(Thread t, const float (&p)[N][4], const uint32_t* b, int count, int width,
                            float (&sum)[W / 8][4]) {
  using Tile = HalfTile<W>;
  static_assert(N == R / 8);
  constexpr int row = Tile::turned_row(R);
  b += Tile::g(t) * row + Tile::c(t);
  WEFT_UNROLL
  for (int k = 0; k < N / 2; ++k) {
    if (k * 16 >= count) continue;
    const uint32_t left[4] = {pair_of<H>(p[2 * k][0], p[2 * k][1]), pair_of<H>(p[2 * k][2], p[2 * k][3]),
                              pair_of<H>(p[2 * k + 1][0], p[2 * k + 1][1]),
                              pair_of<H>(p[2 * k + 1][2], p[2 * k + 1][3])};
    WEFT_UNROLL
    for (int f = 0; f < W / 8; ++f) {
      if (f * 8 >= width) continue;
      const uint32_t* const column = b + Tile::turned_at(f * 8, R) + k * 8;
      const uint32_t right[2] = {column[0], column[4]};
      t.multiply_add<H>(left, right, sum[f]);
    }
  }
}

/// Gives lane c of four neighbours word c of each: at[i] is that of lane i then.
WEFT_DEVICE inline void turn_words(Thread t, Pack<uint32_t, 4>& words) {
  WEFT_UNROLL
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (t.lane() & step) != 0;
    WEFT_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      uint32_t &low = words.at[i], &high = words.at[i + step];
      const uint32_t got = t.shuffle_xor(upper ? low : high, step);
      low = upper ? got : low, high = upper ? high : got;
    }
  }
}

/// Writes the warp's rows of a result, times `factor`, whose first is row `first` of all heads; `count` rows
/// of the block exist. Four lanes have a row's eight neighbours, in each of W / 8 such groups. They exchange
/// four groups, so that each of them writes 16 bytes, and together they write whole sectors.
template <class H, int W>
WEFT_DEVICE void store_halves(Thread t, const AttentionResult& y, int64_t first, int64_t count,
                              const float (&sum)[W / 8][4], const float (&factor)[2]) {
  const auto place = HalfTile<W>::places(t);
  WEFT_UNROLL
  for (int f = 0; f < W / 8; f += 4) {
    WEFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      Pack<uint32_t, 4> words;
      WEFT_UNROLL
      for (int i = 0; i < 4; ++i)
        words.at[i] =
            pair_of<H>(sum[f + i][2 * half] * factor[half], sum[f + i][2 * half + 1] * factor[half]);
      if (y.whole) turn_words(t, words);
      const int row = place(f, 2 * half).down;
      if (row >= count) continue;
      uint16_t* const to = static_cast<uint16_t*>(y.data) + (first + row) * y.width;
      if (y.whole) {
        const int column = (f + HalfTile<W>::c(t)) * 8;
        if (column < y.width) store_pack(to + column, 0, words);
        continue;
      }
      WEFT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = place(f + i, 2 * half).across;
        if (column < y.width) to[column] = static_cast<uint16_t>(words.at[i]);
        if (column + 1 < y.width) to[column + 1] = static_cast<uint16_t>(words.at[i] >> 16);
      }
    }
  }
}

/// Calls f(TypeTag<H>, width) as with_attention_tile does.
template <class F> void with_half_tile(const AttentionViews& v, const F& f) {
  const bool narrow = std::max(v.q.size(3), v.v.size(3)) <= 64;
  const auto of_type = [&](auto tag) {
    if (narrow) f(tag, std::integral_constant<int, 64>());
    else f(tag, std::integral_constant<int, 128>());
  };
  if (v.q.dtype == kFloat16) of_type(TypeTag<Half>{});
  else of_type(TypeTag<BFloat16>{});
}

/// Rows of the other matrices in a block of the keys' backward. Its two sums leave room for 32 where heads
/// are long.
template <int W> inline constexpr int kKeysOthers = W == 64 ? 64 : 32;

}  // namespace weft::cuda
