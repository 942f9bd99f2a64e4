// Reductions over any dims and strides. Everything is accumulated in a wide type (double for floating, int64 for the rest), so a float
// sum is right to its last bit or so whatever its length. The reduced elements of one output are cut into units of fixed length; the
// partial results are combined in order, so neither the thread count nor timing changes a bit.
//   inner: the densest dim is reduced; a line is folded in four vectors of lanes.
//   outer: the densest dim is kept; a block of neighbouring outputs is carried through the reduced rows.
// Bytes: each input once.
#include <limits>
#include <type_traits>

#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/cpu/isa_table.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

template <class T> inline constexpr bool kReal = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <class T> using Wide = std::conditional_t<kReal<T>, double, int64_t>;

template <class W> constexpr W lowest() { return std::is_same_v<W, double> ? static_cast<W>(-std::numeric_limits<double>::infinity()) : std::numeric_limits<W>::min(); }
template <class W> constexpr W highest() { return std::is_same_v<W, double> ? static_cast<W>(std::numeric_limits<double>::infinity()) : std::numeric_limits<W>::max(); }

// map() and combine() are written so that they hold for numbers and for vectors of them.
struct SumOp {
  template <class W> static constexpr W identity() { return 0; }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return a + b; }
};
struct SumAbsOp : SumOp {
  template <class V> static V map(V x) { return x < 0 ? -x : x; }
};
struct SumSquaresOp : SumOp {
  template <class V> static V map(V x) { return x * x; }
};
struct ProdOp {
  template <class W> static constexpr W identity() { return 1; }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return a * b; }
};
struct MaxOp {  // NaN wins
  template <class W> static constexpr W identity() { return lowest<W>(); }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
};
struct MinOp {
  template <class W> static constexpr W identity() { return highest<W>(); }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
};
struct MaxAbsOp : MaxOp {
  template <class W> static constexpr W identity() { return 0; }
  template <class V> static V map(V x) { return x < 0 ? -x : x; }
};
struct AnyOp {
  template <class W> static constexpr W identity() { return 0; }
  template <class V> static V map(V x) { return x != 0; }
  template <class V> static V combine(V a, V b) { return a != 0 || b != 0; }
};
struct AllOp {
  template <class W> static constexpr W identity() { return 1; }
  template <class V> static V map(V x) { return x != 0; }
  template <class V> static V combine(V a, V b) { return a != 0 && b != 0; }
};
template <class Op> inline constexpr bool kVectors = !std::is_same_v<Op, AnyOp> && !std::is_same_v<Op, AllOp>;

WEFT_INLINE VecD load_wide(const double* p) { return load(p); }
WEFT_INLINE VecD load_wide(const float* p) {
  float narrow __attribute__((vector_size(kVecBytes / 2)));
  __builtin_memcpy(&narrow, p, sizeof narrow);
  return __builtin_convertvector(narrow, VecD);
}

template <class Op, class T>
Wide<T> fold_line(const T* p, int64_t n, int64_t stride) {
  using W = Wide<T>;
  W total = Op::template identity<W>();
  int64_t i = 0;
  if constexpr (kVectors<Op> && (std::is_same_v<T, float> || std::is_same_v<T, double>)) {
    constexpr int kCount = kLanes<double>;
    if (stride == 1 && n >= 4 * kCount) {
      VecD sum[4];
      for (VecD& s : sum) s = splat(Op::template identity<double>());
      for (; i + 4 * kCount <= n; i += 4 * kCount)
        for (int k = 0; k < 4; ++k) sum[k] = Op::combine(sum[k], Op::map(load_wide(p + i + k * kCount)));
      const VecD all = Op::combine(Op::combine(sum[0], sum[1]), Op::combine(sum[2], sum[3]));
      for (int k = 0; k < kCount; ++k) total = Op::combine(total, all[k]);
    }
  }
  for (; i < n; ++i) total = Op::combine(total, static_cast<W>(Op::map(static_cast<W>(p[i * stride]))));
  return total;
}

/// Sizes and strides of the reduced or of the kept dims, neighbours merged where memory allows; the last is the densest.
struct Dims {
  int count = 0;
  int64_t size[kMaxDims], x[kMaxDims], y[kMaxDims], numel = 1;
  void add(int64_t n, int64_t xs, int64_t ys) {
    numel *= n;
    if (n == 1) return;
    if (count > 0 && x[count - 1] == xs * n && y[count - 1] == ys * n) {
      size[count - 1] *= n, x[count - 1] = xs, y[count - 1] = ys;
      return;
    }
    size[count] = n, x[count] = xs, y[count] = ys, ++count;
  }
  int64_t densest() const { return count == 0 ? std::numeric_limits<int64_t>::max() : x[count - 1] < 0 ? -x[count - 1] : x[count - 1]; }
  void offsets(int64_t at, int64_t& xo, int64_t& yo) const {
    for (int d = count - 1; d >= 0; --d) {
      const int64_t c = at % size[d];
      at /= size[d];
      xo += c * x[d], yo += c * y[d];
    }
  }
};

