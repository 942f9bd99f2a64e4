// Reductions over any dims and strides. Accumulators are wide (double for floating dtypes, int64 for others),
// so a float sum is accurate to about its last bit for any length. The reduced elements of one output are cut
// into units of fixed length, and the partial results are combined in order. So the bits do not depend on the
// thread count.
//   inner: the densest dim is reduced; a line is folded in four vectors of lanes.
//   outer: the densest dim is kept; a block of neighbouring outputs is carried through the reduced rows.
// The loops exist for float, double, int32 and int64. Half dtypes are converted to float in blocks, single
// bytes to int32. Each input is read once.
#include <limits>
#include <type_traits>

#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa/reduce_ops.h>
#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/inner/convert.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

template <class Op, class C> Accumulator<C> fold_line(const C* p, int64_t n, int64_t stride) {
  using W = Accumulator<C>;
  W total = Op::template identity<W>();
  int64_t i = 0;
  if constexpr (kChooses<Op> && std::is_same_v<C, float>) {  // a choice is exact without the width
    constexpr int kCount = kLanes<float>;
    if (stride == 1 && n >= 4 * kCount) {
      VecF best[4];
      for (VecF& b : best) b = splat(static_cast<float>(Op::template identity<double>()));
      for (; i + 4 * kCount <= n; i += 4 * kCount)
        for (int k = 0; k < 4; ++k) best[k] = Op::combine(best[k], Op::map(load(p + i + k * kCount)));
      for (; i + kCount <= n; i += kCount) best[0] = Op::combine(best[0], Op::map(load(p + i)));
      if (i < n) best[1] = Op::combine(best[1], Op::map(load_part(p + i, n - i, best[1][0])));
      i = n;
      const VecF all = Op::combine(Op::combine(best[0], best[1]), Op::combine(best[2], best[3]));
      total = Op::combine(
          total, static_cast<W>(fold_lanes<float>(
                     all, [](auto a, auto b) __attribute__((always_inline)) { return Op::combine(a, b); })));
    }
  } else if constexpr (kVectors<Op> && std::is_floating_point_v<C>) {
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
  for (; i < n; ++i) total = Op::combine(total, Op::map(static_cast<W>(p[i * stride])));
  return total;
}

/// `count` lines, line_step apart, folded into total one after the other.
template <class Op, class C>
Accumulator<C> fold_lines(Accumulator<C> total, const C* p, int64_t n, int64_t stride, int64_t count,
                          int64_t line_step) {
  for (; count > 0; --count, p += line_step) total = Op::combine(total, fold_line<Op>(p, n, stride));
  return total;
}

/// total[j] is combined with element j of each of `count` rows, `step` apart, in order.
template <class Op, class C>
void fold_rows(Accumulator<C>* __restrict total, const C* row, int64_t n, int64_t stride, int64_t count,
               int64_t step) {
  if constexpr (kChooses<Op> && std::is_same_v<C, float>) {  // in registers over all rows
    constexpr int64_t kWide = 4 * kLanes<float>;
    for (; stride == 1 && n >= kWide; n -= kWide, row += kWide, total += kWide) {
      float held[kWide];
      for (int64_t j = 0; j < kWide; ++j) held[j] = static_cast<float>(total[j]);
      VecF best[4];
      for (int k = 0; k < 4; ++k) best[k] = load(held + k * kLanes<float>);
      for (int64_t r = 0; r < count; ++r)
        for (int k = 0; k < 4; ++k)
          best[k] = Op::combine(best[k], Op::map(load(row + r * step + k * kLanes<float>)));
      for (int k = 0; k < 4; ++k) store(held + k * kLanes<float>, best[k]);
      for (int64_t j = 0; j < kWide; ++j) total[j] = static_cast<Accumulator<C>>(held[j]);
    }
  }
  const auto wide = [](C v) { return Op::map(static_cast<Accumulator<C>>(v)); };
  // The compiler makes no vectors of four floating choices in a row.
  const bool together = stride == 1 && (!kChooses<Op> || !std::is_floating_point_v<C> || n < 16);
  for (; together && count >= 4; count -= 4, row += 4 * step) {
    const C *a = row, *b = a + step, *c = b + step, *d = c + step;
    for (int64_t j = 0; j < n; ++j)
      total[j] = Op::combine(
          Op::combine(Op::combine(Op::combine(total[j], wide(a[j])), wide(b[j])), wide(c[j])), wide(d[j]));
  }
  for (; count > 0; --count, row += step) {
    if (stride == 1)
      for (int64_t j = 0; j < n; ++j) total[j] = Op::combine(total[j], wide(row[j]));
    else
      for (int64_t j = 0; j < n; ++j) total[j] = Op::combine(total[j], wide(row[j * stride]));
  }
}

/// The loops of one operation for one compute type.
template <class C> struct Folds {
  Accumulator<C> identity;
  Accumulator<C> (*lines)(Accumulator<C> total, const C* p, int64_t n, int64_t stride, int64_t count,
                          int64_t line_step);
  void (*rows)(Accumulator<C>* total, const C* row, int64_t n, int64_t stride, int64_t count, int64_t step);
  Accumulator<C> (*merge)(const Accumulator<C>* partial, int64_t n, int64_t stride);
};
template <class Op, class C>
constexpr Folds<C> kFolds = {Op::template identity<Accumulator<C>>(), fold_lines<Op, C>, fold_rows<Op, C>,
                             fold_line<typename Op::Merge, Accumulator<C>>};

template <class C> const Folds<C>& folds_of(Reduce op) {
  switch (op) {
    case Reduce::kProd: return kFolds<ProdOp, C>;
    case Reduce::kMax: return kFolds<MaxOp, C>;
    case Reduce::kMin: return kFolds<MinOp, C>;
    case Reduce::kAny: return kFolds<AnyOp, C>;
    case Reduce::kAll: return kFolds<AllOp, C>;
    case Reduce::kSumAbs: return kFolds<SumAbsOp, C>;
    case Reduce::kSumSquares: return kFolds<SumSquaresOp, C>;
    case Reduce::kMaxAbs: return kFolds<MaxAbsOp, C>;
    case Reduce::kSum: break;
  }
  return kFolds<SumOp, C>;
}

constexpr int64_t kUnit = 1 << 14;  // reduced elements folded without a break
constexpr int64_t kTask = 1 << 16;  // elements per task
constexpr int64_t kBlock = 1024;    // neighbouring outputs carried together
constexpr int64_t kChunk = 4096;    // elements converted at a time

/// The elements of a view as C: memory itself where it holds C, converted blocks otherwise.
template <class C> struct Source {
  const char* data;
  int64_t width;
  Convert convert;

  explicit Source(const View& x) : data(x.as<char>()), width(size_of(x.dtype)), convert(nullptr) {
    const DType from = x.dtype == DType::kBool ? DType::kUInt8 : x.dtype;
    if (from != dtype_of<C>) convert = converter(from, dtype_of<C>);
  }
  const C* direct(int64_t offset) const { return reinterpret_cast<const C*>(data) + offset; }
  /// `count` lines of n elements, kChunk in all at most, one after the other into block.
  void read(int64_t offset, int64_t n, int64_t stride, int64_t count, int64_t line_step, C* block) const {
    const char* from = data + offset * width;
    if (stride == 1 && (count == 1 || line_step == n)) return convert(from, block, count * n);
    alignas(64) char raw[kChunk * 2];  // only one- and two-byte types are converted
    for (int64_t i = 0; i < count; ++i)
      move_strided(width, from + i * line_step * width, stride, raw + i * n * width, 1, n);
    convert(raw, block, count * n);
  }
  Accumulator<C> fold(const Folds<C>& f, Accumulator<C> total, int64_t offset, int64_t n, int64_t stride,
                      int64_t count = 1, int64_t line_step = 0) const {
    if (!convert) return f.lines(total, direct(offset), n, stride, count, line_step);
    alignas(64) C block[kChunk];
    const int64_t piece = n < kChunk ? n : kChunk, lines = kChunk / piece;
    for (int64_t i = 0; i < count; i += lines) {
      const int64_t here = count - i < lines ? count - i : lines;
      for (int64_t done = 0; done < n; done += piece) {
        const int64_t m = n - done < piece ? n - done : piece;
        read(offset + i * line_step + done * stride, m, stride, here, line_step, block);
        total = f.lines(total, block, here * m, 1, 1, 0);
      }
    }
    return total;
  }
};

/// Sizes and strides of the reduced or of the kept dims, neighbours merged where memory allows;
/// the last is the densest.
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
  int64_t densest() const {
    return count == 0 ? std::numeric_limits<int64_t>::max() : x[count - 1] < 0 ? -x[count - 1] : x[count - 1];
  }
};

