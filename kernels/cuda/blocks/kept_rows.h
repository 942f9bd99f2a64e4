// Rows that a team reads from memory once and keeps in registers. The kernels of softmax and layer norm need
// each number more than once. A row consists of whole aligned packs. It has up to 8192 floats or halves, or
// 2048 doubles.
#pragma once

#include <initializer_list>

#include <weft/kernels/cuda/blocks/rows.h>

namespace weft::cuda {

/// The packs of a row that a thread keeps in registers.
template <class T> inline constexpr int kKept = kTogether<T>;

/// Rows of whole packs, each of them in the registers of a team.
template <class T> struct RowsInRegisters {
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>, n = kPack<T>, kept = kKept<T>;
  int64_t rows;
  int packs;
  Team team;

  /// A thread's packs of a row; the last one may be missing.
  struct ThreadPacks {
    int rank, size, end;
    WEFT_DEVICE bool has(int a) const { return rank + a * size < end; }
    WEFT_DEVICE int64_t at(int a) const { return int64_t{rank + a * size} * n; }
    WEFT_DEVICE void load(const Line<const T>& line, Raw<T, n> (&to)[kept]) const {
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a)
        if (has(a)) to[a] = fetch<n>(line, at(a));
    }
  };
  /// Calls f(row, packs) for the team's rows. Reached by the whole block.
  template <class F> WEFT_DEVICE void each_row(Thread t, const F& f) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      f(r, ThreadPacks{team.rank(t), team.size(t), mine ? packs : 0});
    });
  }
};

/// The number of packs of a row if every row consists of whole aligned packs, and the threads of a block can
/// hold them. Else it is 0.
template <class T> int kept_packs(std::initializer_list<const View*> views) {
  constexpr int64_t n = kPack<T>;
  for (const View* v : views) {
    const bool whole = v->size(1) % n == 0 && v->stride(1) == 1 &&
                       (v->size(0) == 1 || v->stride(0) % n == 0) &&
                       reinterpret_cast<uintptr_t>(v->data) % 16 == 0;
    if (!whole || v->size(1) / n > int64_t{kKept<T>} * kRowThreads) return 0;
  }
  return static_cast<int>((*views.begin())->size(1) / n);
}
/// The number of threads that hold a row; more if there are few rows.
template <class T> TeamGrid kept_grid(int64_t rows, int packs) {
  constexpr int64_t kEnough = 512;
  const int each = rows < kEnough ? 1 : kKept<T>;
  TeamGrid g;
  g.grid.shared = fold_bytes<Compute<T>[2]>();
  g.grid.threads = 256;
  g.team.lanes = 1;
  while (g.team.lanes < kWarp && g.team.lanes < packs) g.team.lanes *= 2;
  if (packs > kWarp * each) {
    g.team.lanes = 0, g.grid.threads = 2 * kWarp;
    while (g.grid.threads < kRowThreads && g.grid.threads * each < packs) g.grid.threads *= 2;
  }
  g.grid.blocks = one_round(blocks_for(rows, g.team.lanes > 0 ? g.grid.threads / g.team.lanes : 1));
  return g;
}

}  // namespace weft::cuda
