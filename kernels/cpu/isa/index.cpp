// Gather and scatter kernels. All indices are checked before anything is written. Kernels that only move
// elements are compiled per element width, kernels that add per dtype. Adds to equal indices happen in order
// of position, so sums have the same bits for any thread count. In add_rows each task owns a range of target
// rows and scans all indices.
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa/prefetch.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

/// Indices as int64, checked to be in [0, size) or equal to `skip`: the view itself, or a dense copy of an
/// int32 one. Dims of stride 0 are checked once.
class Indices {
 public:
  Indices(const View& given, int64_t size, int64_t skip = INT64_MIN) : view_(given) {
    for (int d = 0; d < view_.ndim(); ++d)
      if (view_.stride(d) == 0 && view_.size(d) > 1) view_.sizes[d] = 1;
    if (given.dtype != DType::kInt64) {
      const View index = view_;
      copy_.resize(index.numel());
      view_ = {copy_.get(), DType::kInt64, index.sizes, index.strides};
      int64_t step = 1;
      for (int d = index.ndim() - 1; d >= 0; --d)
        if (index.size(d) != 1) view_.strides[d] = step, step *= index.size(d);
        else view_.strides[d] = 0;
      copy_any(index, view_);
    }
    const int64_t n = view_.numel();
    const int64_t* const p = data();
    const auto fail = [&](int64_t v, int64_t at) {
      throw IndexError(str("index ", v, " at position ", at, " is out of range [0, ", size, ")"));
    };
    if (view_.is_contiguous()) {
      constexpr int64_t kAtOnce = 512;  // without a branch for each, the loop becomes vectors
      for (int64_t first = 0; first < n; first += kAtOnce) {
        const int64_t end = n - first < kAtOnce ? n : first + kAtOnce;
        int64_t wrong = 0;
        for (int64_t i = first; i < end; ++i) wrong |= ((p[i] < 0) | (p[i] >= size)) & (p[i] != skip);
        for (int64_t i = first; wrong != 0 && i < end; ++i)
          if ((p[i] < 0 || p[i] >= size) && p[i] != skip) fail(p[i], i);
      }
      return;
    }
    Lines<1> lines(view_.sizes, -1, {view_.strides});
    lines.seek(0);
    for (int64_t i = 0; i < n; ++i, lines.next())
      if (const int64_t v = p[lines.offset(0)]; (v < 0 || v >= size) && v != skip) fail(v, i);
  }
  const int64_t* data() const { return view_.as<int64_t>(); }
  const Shape& strides() const { return view_.strides; }

 private:
  View view_;
  Scratch<int64_t> copy_;
};

}  // namespace

void IsaBackend::take_rows(Context&, View x, View index, View y) {
  const int64_t n = y.size(0), k = y.size(1);
  const Indices indices(index, x.size(0));
  const int64_t* const at = indices.data();
  const int64_t is = indices.strides()[0];
  dispatch_width(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool dense = (x.stride(1) == 1 && y.stride(1) == 1) || k == 1;
    const Parts parts(n, (1 << 15) / (k > 0 ? k : 1) + 1);
    each_task(parts.count, [&](int64_t task) {
      for (int64_t i = parts.begin(task), end = i + parts.size(task); i < end; ++i) {
        const T* from = x.as<T>() + at[i * is] * x.stride(0);
        T* to = y.as<T>() + i * y.stride(0);
        if (dense && i + kRowsAhead < end)
          fetch_row<0>(x.as<T>() + at[(i + kRowsAhead) * is] * x.stride(0),
                       k * static_cast<int64_t>(sizeof(T)));
        if (dense) __builtin_memcpy(to, from, static_cast<size_t>(k) * sizeof(T));
        else
          for (int64_t j = 0; j < k; ++j) to[j * y.stride(1)] = from[j * x.stride(1)];
      }
    });
  });
}

namespace {

template <class T> T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return a || b;
  else if constexpr (sizeof(T) == 2) return T(static_cast<float>(a) + static_cast<float>(b));
  else return static_cast<T>(functors::ring(a) + functors::ring(b));
}

}  // namespace

void IsaBackend::add_rows(Context&, View index, View dy, int64_t skip, View dx) {
  const int64_t n = dy.size(0), k = dy.size(1), rows = dx.size(0);
  const Indices indices(index, rows, skip);
  const int64_t* const at = indices.data();
  const int64_t is = indices.strides()[0];
  dispatch(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // each task scans all indices
    const int64_t wanted = n * k / (1 << 15) + 1, most = k < 1 ? 1 : k < 16 ? k : 16;
    const Parts parts(rows, rows / (wanted < most ? wanted : most) + 1);
    each_task(parts.count, [&](int64_t task) {
      const int64_t first = parts.begin(task), end = first + parts.size(task);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = at[i * is];
        if (row < first || row >= end || row == skip) continue;
        const T* from = dy.as<T>() + i * dy.stride(0);
        T* to = dx.as<T>() + row * dx.stride(0);
        if (dy.stride(1) == 1 && dx.stride(1) == 1)
          for (int64_t j = 0; j < k; ++j) to[j] = sum_of(to[j], from[j]);
        else
          for (int64_t j = 0; j < k; ++j)
            to[j * dx.stride(1)] = sum_of(to[j * dx.stride(1)], from[j * dy.stride(1)]);
      }
    });
  });
}