/// A position among the elements of Dims, in row-major order, and its offsets in x and y.
struct Cursor {
  const Dims& dims;
  int64_t x = 0, y = 0, index[kMaxDims];
  Cursor(const Dims& all, int64_t at) : dims(all) {
    for (int d = dims.count - 1; d >= 0; --d) {
      index[d] = at == 0 ? 0 : at % dims.size[d];
      if (at != 0) at /= dims.size[d];
      x += index[d] * dims.x[d], y += index[d] * dims.y[d];
    }
  }
  /// Advances by n along the last dim, not beyond its end; from the end, to the start of the next line.
  void advance(int64_t n = 1) {
    for (int d = dims.count - 1; d >= 0; --d, n = 1) {
      x += n * dims.x[d], y += n * dims.y[d];
      if ((index[d] += n) < dims.size[d]) return;
      x -= dims.size[d] * dims.x[d], y -= dims.size[d] * dims.y[d];
      index[d] = 0;
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

template <class W> void put(const View& y, int64_t offset, W value) {
  dispatch(y.dtype, [&]<class T>(TypeTag<T>) { y.as<T>()[offset] = convert<T>(value); });
}

template <class C>
void reduce_inner(const Folds<C>& f, const View& x, const View& y, const Dims& kept, const Dims& reduced) {
  const Source<C> source(x);
  const int64_t length = reduced.count ? reduced.size[reduced.count - 1] : 1,
                step = reduced.count ? reduced.x[reduced.count - 1] : 1;
  Dims outer = reduced;
  if (outer.count) outer.numel /= length, --outer.count;
  const Parts pieces(length, kUnit);                 // of a line
  const int64_t units = outer.numel * pieces.count;  // per output
  if (kept.numel == 1 && units > 8) {                // one output: the units are the tasks
    Scratch<Accumulator<C>> partial(units);
    each_task(units, [&](int64_t u) {
      const int64_t piece = u % pieces.count,
                    start = Cursor(outer, u / pieces.count).x + pieces.begin(piece) * step;
      partial.get()[u] = source.fold(f, f.identity, start, pieces.size(piece), step);
    });
    put(y, 0, f.merge(partial.get(), units, 1));
    return;
  }
  int64_t lines = 1, line_step = 0;  // of the next dim, where lines are not cut
  if (outer.count && pieces.count == 1) {
    --outer.count;
    lines = outer.size[outer.count], line_step = outer.x[outer.count];
    outer.numel /= lines;
  }
  const int64_t per_task = kTask / (reduced.numel > 0 ? reduced.numel : 1) + 1;
  const Parts parts(kept.numel, per_task);
  // short lines are converted many at a time
  if (source.convert && units == 1 && kept.count > 0 && length <= kChunk / 4) {
    const int last = kept.count - 1;
    each_task(parts.count, [&](int64_t task) {
      alignas(64) C block[kChunk];
      Cursor at(kept, parts.begin(task));
      for (int64_t left = parts.size(task), n; left > 0; left -= n, at.advance(n)) {
        const int64_t there = kept.size[last] - at.index[last], fit = kChunk / length;
        n = left < there ? left : there;
        if (n > fit) n = fit;
        source.read(at.x, length, step, n, kept.x[last], block);
        for (int64_t i = 0; i < n; ++i)
          put(y, at.y + i * kept.y[last], f.lines(f.identity, block + i * length, length, 1, 1, 0));
      }
    });
    return;
  }
  each_task(parts.count, [&](int64_t task) {
    Cursor at(kept, parts.begin(task));
    for (int64_t left = parts.size(task); left > 0; --left, at.advance()) {
      Accumulator<C> total = f.identity;
      Cursor line(outer, 0);
      for (int64_t n = outer.numel; n > 0; --n, line.advance()) {
        if (pieces.count == 1) total = source.fold(f, total, at.x + line.x, length, step, lines, line_step);
        else
          for (int64_t piece = 0; piece < pieces.count; ++piece)
            total =
                source.fold(f, total, at.x + line.x + pieces.begin(piece) * step, pieces.size(piece), step);
      }
      put(y, at.y, total);
    }
  });
}

template <class C>
void reduce_outer(const Folds<C>& f, const View& x, const View& y, const Dims& kept, const Dims& reduced) {
  using W = Accumulator<C>;
  const Source<C> source(x);
  const int64_t width = kept.size[kept.count - 1], xs = kept.x[kept.count - 1], ys = kept.y[kept.count - 1];
  const Convert narrow = y.dtype == dtype_of<W> ? nullptr : converter(dtype_of<W>, y.dtype);
  const int64_t inner = reduced.size[reduced.count - 1], step = reduced.x[reduced.count - 1];
  Dims outer = kept, groups = reduced;
  outer.numel /= width, --outer.count;
  groups.numel /= inner, --groups.count;
  const Parts blocks(width, kBlock);
  each_task(outer.numel * blocks.count, [&](int64_t task) {
    const Cursor at(outer, task / blocks.count);
    const int64_t first = blocks.begin(task % blocks.count), n = blocks.size(task % blocks.count);
    alignas(64) W total[kBlock];
    for (int64_t j = 0; j < n; ++j) total[j] = f.identity;
    Cursor group(groups, 0);
    for (int64_t left = groups.numel; left > 0; --left, group.advance()) {
      const int64_t start = at.x + first * xs + group.x;
      if (!source.convert) {
        f.rows(total, source.direct(start), n, xs, inner, step);
        continue;
      }
      alignas(64) C block[kChunk];
      const int64_t columns = n < kChunk / 4 ? n : kChunk / 4, rows = kChunk / columns;
      for (int64_t r = 0; r < inner; r += rows) {
        const int64_t count = inner - r < rows ? inner - r : rows;
        for (int64_t j = 0; j < n; j += columns) {
          const int64_t m = n - j < columns ? n - j : columns;
          source.read(start + r * step + j * xs, m, xs, count, step, block);
          f.rows(total + j, block, m, 1, count, m);
        }
      }
    }
    const int64_t bytes = size_of(y.dtype);
    char* const out = y.as<char>() + (at.y + first * ys) * bytes;
    if (!narrow) return move_strided(bytes, total, 1, out, ys, n);
    if (ys == 1) return narrow(total, out, n);
    alignas(64) char narrowed[kBlock * sizeof(W)];
    narrow(total, narrowed, n);
    move_strided(bytes, narrowed, 1, out, ys, n);
  });
}

template <class C> void reduce_as(Reduce op, const View& x, const View& y) {
  const Folds<C>& f = folds_of<C>(op);
  Dims kept, reduced;
  split(x, y, kept, reduced);
  if (kept.numel == 0) return;
  if (reduced.numel == 0) {
    Cursor at(kept, 0);
    for (int64_t left = kept.numel; left > 0; --left, at.advance()) put(y, at.y, f.identity);
  } else if (reduced.count > 0 && kept.count > 0 && kept.densest() < reduced.densest() &&
             kept.size[kept.count - 1] >= 4) {
    reduce_outer<C>(f, x, y, kept, reduced);
  } else {
    reduce_inner<C>(f, x, y, kept, reduced);
  }
}

}  // namespace

void IsaBackend::reduce(Context&, Reduce op, View x, View y) {
  switch (x.dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32: return reduce_as<float>(op, x, y);
    case DType::kFloat64: return reduce_as<double>(op, x, y);
    case DType::kInt64: return reduce_as<int64_t>(op, x, y);
    default: return reduce_as<int32_t>(op, x, y);
  }
}

namespace {

/// The number of the first extreme of n elements, `step` apart; a NaN is one.
template <bool kLargest, class T> int64_t place_of(const void* line, int64_t n, int64_t step) {
  using W = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  const T* const p = static_cast<const T*>(line);
  int64_t best = 0;
  if constexpr (std::is_floating_point_v<T>) {
    if (step == 1 && n >= 64) {  // the value in vectors, then its place
      const W value = kLargest ? fold_line<MaxOp>(p, n, 1) : fold_line<MinOp>(p, n, 1);
      while (static_cast<W>(p[best]) != value && (value == value || p[best] == p[best])) ++best;
      return best;
    }
  }
  W value = static_cast<W>(p[0]);
  for (int64_t i = 1; i < n && value == value; ++i) {  // the first NaN ends the search: it wins
    const W v = static_cast<W>(p[i * step]);
    if ((kLargest ? v > value : v < value) || v != v) value = v, best = i;
  }
  return best;
}

/// The same for `count` neighbouring lines at once, kRunElements at most.
template <bool kLargest, class T>
void places_of(const void* lines, int64_t n, int64_t step, int64_t count, int64_t* places) {
  using W = std::conditional_t<sizeof(T) == 8, T, std::conditional_t<std::is_integral_v<T>, int32_t, float>>;
  using I = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  const T* row = static_cast<const T*>(lines);
  W value[kRunElements];
  I best[kRunElements];
  for (int64_t j = 0; j < count; ++j) value[j] = static_cast<W>(row[j]), best[j] = 0;
  for (int64_t i = 1; i < n; ++i) {
    row += step;
    for (int64_t j = 0; j < count; ++j) {
      const W v = static_cast<W>(row[j]), before = value[j];
      // a NaN takes the place of every number, and stays
      const bool stays = (kLargest ? v <= before : v >= before) | (before != before);
      value[j] = stays ? before : v;
      best[j] = stays ? best[j] : static_cast<I>(i);
    }
  }
  for (int64_t j = 0; j < count; ++j) places[j] = best[j];
}

/// The loops that know the dtype; `places` is absent where `place` is as quick.
struct Places {
  int64_t (*place)(const void* line, int64_t n, int64_t step);
  void (*places)(const void* lines, int64_t n, int64_t step, int64_t count, int64_t* to);
};

template <bool kLargest> Places places_for(DType t) {
  Places loops{};
  dispatch(t, [&]<class T>(TypeTag<T>) {
    loops.place = place_of<kLargest, T>;
    if constexpr (sizeof(T) >= 4) loops.places = places_of<kLargest, T>;
  });
  return loops;
}

}  // namespace

void IsaBackend::arg_reduce(Context&, bool largest, int dim, View x, View values, View indices) {
  const int64_t n = x.size(dim), step = x.stride(dim), bytes = size_of(x.dtype);
  const Places loops = largest ? places_for<true>(x.dtype) : places_for<false>(x.dtype);
  const int run = loops.places && n < INT32_MAX ? run_dim(x, dim) : -1;
  const Shape absent(x.ndim(), 0), &value_strides = values.defined() ? values.strides : absent;
  // the result at these offsets, whose line begins at `from`
  const auto put_place = [&](const char* from, int64_t place, int64_t value_at, int64_t index_at) {
    indices.as<int64_t>()[index_at] = place;
    if (values.defined())
      __builtin_memcpy(values.as<char>() + value_at * bytes, from + place * step * bytes,
                       static_cast<size_t>(bytes));
  };
  if (run < 0)
    return each_line<3>(x.sizes, dim, {x.strides, value_strides, indices.strides}, [&](const Lines<3>& line) {
      const char* const from = x.as<char>() + line.offset(0) * bytes;
      put_place(from, loops.place(from, n, step), line.offset(1), line.offset(2));
    });
  Shape others = x.sizes;
  others[dim] = 1;
  each_run<3>(others, run, {x.strides, value_strides, indices.strides}, n,
              [&](const Lines<3>& line, int64_t first, int64_t count) {
                const char* const from = x.as<char>() + (line.offset(0) + first) * bytes;
                int64_t places[kRunElements];
                loops.places(from, n, step, count, places);
                for (int64_t j = 0; j < count; ++j)
                  put_place(from + j * bytes, places[j], line.offset(1) + (first + j) * value_strides[run],
                            line.offset(2) + (first + j) * indices.stride(run));
              });
}

}  // namespace weft::kernels::WEFT_ISA_NS
