// Cumulative sums and products along a dim, stable sorting of rows, and medians. NaN counts as the largest
// value. Rows are sorted by unsigned keys of the same order. Short rows use merge sort, long ones radix sort
// (256 buckets; digits that all keys share are skipped). The first few of a long row (topk) come from a heap
// in one pass.
#include <bit>
#include <type_traits>

#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa/rows.h>
#include <weft/kernels/inner/convert.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

using functors::ring;

/// One step of a cumulation; integers wrap around.
template <class A> A cumulated(bool product, A total, A v) {
  return static_cast<A>(product ? ring(total) * ring(v) : ring(total) + ring(v));
}

template <class T> void cumulate_as(bool product, int dim, const View& x, const View& y) {
  using A = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
  const int64_t n = x.size(dim), xs = x.stride(dim), ys = y.stride(dim);
  if constexpr (sizeof(T) >= 4)
    if (const int run = run_dim(x, dim); run >= 0 && y.stride(run) == 1) {
      // the elements along `dim` lie far apart: many neighbouring lines at once
      Shape others = x.sizes;
      others[dim] = 1;
      return each_run<2>(others, run, {x.strides, y.strides}, n,
                         [&](const Lines<2>& line, int64_t first, int64_t count) {
                           const T* from = x.as<T>() + line.offset(0) + first;
                           T* to = y.as<T>() + line.offset(1) + first;
                           A total[kRunElements];
                           for (int64_t j = 0; j < count; ++j) total[j] = product ? 1 : 0;
                           for (int64_t i = 0; i < n; ++i, from += xs, to += ys)
                             for (int64_t j = 0; j < count; ++j) {
                               total[j] = cumulated(product, total[j], static_cast<A>(from[j]));
                               to[j] = convert<T>(total[j]);
                             }
                         });
    }
  each_line<2>(x.sizes, dim, {x.strides, y.strides}, [&](const Lines<2>& line) {
    const T* from = x.as<T>() + line.offset(0);
    T* to = y.as<T>() + line.offset(1);
    A total = product ? 1 : 0;
    for (int64_t i = 0; i < n; ++i) {
      total = cumulated(product, total, static_cast<A>(from[i * xs]));
      to[i * ys] = convert<T>(total);
    }
  });
}

}  // namespace

void IsaBackend::cumulate(Context&, Reduce op, int dim, View x, View y) {
  const bool product = op == Reduce::kProd;
  if (x.dtype == DType::kInt64) return cumulate_as<int64_t>(product, dim, x, y);
  dispatch_floating(x.dtype,
                    [&](auto tag) { cumulate_as<typename decltype(tag)::type>(product, dim, x, y); });
}

namespace {

template <class T> using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class K> inline constexpr K kNaN = ~K{0};

/// Equal for equal values (also 0 and -0), and in their order; every NaN is the largest key, kNaN.
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
    key = f != f ? kNaN<K> : bits & top ? ~bits : bits | top;
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

/// All items of a row of n elements, `step` apart. Returns the largest key.
template <class T>
Key<T> read_items(const void* row, int64_t step, int64_t n, bool descending, Item<Key<T>>* to) {
  const T* const p = static_cast<const T*>(row);
  Key<T> last = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Key<T> key = key_of(p[i * step], descending);
    to[i] = {key, i};
    last = key > last ? key : last;
  }
  return last;
}

/// The `keep` first items of a row in heap[0 .. keep), in no order.
template <class T>
void select_first(const void* row, int64_t step, int64_t n, int64_t keep, bool descending,
                  Item<Key<T>>* heap) {
  const T* const p = static_cast<const T*>(row);
  read_items<T>(p, step, keep, descending, heap);
  for (int64_t i = keep / 2 - 1; i >= 0; --i) sift_down(heap, keep, i);
  for (int64_t i = keep; i < n; ++i) {
    const Key<T> key = key_of(p[i * step], descending);
    if (key >= heap[0].key) continue;  // of equal keys the earlier one stays
    heap[0] = {key, i};
    sift_down(heap, keep, 0);
  }
}

