// How the threads of a kernel share rows. A team is a few lanes of a warp for short rows, or the whole block for long ones; it takes one row at a
// time. Within a row the numbers are dealt to the team's threads in packs of 16 bytes where every operand lies densely and at the same
// distance from a 16-byte border (what stands before the first border and behind the last is dealt singly), else one by one.
#pragma once

#include <type_traits>

#include <weft/kernels/cuda/block_reduce.h>
#include <weft/kernels/cuda/cuda_backend.h>
#include <weft/kernels/cuda/number.h>
#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/view.h>

namespace weft::cuda {

/// `lanes` neighbouring lanes (a power of two), or the whole block when that is 0.
struct Team {
  int lanes = kWarp;

  WEFT_DEVICE int rank(Thread t) const { return lanes > 0 ? t.id() & (lanes - 1) : t.id(); }
  WEFT_DEVICE int size(Thread t) const { return lanes > 0 ? lanes : t.count(); }
  /// Teams of a block, and this thread's among them.
  WEFT_DEVICE int count(Thread t) const { return lanes > 0 ? t.count() / lanes : 1; }
  WEFT_DEVICE int number(Thread t) const { return lanes > 0 ? t.id() / lanes : 0; }

  /// Folds one value per thread to one for the team. Reached by the whole block.
  template <class V, class Combine> WEFT_DEVICE V fold(Thread t, const V& v, const Combine& combine) const {
    return lanes > 0 ? fold_lanes(t, v, lanes, combine) : fold_block(t, v, t.shared<char>(), combine);
  }
  template <class V> WEFT_DEVICE V sum(Thread t, const V& v) const {
    return fold(t, v, [](V a, V b) { return a + b; });
  }
  /// f(task, mine) for this team's tasks among `total`; every thread of the block makes the same number of calls, those too many with
  /// mine = false.
  template <class F> WEFT_DEVICE void each(Thread t, int64_t total, const F& f) const {
    const int64_t step = t.blocks() * count(t);
    for (int64_t first = t.block() * count(t); first < total; first += step) {
      const int64_t task = first + number(t);
      f(task, task < total);
    }
  }
};

/// The team and the grid for `tasks` rows of `length` numbers, of which a thread takes `pack` at a time: depends on sizes alone, but for
/// the number of blocks.
struct TeamGrid {
  Team team;
  Grid grid;
};
inline TeamGrid team_grid(const CudaBackend& b, int64_t tasks, int64_t length, int pack) {
  TeamGrid g;
  const bool block = length >= 2048 || (length >= 512 && tasks <= 512);
  g.grid.threads = block && length >= 16384 ? 512 : 256;
  g.grid.shared = fold_bytes<double[2]>();
  g.team.lanes = 1;
  while (g.team.lanes < kWarp && g.team.lanes * pack < length) g.team.lanes *= 2;
  if (block) g.team.lanes = 0;
  g.grid.blocks = b.resident(blocks_for(tasks, block ? 1 : g.grid.threads / g.team.lanes), g.grid.threads);
  return g;
}

/// Numbers `step` apart; T may be const.
template <class T> struct Line {
  T* p;
  int64_t step;
};
/// A matrix [R, K] of any strides.
template <class T> struct Matrix {
  T* p;
  int64_t row, col;
  explicit Matrix(const View& v) : p(static_cast<T*>(v.data)), row(v.stride(0)), col(v.size(1) == 1 ? 1 : v.stride(1)) {}
  WEFT_DEVICE Line<T> line(int64_t r) const { return {p + r * row, col}; }
};
/// A vector of any dtype, read and written as double; may be absent.
struct Column {
  void* p = nullptr;
  DType dtype = DType::kFloat32;
  int64_t step = 0;
  Column() = default;
  explicit Column(const View& v) : p(v.data), dtype(v.dtype), step(v.defined() ? v.stride(0) : 0) {}
  WEFT_DEVICE double get(int64_t i) const { return get_number<double>(p, dtype, i * step); }
  WEFT_DEVICE void set(int64_t i, double value) const { set_number(p, dtype, i * step, value); }
};

/// [head, body) of a row goes in whole packs.
struct Cut {
  int64_t head, body;
};
template <class T, class... L> WEFT_DEVICE Cut cut_row(int64_t count, const Line<T>& lead, const L&... rest) {
  using N = std::remove_const_t<T>;
  constexpr int n = kPack<N>;
  const auto phase = [](const void* p) { return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16); };
  const int at = phase(lead.p);
  const bool packs = lead.step == 1 && ((rest.step == 1 && phase(rest.p) == at) && ...);
  if (!packs) return {count, count};
  const int64_t before = (16 - at) % 16 / static_cast<int>(sizeof(N)), head = before < count ? before : count;
  return {head, head + (count - head) / n * n};
}

/// f(k, std::integral_constant<int, N>) for the runs of N numbers from k on that fall to thread `rank` of `size`.
template <class T, class F> WEFT_DEVICE void deal(int rank, int size, const Cut& cut, int64_t count, const F& f) {
  constexpr int n = kPack<T>;
  for (int64_t k = rank; k < cut.head; k += size) f(k, std::integral_constant<int, 1>());
  WEFT_UNROLL4 for (int64_t k = cut.head + static_cast<int64_t>(rank) * n; k < cut.body; k += static_cast<int64_t>(size) * n)
    f(k, std::integral_constant<int, n>());
  for (int64_t k = cut.body + rank; k < count; k += size) f(k, std::integral_constant<int, 1>());
}

/// Numbers k .. k + N of a line, as C.
template <class C, int N, class T> WEFT_DEVICE Numbers<C, N> read(const Line<T>& line, int64_t k) {
  using S = std::remove_const_t<T>;
  Numbers<C, N> out;
  if constexpr (N == 1) {
    out.v[0] = convert<C>(line.p[k * line.step]);
  } else {
    const auto pack = load_pack<S, N>(line.p, k);
    for (int i = 0; i < N; ++i) out.v[i] = convert<C>(pack.at[i]);
  }
  return out;
}
template <int N, class C, class T> WEFT_DEVICE void write(const Line<T>& line, int64_t k, const Numbers<C, N>& x) {
  if constexpr (N == 1) {
    line.p[k * line.step] = convert<T>(x.v[0]);
  } else {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.at[i] = convert<T>(x.v[i]);
    store_pack(line.p, k, pack);
  }
}

/// Calls f(TypeTag<T>) on the host for a floating dtype.
template <class F> void for_floating(const char* op, DType t, const F& f) {
  switch (t) {
    case DType::kFloat16: return f(TypeTag<Half>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    default: return dispatch_float(op, t, f);
  }
}

}  // namespace weft::cuda
