// Cumulative sums and products along a dim, stable sorting of rows, and medians. NaN counts as the largest
// value. Rows are sorted by unsigned keys of the same order. Short rows use merge sort, long ones radix sort
// (256 buckets; digits that all keys share are skipped). The first few of a long row (topk) come from a heap
// in one pass.
#include <bit>
#include <type_traits>

#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

using functors::ring;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                           std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>,
                                       double, int64_t>;

/// One step of a cumulation; integers wrap around.
template <class A> A cumulated(bool product, A total, A v) {
  return static_cast<A>(product ? ring(total) * ring(v) : ring(total) + ring(v));
}

template <class U, class A> U result_of(A total) {
  if constexpr (std::is_same_v<U, Half> || std::is_same_v<U, BFloat16>) return U(static_cast<float>(total));
  else return static_cast<U>(total);
}

/// Along `dim`, whose elements lie far apart: many neighbouring lines at once.
template <class T, class U> void cumulate_runs(bool product, int dim, int run, const View& x, const View& y) {
  using A = Accumulator<T>;
  const int64_t n = x.size(dim), xs = x.stride(dim), ys = y.stride(dim);
  Shape others = x.sizes;
  others[dim] = 1;
  each_run<2>(others, run, {x.strides, y.strides}, n,
              [&](const Lines<2>& line, int64_t first, int64_t count) {
                const T* from = x.as<T>() + line.offset(0) + first;
                U* to = y.as<U>() + line.offset(1) + first;
                A total[kRunElements];
                for (int64_t j = 0; j < count; ++j) total[j] = product ? 1 : 0;
                for (int64_t i = 0; i < n; ++i, from += xs, to += ys) {
                  const auto step = [&](int64_t j) {
                    total[j] = cumulated(product, total[j], static_cast<A>(from[j]));
                    to[j] = result_of<U>(total[j]);
                  };
                  for (int64_t j = 0; j < count; ++j) step(j);
                }
              });
}

}  // namespace

void IsaBackend::cumulate(Context&, Reduce op, int dim, View x, View y) {
  const int64_t n = x.size(dim), xs = x.stride(dim), ys = y.stride(dim);
  const bool product = op == Reduce::kProd;
  const int run = run_dim(x, dim);
  dispatch(x.dtype, [&](auto in) {
    using T = typename decltype(in)::type;
    const auto lines = [&](auto out) {
      using U = typename decltype(out)::type;
      if constexpr (sizeof(T) >= 4)
        if (run >= 0 && y.stride(run) == 1) return cumulate_runs<T, U>(product, dim, run, x, y);
      each_line<2>(x.sizes, dim, {x.strides, y.strides}, [&](const Lines<2>& line) {
        const T* from = x.as<T>() + line.offset(0);
        U* to = y.as<U>() + line.offset(1);
        Accumulator<T> total = product ? 1 : 0;
        for (int64_t i = 0; i < n; ++i) {
          total = cumulated(product, total, static_cast<Accumulator<T>>(from[i * xs]));
          to[i * ys] = result_of<U>(total);
        }
      });
    };
    if (y.dtype == x.dtype) lines(TypeTag<T>{});
    else lines(TypeTag<int64_t>{});  // integers are summed as int64
  });
}

namespace {

template <class T> using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// Equal for equal values (also 0 and -0), and in their order; every NaN is the largest key.
/// Reversed for descending order.
template <class T> Key<T> key_of(T x, bool descending) {
  using K = Key<T>;
  constexpr K top = K{1} << (8 * sizeof(K) - 1);
  K key;
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<K>(x) ^ (std::is_signed_v<T> ? top : 0);
  } else {
    using F = std::conditional_t<sizeof(T) == 8, double, float>;
    const F f = static_cast<F>(x) + F(0);  // turns -0 into 0
    const K bits = std::bit_cast<K>(f);
    key = f != f ? ~K{0} : bits & top ? ~bits : bits | top;
  }
  return descending ? ~key : key;
}

template <class K> struct Item {
  K key;
  int64_t at;
};
template <class K> bool before(const Item<K>& a, const Item<K>& b) {
  return a.key < b.key || (a.key == b.key && a.at < b.at);
}

/// Sorts n items with `spare` of the same size; returns the one that holds the result.
template <class K> Item<K>* merge_sort(Item<K>* from, Item<K>* to, int64_t n) {
  constexpr int64_t kRun = 16;
  for (int64_t start = 0; start < n; start += kRun)
    for (int64_t i = start + 1; i < n && i < start + kRun; ++i) {
      const Item<K> moving = from[i];
      int64_t j = i;
      for (; j > start && before(moving, from[j - 1]); --j) from[j] = from[j - 1];
      from[j] = moving;
    }
  for (int64_t width = kRun; width < n; width *= 2) {
    for (int64_t start = 0; start < n; start += 2 * width) {
      const int64_t middle = start + width < n ? start + width : n,
                    end = middle + width < n ? middle + width : n;
      int64_t a = start, b = middle;
      for (int64_t k = start; k < end; ++k)
        to[k] = a < middle && (b >= end || before(from[a], from[b])) ? from[a++] : from[b++];
    }
    Item<K>* const swap = from;
    from = to, to = swap;
  }
  return from;
}