/// The loops that know the dtype. All else is compiled once per key.
template <class K> struct KeyLoops {
  K (*read)(const void* row, int64_t step, int64_t n, bool descending, Item<K>* to);
  void (*first)(const void* row, int64_t step, int64_t n, int64_t keep, bool descending, Item<K>* heap);
};

/// Calls f with the loops of the dtype.
template <class F> void by_key(DType t, const F& f) {
  KeyLoops<uint32_t> narrow{};
  KeyLoops<uint64_t> wide{};
  dispatch(t, [&]<class T>(TypeTag<T>) {
    if constexpr (sizeof(T) == 8) wide = {read_items<T>, select_first<T>};
    else narrow = {read_items<T>, select_first<T>};
  });
  if (wide.read) f(wide);
  else f(narrow);
}

template <class K>
void sort_rows(const KeyLoops<K>& loops, bool descending, const View& x, const View& values,
               const View& indices) {
  const int64_t n = x.size(1), keep = indices.size(1), step = x.stride(1), bytes = size_of(x.dtype);
  each_line<3>(x.sizes, 1, {x.strides, values.strides, indices.strides}, [&](const Lines<3>& line) {
    const char* const row = x.as<char>() + line.offset(0) * bytes;
    char* const out = values.as<char>() + line.offset(1) * bytes;
    int64_t* const at = indices.as<int64_t>() + line.offset(2);
    const bool few = keep <= n / 16;
    const int64_t count = few ? keep : n;
    Scratch<Item<K>> items(count), spare(count);
    if (few) loops.first(row, step, n, keep, descending, items.get());
    else loops.read(row, step, n, descending, items.get());
    const bool by_digits = !few && n > 1000;  // a heap's positions do not ascend
    const Item<K>* const sorted =
        by_digits ? radix_sort(items.get(), spare.get(), count) : merge_sort(items.get(), spare.get(), count);
    for (int64_t i = 0; i < keep; ++i) at[i * indices.stride(1)] = sorted[i].at;
    dispatch_width(x.dtype, [&]<class T>(TypeTag<T>) {
      const T* const from = reinterpret_cast<const T*>(row);
      for (int64_t i = 0; i < keep; ++i)
        reinterpret_cast<T*>(out)[i * values.stride(1)] = from[sorted[i].at * step];
    });
  });
}

}  // namespace

void IsaBackend::sort(Context&, bool descending, View x, View values, View indices) {
  if (indices.size(1) == 0) return;
  by_key(x.dtype, [&](const auto& loops) { sort_rows(loops, descending, x, values, indices); });
}

namespace {

/// The number of the median of n items, which is item (n - 1) / 2 in order. The candidates are narrowed digit
/// by digit from the top (radix select).
template <class K> int64_t middle_of(Item<K>* items, int64_t n) {
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

template <class K> void medians(const KeyLoops<K>& loops, const View& x, const View& indices) {
  const int64_t n = x.size(1), bytes = size_of(x.dtype);
  each_line<2>(x.sizes, 1, {x.strides, indices.strides}, [&](const Lines<2>& line) {
    Scratch<Item<K>> items(n);
    const K last = loops.read(x.as<char>() + line.offset(0) * bytes, x.stride(1), n, false, items.get());
    int64_t at = 0;
    if (last == kNaN<K> && is_floating(x.dtype))
      while (items.get()[at].key != last) ++at;  // the first NaN
    else at = middle_of(items.get(), n);
    indices.as<int64_t>()[line.offset(1)] = at;
  });
}

}  // namespace

bool IsaBackend::median(Context&, View x, View indices) {
  by_key(x.dtype, [&](const auto& loops) { medians(loops, x, indices); });
  return true;
}

}  // namespace weft::kernels::WEFT_ISA_NS