void split(const View& x, const View& y, Dims& kept, Dims& reduced) {
  int order[kMaxDims], n = x.ndim();
  for (int d = 0; d < n; ++d) order[d] = d;
  const auto key = [&](int d) { return x.stride(d) < 0 ? -x.stride(d) : x.stride(d); };
  for (int i = 1; i < n; ++i)  // by stride, widest first; stable, so equal strides keep their order
    for (int j = i; j > 0 && key(order[j - 1]) < key(order[j]); --j) {
      const int swap = order[j];
      order[j] = order[j - 1], order[j - 1] = swap;
    }
  for (int i = 0; i < n; ++i) {
    const int d = order[i];
    if (y.size(d) == 1 && x.size(d) != 1) reduced.add(x.size(d), x.stride(d), 0);
    else kept.add(x.size(d), x.stride(d), y.stride(d));
  }
}

template <class W>
void put(const View& y, int64_t offset, W value) {
  switch (y.dtype) {
    case DType::kBool: y.as<bool>()[offset] = value != 0; return;
    case DType::kUInt8: y.as<uint8_t>()[offset] = static_cast<uint8_t>(value); return;
    case DType::kInt32: y.as<int32_t>()[offset] = static_cast<int32_t>(value); return;
    case DType::kInt64: y.as<int64_t>()[offset] = static_cast<int64_t>(value); return;
    case DType::kFloat16: y.as<Half>()[offset] = Half(static_cast<float>(value)); return;
    case DType::kBFloat16: y.as<BFloat16>()[offset] = BFloat16(static_cast<float>(value)); return;
    case DType::kFloat32: y.as<float>()[offset] = static_cast<float>(value); return;
    case DType::kFloat64: y.as<double>()[offset] = static_cast<double>(value); return;
  }
}

constexpr int64_t kUnit = 1 << 14;   // reduced elements folded without a break
constexpr int64_t kTask = 1 << 16;   // elements per task
constexpr int64_t kBlock = 1024;     // neighbouring outputs carried together

template <class Op, class T>
void reduce_inner(const View& x, const View& y, const Dims& kept, const Dims& reduced) {
  using W = Wide<T>;
  const T* data = x.as<T>();
  const int64_t length = reduced.count ? reduced.size[reduced.count - 1] : 1, step = reduced.count ? reduced.x[reduced.count - 1] : 1;
  Dims outer = reduced;
  if (outer.count) outer.numel /= length, --outer.count;
  const Parts pieces(length, kUnit);                   // of a line
  const int64_t units = outer.numel * pieces.count;    // per output
  const auto unit = [&](const T* base, int64_t u) {
    int64_t xo = 0, unused = 0;
    outer.offsets(u / pieces.count, xo, unused);
    const int64_t piece = u % pieces.count;
    return fold_line<Op>(base + xo + pieces.begin(piece) * step, pieces.size(piece), step);
  };
  if (kept.numel == 1 && units > 8) {  // one output: the units are the tasks
    Scratch<W> partial(units);
    each_task(units, [&](int64_t u) { partial.get()[u] = unit(data, u); });
    put(y, 0, fold_line<std::conditional_t<std::is_same_v<Op, SumAbsOp> || std::is_same_v<Op, SumSquaresOp>, SumOp,
                                           std::conditional_t<std::is_same_v<Op, MaxAbsOp>, MaxOp, Op>>>(partial.get(), units, 1));
    return;
  }
  const int64_t per_task = kTask / (reduced.numel > 0 ? reduced.numel : 1) + 1;
  const Parts parts(kept.numel, per_task);
  each_task(parts.count, [&](int64_t task) {
    for (int64_t o = parts.begin(task), end = o + parts.size(task); o < end; ++o) {
      int64_t xo = 0, yo = 0;
      kept.offsets(o, xo, yo);
      W total = Op::template identity<W>();
      for (int64_t u = 0; u < units; ++u) total = Op::combine(total, unit(data + xo, u));
      put(y, yo, total);
    }
  });
}