/// The same for items whose positions ascend; stable by construction.
template <class K> Item<K>* radix_sort(Item<K>* from, Item<K>* to, int64_t n) {
  constexpr int kDigits = static_cast<int>(sizeof(K));
  Scratch<int64_t> counts(kDigits * 256);
  int64_t* const count = counts.get();
  for (int i = 0; i < kDigits * 256; ++i) count[i] = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int d = 0; d < kDigits; ++d) ++count[d * 256 + static_cast<int>(from[i].key >> (8 * d) & 255)];
  for (int d = 0; d < kDigits; ++d) {
    int64_t* const c = count + d * 256;
    if (c[from[0].key >> (8 * d) & 255] == n) continue;
    int64_t sum = 0;
    for (int v = 0; v < 256; ++v) {
      const int64_t here = c[v];
      c[v] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; ++i) to[c[from[i].key >> (8 * d) & 255]++] = from[i];
    Item<K>* const swap = from;
    from = to, to = swap;
  }
  return from;
}

/// Moves the item at `at` down a heap whose largest item is on top.
template <class K> void sift_down(Item<K>* heap, int64_t n, int64_t at) {
  const Item<K> moving = heap[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && before(heap[child], heap[child + 1])) ++child;
    if (!before(moving, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moving;
}

/// The `keep` first items of a row in heap[0 .. keep), in no order.
template <class T>
void select_first(const T* p, int64_t step, int64_t n, int64_t keep, bool descending, Item<Key<T>>* heap) {
  for (int64_t i = 0; i < keep; ++i) heap[i] = {key_of(p[i * step], descending), i};
  for (int64_t i = keep / 2 - 1; i >= 0; --i) sift_down(heap, keep, i);
  for (int64_t i = keep; i < n; ++i) {
    const Key<T> key = key_of(p[i * step], descending);
    if (key >= heap[0].key) continue;  // of equal keys the earlier one stays
    heap[0] = {key, i};
    sift_down(heap, keep, 0);
  }
}

}  // namespace

void IsaBackend::sort(Context&, bool descending, View x, View values, View indices) {
  const int64_t n = x.size(1), keep = indices.size(1);
  if (keep == 0) return;
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using K = Key<T>;
    each_line<3>(x.sizes, 1, {x.strides, values.strides, indices.strides}, [&](const Lines<3>& line) {
      const T* p = x.as<T>() + line.offset(0);
      const bool few = keep <= n / 16;
      const int64_t count = few ? keep : n;
      Scratch<Item<K>> items(count), spare(count);
      if (few) select_first(p, x.stride(1), n, keep, descending, items.get());
      else
        for (int64_t i = 0; i < n; ++i) items.get()[i] = {key_of(p[i * x.stride(1)], descending), i};
      const bool by_digits = !few && n > 1000;  // a heap's positions do not ascend
      const Item<K>* const sorted = by_digits ? radix_sort(items.get(), spare.get(), count)
                                              : merge_sort(items.get(), spare.get(), count);
      for (int64_t i = 0; i < keep; ++i) {
        values.as<T>()[line.offset(1) + i * values.stride(1)] = p[sorted[i].at * x.stride(1)];
        indices.as<int64_t>()[line.offset(2) + i * indices.stride(1)] = sorted[i].at;
      }
    });
  });
}

namespace {

/// The index of the median of n elements, number (n - 1) / 2 in order of value, then position; or of the
/// first NaN. The candidates are narrowed digit by digit from the top (radix select).
template <class T> int64_t middle_of(const T* p, int64_t step, int64_t n, Item<Key<T>>* items) {
  using K = Key<T>;
  for (int64_t i = 0; i < n; ++i) {
    const T v = p[i * step];
    if constexpr (!std::is_integral_v<T>)
      if (const double d = static_cast<double>(v); d != d) return i;
    items[i] = {key_of(v, false), i};
  }
  constexpr int64_t kFew = 32;
  int64_t left = n, rank = (n - 1) / 2;  // the middle is number `rank` of the `left` items
  for (int shift = 8 * static_cast<int>(sizeof(K)) - 8; left > kFew && shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    for (int64_t i = 0; i < left; ++i) ++counts[items[i].key >> shift & 255];
    K digit = 0;
    for (; rank >= counts[digit]; ++digit) rank -= counts[digit];
    if (counts[digit] == left) continue;
    int64_t kept = 0;
    for (int64_t i = 0; i < left; ++i) {
      items[kept] = items[i];
      kept += (items[i].key >> shift & 255) == digit;
    }
    left = kept;
  }
  for (int64_t i = 1; left <= kFew && i < left; ++i) {  // more than a few are equal by now
    const Item<K> moving = items[i];
    int64_t j = i;
    for (; j > 0 && before(moving, items[j - 1]); --j) items[j] = items[j - 1];
    items[j] = moving;
  }
  return items[rank].at;
}

}  // namespace

bool IsaBackend::median(Context&, View x, View indices) {
  const int64_t n = x.size(1);
  dispatch(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_line<2>(x.sizes, 1, {x.strides, indices.strides}, [&](const Lines<2>& line) {
      Scratch<Item<Key<T>>> items(n);
      indices.as<int64_t>()[line.offset(1)] =
          middle_of(x.as<T>() + line.offset(0), x.stride(1), n, items.get());
    });
  });
  return true;
}

}  // namespace weft::kernels::WEFT_ISA_NS
