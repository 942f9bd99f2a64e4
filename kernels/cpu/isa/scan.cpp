// Running sums and products along a dim, and stable sorting of rows (a bottom-up merge of positions: n log n compares, two buffers). NaN
// counts as the largest value.
#include <type_traits>

#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa_table.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, double, int64_t>;

void cumulate(Reduce op, int dim, V x, V y) {
  const int64_t n = x.size(dim), xs = x.stride(dim), ys = y.stride(dim);
  dispatch(x.dtype, [&](auto in) {
    using T = typename decltype(in)::type;
    const auto run = [&](auto out) {
      using U = typename decltype(out)::type;
      each_line<2>(x.sizes, dim, {x.strides, y.strides}, [&](const Lines<2>& line) {
        const T* from = x.as<T>() + line.offset(0);
        U* to = y.as<U>() + line.offset(1);
        Wide<T> total = op == Reduce::kProd ? 1 : 0;
        for (int64_t i = 0; i < n; ++i) {
          const Wide<T> v = static_cast<Wide<T>>(from[i * xs]);
          total = op == Reduce::kProd ? total * v : total + v;
          if constexpr (std::is_same_v<U, Half> || std::is_same_v<U, BFloat16>) to[i * ys] = U(static_cast<float>(total));
          else to[i * ys] = static_cast<U>(total);
        }
      });
    };
    if (y.dtype == x.dtype) run(TypeTag<T>{});
    else run(TypeTag<int64_t>{});  // integers are summed as int64
  });
}

/// order[0 .. n) becomes the positions of p in ascending (or descending) order, equal ones in order of position.
template <class T>
void merge_sort(const T* p, int64_t step, int64_t n, bool descending, int64_t* order, int64_t* spare) {
  const auto before = [&](int64_t a, int64_t b) {
    const auto x = static_cast<Wide<T>>(p[a * step]), y = static_cast<Wide<T>>(p[b * step]);
    if (x != x || y != y) return descending ? (x != x && y == y) : (x == x && y != y);
    return descending ? x > y : x < y;
  };
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  constexpr int64_t kRun = 16;
  for (int64_t start = 0; start < n; start += kRun)
    for (int64_t i = start + 1; i < n && i < start + kRun; ++i) {
      const int64_t moving = order[i];
      int64_t j = i;
      for (; j > start && before(moving, order[j - 1]); --j) order[j] = order[j - 1];
      order[j] = moving;
    }
  int64_t *from = order, *to = spare;
  for (int64_t width = kRun; width < n; width *= 2) {
    for (int64_t start = 0; start < n; start += 2 * width) {
      const int64_t middle = start + width < n ? start + width : n, end = middle + width < n ? middle + width : n;
      int64_t a = start, b = middle;
      for (int64_t k = start; k < end; ++k) to[k] = a < middle && (b >= end || !before(from[b], from[a])) ? from[a++] : from[b++];
    }
    int64_t* swap = from;
    from = to, to = swap;
  }
  if (from != order)
    for (int64_t i = 0; i < n; ++i) order[i] = from[i];
}

void sort(bool descending, V x, V values, V indices) {
  const int64_t n = x.size(1), keep = indices.size(1);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_line<3>(x.sizes, 1, {x.strides, values.strides, indices.strides}, [&](const Lines<3>& line) {
      const T* p = x.as<T>() + line.offset(0);
      Scratch<int64_t> order(n), spare(n);
      merge_sort(p, x.stride(1), n, descending, order.get(), spare.get());
      for (int64_t i = 0; i < keep; ++i) {
        values.as<T>()[line.offset(1) + i * values.stride(1)] = p[order.get()[i] * x.stride(1)];
        indices.as<int64_t>()[line.offset(2) + i * indices.stride(1)] = order.get()[i];
      }
    });
  });
}

}  // namespace

void fill_scan(IsaTable& t) {
  t.cumulate = cumulate;
  t.sort = sort;
}

}  // namespace weft::kernels::WEFT_ISA_NS