template <class Op, class T>
void reduce_outer(const View& x, const View& y, const Dims& kept, const Dims& reduced) {
  using W = Wide<T>;
  const int64_t width = kept.size[kept.count - 1], xs = kept.x[kept.count - 1], ys = kept.y[kept.count - 1];
  Dims outer = kept;
  outer.numel /= width, --outer.count;
  const Parts blocks(width, kBlock);
  each_task(outer.numel * blocks.count, [&](int64_t task) {
    int64_t xo = 0, yo = 0;
    outer.offsets(task / blocks.count, xo, yo);
    const int64_t first = blocks.begin(task % blocks.count), n = blocks.size(task % blocks.count);
    const T* data = x.as<T>() + xo + first * xs;
    W total[kBlock];
    for (int64_t j = 0; j < n; ++j) total[j] = Op::template identity<W>();
    const int64_t inner = reduced.size[reduced.count - 1], step = reduced.x[reduced.count - 1];
    for (int64_t r = 0; r < reduced.numel; r += inner) {
      int64_t ro = 0, unused = 0;
      reduced.offsets(r, ro, unused);
      const T* row = data + ro;
      int64_t i = 0;
      for (; xs == 1 && i + 4 <= inner; i += 4, row += 4 * step) {  // four rows at a time, in order
        const T *a = row, *b = a + step, *c = b + step, *d = c + step;
        const auto wide = [](T v) { return static_cast<W>(Op::map(static_cast<W>(v))); };
        for (int64_t j = 0; j < n; ++j)
          total[j] = Op::combine(Op::combine(Op::combine(Op::combine(total[j], wide(a[j])), wide(b[j])), wide(c[j])), wide(d[j]));
      }
      for (; i < inner; ++i, row += step) {
        if (xs == 1)
          for (int64_t j = 0; j < n; ++j) total[j] = Op::combine(total[j], static_cast<W>(Op::map(static_cast<W>(row[j]))));
        else
          for (int64_t j = 0; j < n; ++j) total[j] = Op::combine(total[j], static_cast<W>(Op::map(static_cast<W>(row[j * xs]))));
      }
    }
    for (int64_t j = 0; j < n; ++j) put(y, yo + (first + j) * ys, total[j]);
  });
}

template <class Op>
void reduce_as(const View& x, const View& y) {
  Dims kept, reduced;
  split(x, y, kept, reduced);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (kept.numel == 0) return;
    if (reduced.numel == 0) {
      for (int64_t o = 0; o < kept.numel; ++o) {
        int64_t xo = 0, yo = 0;
        kept.offsets(o, xo, yo);
        put(y, yo, Op::template identity<Wide<T>>());
      }
    } else if (reduced.count > 0 && kept.count > 0 && kept.densest() < reduced.densest() && kept.size[kept.count - 1] >= 4) {
      reduce_outer<Op, T>(x, y, kept, reduced);
    } else {
      reduce_inner<Op, T>(x, y, kept, reduced);
    }
  });
}

void reduce(Reduce op, V x, V y) {
  switch (op) {
    case Reduce::kSum: return reduce_as<SumOp>(x, y);
    case Reduce::kProd: return reduce_as<ProdOp>(x, y);
    case Reduce::kMax: return reduce_as<MaxOp>(x, y);
    case Reduce::kMin: return reduce_as<MinOp>(x, y);
    case Reduce::kAny: return reduce_as<AnyOp>(x, y);
    case Reduce::kAll: return reduce_as<AllOp>(x, y);
    case Reduce::kSumAbs: return reduce_as<SumAbsOp>(x, y);
    case Reduce::kSumSquares: return reduce_as<SumSquaresOp>(x, y);
    case Reduce::kMaxAbs: return reduce_as<MaxAbsOp>(x, y);
  }
}

void arg_reduce(bool largest, int dim, V x, V values, V indices) {
  const int64_t n = x.size(dim), step = x.stride(dim);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Shape absent(x.ndim(), 0);
    each_line<3>(x.sizes, dim, {x.strides, values.defined() ? values.strides : absent, indices.strides}, [&](const Lines<3>& line) {
      const T* p = x.as<T>() + line.offset(0);
      int64_t best = 0;
      Wide<T> value = static_cast<Wide<T>>(p[0]);
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        if (step == 1 && n >= 64) {  // the value in vectors, then its place
          value = largest ? fold_line<MaxOp>(p, n, 1) : fold_line<MinOp>(p, n, 1);
          while (static_cast<Wide<T>>(p[best]) != value && (value == value || p[best] == p[best])) ++best;
          if (values.defined()) values.as<T>()[line.offset(1)] = p[best];
          indices.as<int64_t>()[line.offset(2)] = best;
          return;
        }
      }
      for (int64_t i = 1; i < n && value == value; ++i) {  // the first NaN ends the search: it wins
        const Wide<T> v = static_cast<Wide<T>>(p[i * step]);
        if ((largest ? v > value : v < value) || v != v) value = v, best = i;
      }
      if (values.defined()) values.as<T>()[line.offset(1)] = p[best * step];
      indices.as<int64_t>()[line.offset(2)] = best;
    });
  });
}

void mean_var(int64_t correction, V x, V mean, V var) {
  const int64_t n = x.size(1);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (kReal<T>) {
      each_line<3>({x.size(0), n}, 1, {x.strides, {mean.stride(0), 0}, {var.stride(0), 0}}, [&](const Lines<3>& line) {
        const T* p = x.as<T>() + line.offset(0);
        const double m = fold_line<SumOp>(p, n, x.stride(1)) / static_cast<double>(n);
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double d = static_cast<double>(p[i * x.stride(1)]) - m;
          sum += d * d;
        }
        put(mean, line.offset(1), m);
        put(var, line.offset(2), n - correction > 0 ? sum / static_cast<double>(n - correction) : std::numeric_limits<double>::quiet_NaN());
      });
    }
  });
}

}  // namespace

void fill_reduce(IsaTable& t) {
  t.reduce = reduce;
  t.arg_reduce = arg_reduce;
  t.mean_var = mean_var;
}

}  // namespace weft::kernels::WEFT_ISA_NS