void IsaBackend::gather(Context&, int dim, View x, View index, View y) {
  const Indices indices(index, x.size(dim));
  const int64_t n = index.size(dim), xs = x.stride(dim), ys = y.stride(dim), is = indices.strides()[dim];
  const int run = run_dim(y, dim);
  dispatch_width(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (run >= 0) {
      const int64_t xr = x.stride(run), ir = indices.strides()[run];
      Shape x_strides = x.strides;
      x_strides[dim] = 0;
      each_run<3>(index.sizes, run, {x_strides, indices.strides(), y.strides}, 1,
                  [&](const Lines<3>& line, int64_t first, int64_t count) {
                    const T* from = x.as<T>() + line.offset(0) + first * xr;
                    const int64_t* at = indices.data() + line.offset(1) + first * ir;
                    T* to = y.as<T>() + line.offset(2) + first;
                    if (ir != 0)
                      for (int64_t j = 0; j < count; ++j) to[j] = from[at[j * ir] * xs + j * xr];
                    else if (xr == 1)
                      __builtin_memcpy(to, from + *at * xs, static_cast<size_t>(count) * sizeof(T));
                    else
                      for (int64_t j = 0; j < count; ++j) to[j] = from[*at * xs + j * xr];
                  });
      return;
    }
    each_line<3>(index.sizes, dim, {x.strides, indices.strides(), y.strides}, [&](const Lines<3>& line) {
      const T* from = x.as<T>() + line.offset(0);
      const int64_t* at = indices.data() + line.offset(1);
      T* to = y.as<T>() + line.offset(2);
      if (ys == 1 && is == 1 && xs == 1)
        for (int64_t i = 0; i < n; ++i) to[i] = from[at[i]];
      else
        for (int64_t i = 0; i < n; ++i) to[i * ys] = from[at[i * is] * xs];
    });
  });
}

namespace {

/// The rules of scatter: to = rule(to, from).
struct Assign {
  template <class T> static T of(T, T from) { return from; }
};
struct Add {
  template <class T> static T of(T to, T from) { return sum_of(to, from); }
};
template <template <class> class F> struct Fold {
  template <class T> static T of(T to, T from) {
    if constexpr (std::is_same_v<T, bool>) return F<uint8_t>{}(to, from) != 0;
    else if constexpr (sizeof(T) == 2) return T(F<float>{}(to, from));
    else return F<T>{}(to, from);
  }
};

/// The loops of a rule for one type. All else of a scatter is compiled once.
struct ScatterLoops {
  /// to[i] = rule(to[i], from[i]) for n elements with the given strides.
  void (*row)(void* to, int64_t to_stride, const void* from, int64_t stride, int64_t n);
  /// The same with to[at[i]].
  void (*line)(void* to, int64_t to_stride, const int64_t* at, int64_t at_stride, const void* from,
               int64_t stride, int64_t n);
};

template <class Rule, class T> void put_row(void* y, int64_t ys, const void* x, int64_t xs, int64_t n) {
  T* const to = static_cast<T*>(y);
  const T* const from = static_cast<const T*>(x);
  if (ys == 1 && xs == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = Rule::of(to[i], from[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i * ys] = Rule::of(to[i * ys], from[i * xs]);
}

template <class Rule, class T>
void put_line(void* y, int64_t ys, const int64_t* at, int64_t as, const void* x, int64_t xs, int64_t n) {
  const T* const from = static_cast<const T*>(x);
  for (int64_t i = 0; i < n; ++i) {
    T& to = static_cast<T*>(y)[at[i * as] * ys];
    to = Rule::of(to, from[i * xs]);
  }
}

template <class Rule> ScatterLoops loops_for(DType t) {
  ScatterLoops loops{};
  dispatch(t, [&]<class T>(TypeTag<T>) { loops = {put_row<Rule, T>, put_line<Rule, T>}; });
  return loops;
}

ScatterLoops loops_of(ScatterRule rule, DType t) {
  switch (rule) {
    case ScatterRule::kAdd: return loops_for<Add>(t);
    case ScatterRule::kMul: return loops_for<Fold<functors::Mul>>(t);
    case ScatterRule::kMax: return loops_for<Fold<functors::Maximum>>(t);
    case ScatterRule::kMin: return loops_for<Fold<functors::Minimum>>(t);
    case ScatterRule::kAssign: break;
  }
  ScatterLoops loops{};
  dispatch_width(t, [&]<class T>(TypeTag<T>) { loops = {put_row<Assign, T>, put_line<Assign, T>}; });
  return loops;
}

/// The dims of a scatter other than its dim, joined, if the index is constant along them and their strides
/// allow it.
struct Across {
  int64_t width = 1, src = 0, y = 0;  ///< elements, and their strides

  bool take(int dim, const View& index, const View& from, const View& to) {
    for (int d = index.ndim() - 1; d >= 0; --d) {
      if (d == dim || index.size(d) == 1) continue;
      if (index.stride(d) != 0) return false;
      if (width == 1) src = from.stride(d), y = to.stride(d);
      else if (from.stride(d) != src * width || to.stride(d) != y * width) return false;
      width *= index.size(d);
    }
    return width > 1;
  }
};

}  // namespace

void IsaBackend::scatter(Context&, ScatterRule rule, int dim, View index, View src, View y) {
  const Indices indices(index, y.size(dim));
  const int64_t n = index.size(dim), ss = src.stride(dim), ys = y.stride(dim), is = indices.strides()[dim];
  Across row;
  const bool by_rows = row.take(dim, index, src, y) && row.y < ys;  // the smaller stride is the inner loop
  const ScatterLoops loops = loops_of(rule, y.dtype);
  const int64_t bytes = size_of(y.dtype);
  if (by_rows) {
    const int64_t narrow = (1 << 15) / (n > 0 ? n : 1) + 1;
    const Parts parts(row.width, narrow > 256 ? narrow : 256);
    each_task(parts.count, [&](int64_t task) {
      const int64_t first = parts.begin(task), count = parts.size(task);
      for (int64_t i = 0; i < n; ++i)
        loops.row(y.as<char>() + (indices.data()[i * is] * ys + first * row.y) * bytes, row.y,
                  src.as<char>() + (i * ss + first * row.src) * bytes, row.src, count);
    });
    return;
  }
  each_line<3>(index.sizes, dim, {src.strides, indices.strides(), y.strides}, [&](const Lines<3>& line) {
    loops.line(y.as<char>() + line.offset(2) * bytes, ys, indices.data() + line.offset(1), is,
               src.as<char>() + line.offset(0) * bytes, ss, n);
  });
}

namespace {

/// Calls f(position, non-zero) for the elements in row-major order until f returns false. There is no branch
/// on an element, because the branches of a random mask are mispredicted.
template <class F> void each_flag(const View& x, const F& f) {
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto nonzero = [](T v) {
      if constexpr (sizeof(T) == 2) return static_cast<float>(v) != 0;
      else return v != T(0);
    };
    if (x.is_contiguous()) {
      const T* const p = x.as<T>();
      for (int64_t i = 0, n = x.numel(); i < n; ++i)
        if (!f(i, nonzero(p[i]))) return;
      return;
    }
    Lines<1> lines(x.sizes, -1, {x.strides});
    lines.seek(0);
    for (int64_t i = 0; i < lines.count(); ++i, lines.next())
      if (!f(i, nonzero(x.as<T>()[lines.offset(0)]))) return;
  });
}

}  // namespace

