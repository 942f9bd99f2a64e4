// The assignment of rows to threads. A team is a few lanes of a warp for short rows, or the whole block for
// long ones. It processes one row at a time. The team's threads take numbers in packs of 16 bytes if every
// operand is dense and has the same alignment to 16 bytes. Numbers before the first and after the last pack
// are taken singly. Otherwise all numbers are taken singly.
#pragma once

#include <cmath>
#include <type_traits>

#include <weft/kernels/cuda/blocks/block_reduce.h>
#include <weft/kernels/cuda/blocks/number.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/view.h>

namespace weft::cuda {

/// `lanes` neighbouring lanes (a power of two), or the whole block if that is 0.
struct Team {
  int lanes = kWarp;

  WEFT_DEVICE int rank(Thread t) const { return lanes > 0 ? t.id() & (lanes - 1) : t.id(); }
  WEFT_DEVICE int size(Thread t) const { return lanes > 0 ? lanes : t.count(); }
  /// Number of teams of a block, and index of this thread's team.
  WEFT_DEVICE int count(Thread t) const { return lanes > 0 ? t.count() / lanes : 1; }
  WEFT_DEVICE int number(Thread t) const { return lanes > 0 ? t.id() / lanes : 0; }

  /// Reduces one value per thread to one for the team. Reached by the whole block.
  template <Operands order = kInOrder, class V, class Combine>
  WEFT_DEVICE V fold(Thread t, const V& v, const Combine& combine) const {
    return lanes > 0 ? fold_lanes<order>(t, v, lanes, combine)
                     : fold_block<order>(t, v, t.shared<char>(), combine);
  }
  template <class V> WEFT_DEVICE V sum(Thread t, const V& v) const {
    return fold<kInAnyOrder>(t, v, [](V a, V b) { return a + b; });
  }
  template <class V> WEFT_DEVICE V most(Thread t, const V& v) const {
    return fold<kInAnyOrder>(t, v, [](V a, V b) { return std::fmax(a, b); });
  }
  /// Calls f(task, mine) for this team's tasks among `total`. Every thread of the block makes the same number
  /// of calls; surplus calls have mine = false.
  template <class F> WEFT_DEVICE void each(Thread t, int64_t total, const F& f) const {
    const int64_t step = t.blocks() * count(t);
    for (int64_t first = t.block() * count(t); first < total; first += step) {
      const int64_t task = first + number(t);
      f(task, task < total);
    }
  }
};

/// The team and the grid for `tasks` rows of `length` numbers, of which a thread takes `pack` at a time.
struct TeamGrid {
  Team team;
  Grid grid;
};
inline TeamGrid team_grid(int64_t tasks, int64_t length, int pack) {
  TeamGrid g;
  const bool block = length >= 2048 || (length >= 512 && tasks <= 512);
  g.grid.threads = block && length >= 16384 ? 512 : 256;
  g.grid.shared = fold_bytes<double[2]>();
  g.team.lanes = 1;
  while (g.team.lanes < kWarp && g.team.lanes * pack < length) g.team.lanes *= 2;
  if (block) g.team.lanes = 0;
  g.grid.blocks = one_round(blocks_for(tasks, block ? 1 : g.grid.threads / g.team.lanes));
  return g;
}

/// Threads per block of a kernel over rows, and blocks per processor. They make at least half of the
/// processor's threads, fewer for doubles, which need twice the registers.
inline constexpr int kRowThreads = 512;
template <class T> inline constexpr int kRowBlocks = sizeof(T) == sizeof(double) ? 1 : 2;
/// Packs that a thread has in flight, limited by the registers of that many threads.
template <class T> inline constexpr int kTogether = sizeof(T) == sizeof(float) ? 4 : 2;

/// Numbers `step` apart; T may be const.
template <class T> struct Line {
  T* p;
  int64_t step;
};
/// A matrix [R, K] of any strides.
template <class T> struct Matrix {
  T* p;
  int64_t row, col;
  explicit Matrix(const View& v)
      : p(static_cast<T*>(v.data)), row(v.stride(0)), col(v.size(1) == 1 ? 1 : v.stride(1)) {}
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

/// The part [head, body) of a row is read in whole packs.
struct PackedRange {
  int64_t head, body;
};
template <class T, class... L>
WEFT_DEVICE PackedRange packed_range(int64_t count, const Line<T>& lead, const L&... rest) {
  using N = std::remove_const_t<T>;
  constexpr int n = kPack<N>;
  const auto phase = [](const void* p) { return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16); };
  const int at = phase(lead.p);
  const bool packs = lead.step == 1 && ((rest.step == 1 && phase(rest.p) == at) && ...);
  if (!packs) return {count, count};
  const int64_t before = (16 - at) % 16 / static_cast<int>(sizeof(N)), head = before < count ? before : count;
  return {head, head + (count - head) / n * n};
}

/// Calls f(k, many) for the runs of numbers of thread `rank` of `size`, A runs at a time. Run a is [k[a],
/// k[a] + many); k[a] < 0 is no run. `many` is std::integral_constant<int, N>. The assignment and its order
/// depend on sizes and alignment only.
template <class T, int A, class F>
WEFT_DEVICE void unrolled_stride_loop(int rank, int size, const PackedRange& range, int64_t count,
                                      const F& f) {
  constexpr int n = kPack<T>;
  int64_t k[A];
  const int64_t step = static_cast<int64_t>(size) * n, packed = range.body - range.head,
                singles = count - packed;
  for (int64_t first = range.head + static_cast<int64_t>(rank) * n; first < range.body; first += A * step) {
    WEFT_UNROLL
    for (int a = 0; a < A; ++a) k[a] = first + a * step < range.body ? first + a * step : -1;
    f(k, std::integral_constant<int, n>());
  }
  for (int64_t first = rank; first < singles; first += static_cast<int64_t>(A) * size) {
    WEFT_UNROLL
    for (int a = 0; a < A; ++a) {
      const int64_t single = first + static_cast<int64_t>(a) * size;
      k[a] = single >= singles ? -1 : single < range.head ? single : single + packed;
    }
    f(k, std::integral_constant<int, 1>());
  }
}
/// Calls use(k, many, load(k, many)) for these runs in the same order; A loads are issued before the first
/// use.
template <class T, int A, class Load, class Use>
WEFT_DEVICE void stride_loop(int rank, int size, const PackedRange& range, int64_t count, const Load& load,
                             const Use& use) {
  unrolled_stride_loop<T, A>(rank, size, range, count, [&](const int64_t(&k)[A], auto many) {
    decltype(load(k[0], many)) loaded[A] = {};
    WEFT_UNROLL
    for (int a = 0; a < A; ++a)
      if (k[a] >= 0) loaded[a] = load(k[a], many);
    WEFT_UNROLL
    for (int a = 0; a < A; ++a)
      if (k[a] >= 0) use(k[a], many, loaded[a]);
  });
}
/// Calls f(k, many) for these runs, one at a time.
template <class T, class F>
WEFT_DEVICE void stride_loop(int rank, int size, const PackedRange& range, int64_t count, const F& f) {
  unrolled_stride_loop<T, 1>(rank, size, range, count,
                             [&](const int64_t(&k)[1], auto many) { f(k[0], many); });
}

/// N numbers of T as in memory, in whole words if they fill them: two halves need one register.
template <class T, int N> struct Raw {
  using Word = std::conditional_t<sizeof(T) * N % sizeof(uint32_t) == 0, uint32_t, T>;
  Word words[sizeof(T) * N / sizeof(Word)];
};
/// Numbers k .. k + N of a line.
template <int N, class T> WEFT_DEVICE Raw<std::remove_const_t<T>, N> fetch(const Line<T>& line, int64_t k) {
  using S = std::remove_const_t<T>;
  Raw<S, N> raw;
  if constexpr (N == 1) {
    const S one = line.p[k * line.step];
    std::memcpy(static_cast<void*>(&raw), &one, sizeof raw);
  } else {
    constexpr int words = sizeof raw / sizeof(uint32_t);
    const auto pack = load_pack<uint32_t, words>(line.p + k, 0);
    WEFT_UNROLL
    for (int i = 0; i < words; ++i) raw.words[i] = pack.at[i];
  }
  return raw;
}
template <class C, class T, int N> WEFT_DEVICE Numbers<C, N> numbers(const Raw<T, N>& raw) {
  T each[N];
  std::memcpy(static_cast<void*>(each), &raw, sizeof each);
  Numbers<C, N> out;
  WEFT_UNROLL
  for (int i = 0; i < N; ++i) out.v[i] = convert<C>(each[i]);
  return out;
}
/// Stores the result of fetch in a line of shared memory.
template <int N, class T> WEFT_DEVICE void keep(const Line<T>& line, int64_t k, const Raw<T, N>& raw) {
  if constexpr (N == 1) {
    T one;
    std::memcpy(static_cast<void*>(&one), &raw, sizeof one);
    line.p[k] = one;
  } else {
    constexpr int words = sizeof raw / sizeof(uint32_t);
    Pack<uint32_t, words> pack;
    WEFT_UNROLL
    for (int i = 0; i < words; ++i) pack.at[i] = raw.words[i];
    *reinterpret_cast<Pack<uint32_t, words>*>(line.p + k) = pack;
  }
}
/// Numbers k .. k + N of a line, as C.
template <class C, int N, class T> WEFT_DEVICE Numbers<C, N> read(const Line<T>& line, int64_t k) {
  return numbers<C>(fetch<N>(line, k));
}
template <int N, class C, class T>
WEFT_DEVICE void write(const Line<T>& line, int64_t k, const Numbers<C, N>& x) {
  if constexpr (N == 1) {
    line.p[k * line.step] = convert<T>(x.v[0]);
  } else {
    Pack<T, N> pack;
    WEFT_UNROLL
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
