// Copies between any strides and dtypes, selection, filling. Moves by the width of an element where the dtype stays; a copy whose source
// runs along another dim than its target goes through tiles of 32 x 32, so that both sides use whole cache lines.
#include <weft/kernels/cpu/isa/blocks.h>
#include <weft/kernels/cpu/isa_table.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

constexpr int64_t kTile = 32;

/// y[j * ystep + i] = x[j + i * xstep]: y dense along i, x dense along j.
template <class T>
void transpose_plane(const T* x, int64_t xstep, T* y, int64_t ystep, int64_t ni, int64_t nj) {
  for (int64_t j0 = 0; j0 < nj; j0 += kTile)
    for (int64_t i0 = 0; i0 < ni; i0 += kTile) {
      const int64_t i1 = i0 + kTile < ni ? i0 + kTile : ni, j1 = j0 + kTile < nj ? j0 + kTile : nj;
      if (i1 - i0 == kTile && j1 - j0 == kTile) {
        T tile[kTile][kTile];
        for (int64_t i = 0; i < kTile; ++i) __builtin_memcpy(tile[i], x + j0 + (i0 + i) * xstep, sizeof tile[i]);
        for (int64_t j = 0; j < kTile; ++j) {
          T* to = y + (j0 + j) * ystep + i0;
          for (int64_t i = 0; i < kTile; ++i) to[i] = tile[i][j];
        }
        continue;
      }
      for (int64_t j = j0; j < j1; ++j)
        for (int64_t i = i0; i < i1; ++i) y[j * ystep + i] = x[j + i * xstep];
    }
}

template <class T>
void copy_same(const View& x, const View& y) {
  const View* const views[] = {&y, &x};
  const Merged<2> m(views);
  const int inner = m.inner();
  const int64_t n = m.sizes[inner], xs = m.strides[1][inner], ys = m.strides[0][inner];
  const T* from = x.as<T>();
  T* to = y.as<T>();
  if (m.sizes.size() == 1 && xs == 1 && ys == 1) {
    const Parts parts(n, kGrain * 4);
    each_task(parts.count, [&](int64_t task) {
      __builtin_memcpy(to + parts.begin(task), from + parts.begin(task), static_cast<size_t>(parts.size(task)) * sizeof(T));
    });
    return;
  }
  int across = -1;  // the dim along which x is dense when it is not the one along which y is
  if (ys == 1 && xs != 1 && xs != 0)
    for (int d = 0; d < inner; ++d)
      if (m.strides[1][d] == 1 && m.sizes[d] >= kTile && n >= kTile) across = d;
  if (across >= 0) {
    Shape sizes, strides[2];
    for (int d = 0; d < inner; ++d)
      if (d != across) sizes.push_back(m.sizes[d]), strides[0].push_back(m.strides[0][d]), strides[1].push_back(m.strides[1][d]);
    const Parts strips(m.sizes[across], 8 * kTile);
    const Lines<2> planes(sizes, -1, strides);
    each_task(planes.count() * strips.count, [&](int64_t task) {
      Lines<2> plane = planes;
      plane.seek(task / strips.count);
      const int64_t j = strips.begin(task % strips.count), nj = strips.size(task % strips.count), ystep = m.strides[0][across];
      transpose_plane(from + plane.offset(1) + j, xs, to + plane.offset(0) + j * ystep, ystep, n, nj);
    });
    return;
  }
  each_line<2>(m.sizes, inner, m.strides, [&](const Lines<2>& line) {
    const T* a = from + line.offset(1);
    T* b = to + line.offset(0);
    if (xs == 1 && ys == 1) {
      __builtin_memcpy(b, a, static_cast<size_t>(n) * sizeof(T));
    } else if (ys == 1) {
      for (int64_t i = 0; i < n; ++i) b[i] = a[i * xs];
    } else {
      for (int64_t i = 0; i < n; ++i) b[i * ys] = a[i * xs];
    }
  });
}

template <class To, class From>
To convert(From v) {
  if constexpr (std::is_same_v<To, bool>) {
    if constexpr (sizeof(From) == 2) return static_cast<float>(v) != 0;
    else return v != From(0);
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(v));
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return static_cast<To>(static_cast<float>(v));
  } else if constexpr (std::is_same_v<To, uint8_t> && std::is_floating_point_v<From>) {
    return static_cast<To>(static_cast<int64_t>(v));
  } else {
    return static_cast<To>(v);
  }
}

void copy(V x, V y) {
  if (y.numel() == 0) return;
  if (x.dtype == y.dtype) {
    dispatch_width(x.dtype, [&](auto tag) { copy_same<typename decltype(tag)::type>(x, y); });
    return;
  }
  const View* const views[] = {&y, &x};
  const Merged<2> m(views);
  const int inner = m.inner();
  const int64_t n = m.sizes[inner], xs = m.strides[1][inner], ys = m.strides[0][inner];
  dispatch(x.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(y.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>) {
        each_line<2>(m.sizes, inner, m.strides, [&](const Lines<2>& line) {
          const From* a = x.as<From>() + line.offset(1);
          To* b = y.as<To>() + line.offset(0);
          if (xs == 1 && ys == 1)
            for (int64_t i = 0; i < n; ++i) b[i] = convert<To>(a[i]);
          else
            for (int64_t i = 0; i < n; ++i) b[i * ys] = convert<To>(a[i * xs]);
        });
      }
    });
  });
}

void where(V cond, V a, V b, V y) {
  if (y.numel() == 0) return;
  const View* const views[] = {&y, &cond, &a, &b};
  const Merged<4> m(views);
  const int inner = m.inner();
  const int64_t n = m.sizes[inner], ys = m.strides[0][inner], cs = m.strides[1][inner], as = m.strides[2][inner], bs = m.strides[3][inner];
  dispatch_width(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_line<4>(m.sizes, inner, m.strides, [&](const Lines<4>& line) {
      T* to = y.as<T>() + line.offset(0);
      const bool* c = cond.as<bool>() + line.offset(1);
      const T *p = a.as<T>() + line.offset(2), *q = b.as<T>() + line.offset(3);
      for (int64_t i = 0; i < n; ++i) to[i * ys] = c[i * cs] ? p[i * as] : q[i * bs];
    });
  });
}

void fill(Scalar value, V y) {
  if (y.numel() == 0) return;
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T v = value.to<T>();
    if (y.is_contiguous()) {
      const Parts parts(y.numel(), kGrain * 4);
      each_task(parts.count, [&](int64_t task) {
        T* to = y.as<T>() + parts.begin(task);
        for (int64_t i = 0, n = parts.size(task); i < n; ++i) to[i] = v;
      });
      return;
    }
    const View* const views[] = {&y};
    const Merged<1> m(views);
    const int inner = m.inner();
    each_line<1>(m.sizes, inner, m.strides, [&](const Lines<1>& line) {
      T* to = y.as<T>() + line.offset(0);
      for (int64_t i = 0; i < m.sizes[inner]; ++i) to[i * m.strides[0][inner]] = v;
    });
  });
}

void arange(Scalar start, Scalar step, V y) {
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = y.as<T>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      if constexpr (std::is_integral_v<T>) to[i * y.stride(0)] = static_cast<T>(start.to<int64_t>() + i * step.to<int64_t>());
      else to[i * y.stride(0)] = convert<T>(start.to<double>() + static_cast<double>(i) * step.to<double>());
    }
  });
}

}  // namespace

void fill_copy(IsaTable& t) {
  t.copy = copy;
  t.where = where;
  t.fill = fill;
  t.arange = arange;
}

}  // namespace weft::kernels::WEFT_ISA_NS