int64_t IsaBackend::count_nonzero(Context&, View x) {
  int64_t count = 0;
  if (x.numel() > 0) each_flag(x, [&](int64_t, bool flag) { return count += flag, true; });
  return count;
}

void IsaBackend::nonzero(Context&, View x, View out) {
  const int64_t count = out.size(0);
  if (x.numel() == 0 || count == 0) return;
  const int last = x.ndim() - 1;
  const int64_t width = last < 0 ? 1 : x.size(last);
  // coordinates of the line that contains `at`
  int64_t row = 0, line_start = 0, line_end = 0, line[kMaxDims] = {};
  each_flag(x, [&](int64_t at, bool flag) {
    if (at >= line_end) {
      int64_t left = at / width;
      line_start = left * width, line_end = line_start + width;
      for (int d = last - 1; d >= 0; --d) line[d] = left % x.size(d), left /= x.size(d);
    }
    int64_t* const to = out.as<int64_t>() + row * out.stride(0);
    for (int d = 0; d < last; ++d) to[d * out.stride(1)] = line[d];
    if (last >= 0) to[last * out.stride(1)] = at - line_start;
    return (row += flag) < count;
  });
}

void IsaBackend::triangle(Context&, bool upper, int64_t k, View x, View y) {
  const int rows = x.ndim() - 2, cols = x.ndim() - 1;
  k = k < -x.size(rows) ? -x.size(rows) : k > x.size(cols) ? x.size(cols) : k;  // the edge below fits
  dispatch_width(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Shape ordinal(x.ndim(), 0);
    ordinal[rows] = 1;  // with stride 1, the offset of this view is the row number
    each_line<3>(x.sizes, cols, {x.strides, y.strides, ordinal}, [&](const Lines<3>& line) {
      const T* from = x.as<T>() + line.offset(0);
      T* to = y.as<T>() + line.offset(1);
      const int64_t n = x.size(cols), xs = x.stride(cols), ys = y.stride(cols);
      const int64_t edge = line.offset(2) + k + (upper ? 0 : 1);  // the first column of the other part
      const int64_t cut = edge < 0 ? 0 : edge < n ? edge : n;
      const int64_t first = upper ? cut : 0, last = upper ? n : cut;
      const auto width = static_cast<int64_t>(sizeof(T));
      const T zero{};
      move_strided(width, &zero, 0, to, ys, upper ? cut : 0);
      move_strided(width, from + first * xs, xs, to + first * ys, ys, last - first);
      move_strided(width, &zero, 0, to + cut * ys, ys, upper ? 0 : n - cut);
    });
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
