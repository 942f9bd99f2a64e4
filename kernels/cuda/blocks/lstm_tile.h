// The parts of the persistent kernels of an LSTM (ops/rnn_persistent.h): rows of matrices in shared memory,
// and their products. A warp multiplies four rows by eight others. Each lane takes four numbers of every 128,
// so all its loads are runs of a row and have no conflicts. Then the lanes add up their 32 sums, one each.
#pragma once

#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/cuda/packs.h>

namespace weft::cuda {

namespace lstm {

inline constexpr int kThreads = 512;
inline constexpr int kLeft = 4, kRight = 8;  // rows of a warp's product
inline constexpr int kWide = 4;              // numbers of a row that a lane takes at once

/// The numbers of a row in shared memory: `columns` and zeros.
constexpr int64_t width_of(int64_t columns) { return blocks_for(columns, kWide) * kWide; }

/// How rows of `columns` numbers come to shared memory: in packs of `pack` numbers, 1, 2 or 4.
struct RowCopy {
  int columns, width, pack;
  Divider packs;  // of a row
  RowCopy(int64_t n, int pack_numbers)
      : columns(static_cast<int>(n)),
        width(static_cast<int>(width_of(n))),
        pack(pack_numbers),
        packs(width / pack_numbers) {}

  /// Copies rows, of which row i begins at row_at(i), to `to`; null: a row of zeros. Of the threads of a
  /// block. A thread has eight loads in flight.
  template <class S, class F> WEFT_DEVICE void operator()(Thread t, S* to, int rows, const F& row_at) const {
    if (pack == 4) run<4>(t, to, rows, row_at);
    else if (pack == 2) run<2>(t, to, rows, row_at);
    else run<1>(t, to, rows, row_at);
  }

 private:
  template <int E, class S, class F> WEFT_DEVICE void run(Thread t, S* to, int rows, const F& row_at) const {
    constexpr int kAhead = 8;
    const int each = width / E, total = rows * each;
    for (int begin = t.id(); begin < total; begin += kAhead * t.count()) {
      Pack<S, E> part[kAhead];
      WEFT_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int at = begin + i * t.count();
        const int row = static_cast<int>(packs.quotient(static_cast<uint32_t>(at))),
                  column = (at - row * each) * E;
        const S* const from = at < total && column < columns ? row_at(row) : nullptr;
        if (from) part[i] = load_pack<S, E>(from, column);
        else
          for (int k = 0; k < E; ++k) part[i].at[k] = S(0);
      }
      WEFT_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int at = begin + i * t.count();
        if (at < total) store_pack<S, E>(to, int64_t{at} * E, part[i]);
      }
    }
  }
};

/// The largest pack, of 4, 2 or 1 numbers, at whose multiples all of these lie: addresses, and distances in
/// numbers.
template <class S>
int pack_of(std::initializer_list<const S*> addresses, std::initializer_list<int64_t> distances) {
  int pack = 4;
  for (const S* const p : addresses)
    while (reinterpret_cast<uintptr_t>(p) % (static_cast<uintptr_t>(pack) * sizeof(S)) != 0) pack /= 2;
  for (const int64_t d : distances)
    while (d % pack != 0) pack /= 2;
  return pack;
}

/// Adds up the lanes' first 2 * half sums: sum[0] of lane l becomes the l-th one. Each round halves the sums
/// of a lane. It keeps those of its half, with the other lane's parts.
template <int half, class C> WEFT_DEVICE void add_lanes(Thread t, C* sum) {
  const bool upper = (t.lane() & half) != 0;
  WEFT_UNROLL
  for (int i = 0; i < half; ++i) {
    const C kept = upper ? sum[i + half] : sum[i], given = upper ? sum[i] : sum[i + half];
    sum[i] = kept + t.shuffle_xor(given, half);
  }
  if constexpr (half > 1) add_lanes<half / 2>(t, sum);
}

/// The products of rows left + i * left_row and right + i * width, of `width` numbers, by a warp. Lane l gets
/// that of left row l % 4 and right row l / 4.
template <class C, class S>
WEFT_DEVICE C products(Thread t, const S* left, int left_row, const S* right, int width) {
  C sum[kLeft * kRight] = {};
  WEFT_ROLLED for (int k = t.lane() * kWide; k < width; k += kWarp * kWide) {
    Pack<S, kWide> a[kLeft];
    WEFT_UNROLL
    for (int i = 0; i < kLeft; ++i) a[i] = load_pack<S, kWide>(left + i * left_row, k);
    WEFT_UNROLL
    for (int j = 0; j < kRight; ++j) {
      const Pack<S, kWide> b = load_pack<S, kWide>(right + j * width, k);
      WEFT_UNROLL
      for (int i = 0; i < kLeft; ++i) WEFT_UNROLL
      for (int e = 0; e < kWide; ++e)
        sum[j * kLeft + i] += static_cast<C>(a[i].at[e]) * static_cast<C>(b.at[e]);
    }
  }
  add_lanes<kWarp / 2>(t, sum);
  return sum[0];
}

}  // namespace lstm

}  // namespace weft::cuda
