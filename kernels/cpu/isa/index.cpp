// Gathering and scattering. All indices are checked before anything is written. What only moves elements goes by their width; adding goes
// by type. Adds of equal indices happen in order of position, so sums have the same bits for any thread count: add_rows gives each
// task a range of target rows and lets it look through all indices.
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/functors.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

/// Indices as int64, each at least 0 and below `size` (or equal to `skip`): the view itself, or a dense copy of one of int32.
class Indices {
 public:
  Indices(const View& index, int64_t size, int64_t skip = INT64_MIN) : view_(index) {
    if (index.dtype != DType::kInt64) {
      copy_.resize(index.numel());
      view_ = {copy_.get(), DType::kInt64, index.sizes, index.strides};
      int64_t step = 1;
      for (int d = index.ndim() - 1; d >= 0; --d) view_.strides[d] = step, step *= index.size(d);
      copy_any(index, view_);
    }
    const int64_t n = view_.numel();
    const int64_t* const p = data();
    const auto fail = [&](int64_t v, int64_t at) {
      throw IndexError(str("index ", v, " at position ", at, " is out of range [0, ", size, ")"));
    };
    if (view_.is_contiguous()) {
      for (int64_t i = 0; i < n; ++i)
        if ((p[i] < 0 || p[i] >= size) && p[i] != skip) [[unlikely]]
          fail(p[i], i);
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

void take_rows(V x, V index, V y) {
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
        if (dense) __builtin_memcpy(to, from, static_cast<size_t>(k) * sizeof(T));
        else
          for (int64_t j = 0; j < k; ++j) to[j * y.stride(1)] = from[j * x.stride(1)];
      }
    });
  });
}

template <class T> T sum_of(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) return a || b;
  else if constexpr (sizeof(T) == 2) return T(static_cast<float>(a) + static_cast<float>(b));
  else return static_cast<T>(functors::ring(a) + functors::ring(b));
}

void add_rows(V index, V dy, int64_t skip, V dx) {
  const int64_t n = dy.size(0), k = dy.size(1), rows = dx.size(0);
  const Indices indices(index, rows, skip);
  const int64_t* const at = indices.data();
  const int64_t is = indices.strides()[0];
  dispatch(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t wanted = n * k / (1 << 15) + 1;
    const Parts parts(rows, rows / (wanted < 16 ? wanted : 16) + 1);
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

void gather(int dim, V x, V index, V y) {
  const Indices indices(index, x.size(dim));
  const int64_t n = index.size(dim), xs = x.stride(dim), ys = y.stride(dim), is = indices.strides()[dim];
  dispatch_width(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_line<3>(index.sizes, dim, {x.strides, indices.strides(), y.strides}, [&](const Lines<3>& line) {
      const T* from = x.as<T>() + line.offset(0);
      const int64_t* at = indices.data() + line.offset(1);
      T* to = y.as<T>() + line.offset(2);
      for (int64_t i = 0; i < n; ++i) to[i * ys] = from[at[i * is] * xs];
    });
  });
}

void scatter(bool add, int dim, V index, V src, V y) {
  const Indices indices(index, y.size(dim));
  const int64_t n = index.size(dim), ss = src.stride(dim), ys = y.stride(dim), is = indices.strides()[dim];
  const auto run = [&](auto tag, auto put) {
    using T = typename decltype(tag)::type;
    each_line<3>(index.sizes, dim, {src.strides, indices.strides(), y.strides}, [&](const Lines<3>& line) {
      const T* from = src.as<T>() + line.offset(0);
      const int64_t* at = indices.data() + line.offset(1);
      T* to = y.as<T>() + line.offset(2);
      for (int64_t i = 0; i < n; ++i) put(to[at[i * is] * ys], from[i * ss]);
    });
  };
  if (add) dispatch(y.dtype, [&](auto tag) { run(tag, [](auto& to, auto v) { to = sum_of(to, v); }); });
  else dispatch_width(y.dtype, [&](auto tag) { run(tag, [](auto& to, auto v) { to = v; }); });
}

/// f(position) for every non-zero element in row-major order; position counts elements.
template <class F> void each_nonzero(const View& x, const F& f) {
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto nonzero = [](T v) {
      if constexpr (sizeof(T) == 2) return static_cast<float>(v) != 0;
      else return v != T(0);
    };
    if (x.is_contiguous()) {
      const T* const p = x.as<T>();
      for (int64_t i = 0, n = x.numel(); i < n; ++i)
        if (nonzero(p[i])) f(i);
      return;
    }
    Lines<1> lines(x.sizes, -1, {x.strides});
    lines.seek(0);
    for (int64_t i = 0; i < lines.count(); ++i, lines.next())
      if (nonzero(x.as<T>()[lines.offset(0)])) f(i);
  });
}

int64_t count_nonzero(V x) {
  int64_t count = 0;
  if (x.numel() > 0) each_nonzero(x, [&](int64_t) { ++count; });
  return count;
}

void nonzero(V x, V out) {
  int64_t row = 0;
  if (x.numel() == 0) return;
  each_nonzero(x, [&](int64_t at) {
    for (int d = x.ndim() - 1; d >= 0; --d) {
      out.as<int64_t>()[row * out.stride(0) + d * out.stride(1)] = at % x.size(d);
      at /= x.size(d);
    }
    ++row;
  });
}

void triangle(bool upper, int64_t k, V x, V y) {
  const int rows = x.ndim() - 2, cols = x.ndim() - 1;
  dispatch_width(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Shape ordinal(x.ndim(), 0);
    ordinal[rows] = 1;  // the row number comes out as an offset
    each_line<3>(x.sizes, cols, {x.strides, y.strides, ordinal}, [&](const Lines<3>& line) {
      const T* from = x.as<T>() + line.offset(0);
      T* to = y.as<T>() + line.offset(1);
      for (int64_t j = 0; j < x.size(cols); ++j) {
        const int64_t above = j - line.offset(2);
        to[j * y.stride(cols)] = (upper ? above >= k : above <= k) ? from[j * x.stride(cols)] : T(0);
      }
    });
  });
}

}  // namespace

void fill_index(IsaTable& t) {
  t.take_rows = take_rows;
  t.add_rows = add_rows;
  t.gather = gather;
  t.scatter = scatter;
  t.count_nonzero = count_nonzero;
  t.nonzero = nonzero;
  t.triangle = triangle;
}

}  // namespace weft::kernels::WEFT_ISA_NS
