// Sorting along the last dim: x [R, K] -> the first k of each row in order, values [R, k] and indices int64
// [R, k]. Stable; NaN counts as the largest value. Numbers are mapped to unsigned keys of the same order. A
// pair is a key and its position; no two pairs are equal, so any sorting network sorts stably.
//   K <= 2048         bitonic network in shared memory, several rows per block: one read, one write
//   k <= 1024 < K     radix select: a block per row finds the k-th key by digits of 8 bits from the top.
//                     These are K reads per digit, mostly from cache. Then the block gathers the smaller keys
//                     and sorts them in shared memory.
//   else              radix sort of all pairs (radix.h): four passes for keys of 4 bytes

#include <weft/kernels/cuda/blocks/radix.h>
#include <weft/kernels/cuda/blocks/scan.h>

namespace weft::cuda {

namespace {

constexpr int64_t kShort = 2048, kTop = 1024;
constexpr int64_t kRoom = int64_t{1} << 26;  // pairs per radix sort

/// The key of floating bits: NaN largest, -0 equal to 0. `top` is the sign bit.
template <class K> WEFT_DEVICE K key_of_float(K bits, K top, K infinity) {
  const K magnitude = bits & (top - 1);
  if (magnitude > infinity) return top | (top - 1);
  if (magnitude == 0) return top;
  return (bits & top) != 0 ? ~bits & (top | (top - 1)) : bits | top;
}

/// Rows of numbers as keys of type K: 4 bytes for dtypes up to that width, 8 for the others.
template <class K> struct Keys {
  const void* x;
  DType dtype;
  int64_t row, step;
  K flip;  ///< all the key's bits for descending order

  Keys(const View& v, bool descending)
      : x(v.data), dtype(v.dtype), row(v.stride(0)), step(v.stride(1)), flip(0) {
    if (descending) flip = static_cast<K>(~uint64_t{0} >> (64 - bits()));
  }
  int bits() const { return static_cast<int>(8 * size_of(dtype)); }

  WEFT_DEVICE K at(int64_t r, int64_t i) const { return plain(r * row + i * step) ^ flip; }

  WEFT_DEVICE K plain(int64_t i) const {
    if constexpr (sizeof(K) == 8) {
      constexpr K top = K{1} << 63;
      const K bits = static_cast<const uint64_t*>(x)[i];
      return dtype == DType::kInt64 ? bits ^ top : key_of_float<K>(bits, top, 0x7FF0000000000000u);
    } else {
      constexpr K top = K{1} << 31;
      switch (dtype) {
        case DType::kFloat32: return key_of_float<K>(static_cast<const uint32_t*>(x)[i], top, 0x7F800000u);
        case DType::kFloat16: return key_of_float<K>(static_cast<const uint16_t*>(x)[i], 0x8000u, 0x7C00u);
        case DType::kBFloat16: return key_of_float<K>(static_cast<const uint16_t*>(x)[i], 0x8000u, 0x7F80u);
        case DType::kInt32: return static_cast<const uint32_t*>(x)[i] ^ top;
        default: return static_cast<const uint8_t*>(x)[i];
      }
    }
  }
};

/// The destination of sorted rows.
struct Sorted {
  const void* x;
  void* values;
  int64_t* indices;
  int64_t width, keep;
  int64_t x_row, x_step, values_row, values_step, indices_row, indices_step;

  Sorted(const View& in, const View& v, const View& i)
      : x(in.data),
        values(v.data),
        indices(i.as<int64_t>()),
        width(size_of(in.dtype)),
        keep(i.size(1)),
        x_row(in.stride(0)),
        x_step(in.stride(1)),
        values_row(v.stride(0)),
        values_step(v.stride(1)),
        indices_row(i.stride(0)),
        indices_step(i.stride(1)) {}

  WEFT_DEVICE void put(int64_t r, int64_t place, int64_t at) const {
    const int64_t from = r * x_row + at * x_step, to = r * values_row + place * values_step;
    switch (width) {
      case 1: static_cast<uint8_t*>(values)[to] = static_cast<const uint8_t*>(x)[from]; break;
      case 2: static_cast<uint16_t*>(values)[to] = static_cast<const uint16_t*>(x)[from]; break;
      case 4: static_cast<uint32_t*>(values)[to] = static_cast<const uint32_t*>(x)[from]; break;
      default: static_cast<uint64_t*>(values)[to] = static_cast<const uint64_t*>(x)[from]; break;
    }
    indices[r * indices_row + place * indices_step] = at;
  }
};

/// Sorts each `span` (a power of two) of `count` pairs in shared memory. Source: Batcher 1968, "Sorting
/// networks and their applications".
template <class K> WEFT_DEVICE void bitonic_sort(Thread t, K* keys, uint32_t* at, int count, int span) {
  for (int size = 2; size <= span; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      for (int p = t.id(); p < count / 2; p += t.count()) {
        const int a = 2 * p - (p & (step - 1)), b = a + step;
        const bool ascending = (a & (span - 1) & size) == 0;
        const K ka = keys[a], kb = keys[b];
        const uint32_t pa = at[a], pb = at[b];
        if ((ka > kb || (ka == kb && pa > pb)) != ascending) continue;
        keys[a] = kb, keys[b] = ka;
        at[a] = pb, at[b] = pa;
      }
      t.sync();
    }
}

/// Rows of up to kShort numbers, `count / span` of them in a block.
template <class K> struct SortShort {
  Keys<K> keys;
  Sorted out;
  int64_t rows, n;
  int span, count;

  WEFT_DEVICE void operator()(Thread t) const {
    K* const key = t.shared<K>();
    auto* const at = reinterpret_cast<uint32_t*>(key + count);
    const int64_t per_block = count / span;
    for (int64_t first = t.block() * per_block; first < rows; first += t.blocks() * per_block) {
      for (int i = t.id(); i < count; i += t.count()) {
        const int64_t r = first + i / span;
        const int place = i & (span - 1);
        const bool there = r < rows && place < n;
        key[i] = there ? keys.at(r, place) : static_cast<K>(~K{0});
        at[i] = there ? static_cast<uint32_t>(place) : UINT32_MAX;
      }
      t.sync();
      bitonic_sort(t, key, at, count, span);
      for (int i = t.id(); i < count; i += t.count()) {
        const int64_t r = first + i / span;
        const int place = i & (span - 1);
        if (r < rows && place < out.keep) out.put(r, place, at[i]);
      }
      t.sync();
    }
  }
};

/// The first out.keep of long rows, `span` the power of two that holds them. A block of 512 threads per row.
template <class K> struct SelectTop {
  Keys<K> keys;
  Sorted out;
  int64_t rows, n;
  int span, bits;

  static constexpr int kDigits = 256;
  struct Shared {
    uint32_t count[kDigits];
    uint32_t digit, before;
    uint32_t room[kScanRoom];
    uint64_t wide_room[kScanRoom];
  };

  /// The largest key that is kept; sets `equals` to the number of kept pairs with this key.
  WEFT_DEVICE K threshold(Thread t, Shared& s, int64_t r, uint32_t& equals) const {
    K prefix = 0, known = 0;
    equals = static_cast<uint32_t>(out.keep);
    for (int shift = bits - 8; shift >= 0; shift -= 8) {
      if (t.id() < kDigits) s.count[t.id()] = 0;
      t.sync();
      for (int64_t start = 0; start < n; start += t.count()) {
        const int64_t i = start + t.id();
        const K key = i < n ? keys.at(r, i) : 0;
        const bool counts = i < n && (key & known) == prefix;
        if (t.ballot(counts) == 0) continue;  // most warps, after the first digit
        const auto digit = static_cast<uint32_t>(key >> shift) & (kDigits - 1);
        const uint32_t peers = peers_of(t, counts, digit);
        if (counts && (peers & lanes_before(t)) == 0)
          t.atomic_add(&s.count[digit], static_cast<uint32_t>(std::popcount(peers)));
      }
      t.sync();
      const uint32_t mine = t.id() < kDigits ? s.count[t.id()] : 0;
      const uint32_t before = block_scan(t, mine, uint32_t{0}, Plus(), s.room).before;
      if (before < equals && before + mine >= equals)
        s.digit = static_cast<uint32_t>(t.id()), s.before = before;
      t.sync();
      prefix |= static_cast<K>(s.digit) << shift;
      known |= static_cast<K>(kDigits - 1) << shift;
      equals -= s.before;
      t.sync();
    }
    return prefix;
  }

  WEFT_DEVICE void operator()(Thread t) const {
    Shared& s = *t.shared<Shared>();
    K* const key = reinterpret_cast<K*>(&s + 1);
    auto* const at = reinterpret_cast<uint32_t*>(key + span);
    const auto keep = static_cast<uint32_t>(out.keep);
    for (int64_t r = t.block(); r < rows; r += t.blocks()) {
      uint32_t equals = 0;
      const K limit = threshold(t, s, r, equals);
      for (int i = t.id(); i < span; i += t.count()) key[i] = static_cast<K>(~K{0}), at[i] = UINT32_MAX;
      t.sync();
      // Keys below the limit are first, then the first `equals` keys equal to it.
      uint32_t below_so_far = 0, equal_so_far = 0;
      for (int64_t start = 0; start < n && (below_so_far < keep - equals || equal_so_far < equals);
           start += t.count()) {
        const int64_t i = start + t.id();
        const K k = i < n ? keys.at(r, i) : 0;
        const bool below = i < n && k < limit, equal = i < n && k == limit;
        const auto found = block_scan(t, (below ? uint64_t{1} : 0) | (equal ? uint64_t{1} << 32 : 0),
                                      uint64_t{0}, Plus(), s.wide_room);
        const uint32_t of_equal = equal_so_far + static_cast<uint32_t>(found.before >> 32);
        const uint32_t place =
            below ? below_so_far + static_cast<uint32_t>(found.before) : keep - equals + of_equal;
        if (below || (equal && of_equal < equals)) key[place] = k, at[place] = static_cast<uint32_t>(i);
        below_so_far += static_cast<uint32_t>(found.total),
            equal_so_far += static_cast<uint32_t>(found.total >> 32);
      }
      t.sync();
      bitonic_sort(t, key, at, span, span);
      for (int i = t.id(); i < out.keep; i += t.count()) out.put(r, i, at[i]);
      t.sync();
    }
  }
};

/// Rows [first, first + rows) as one array of keys.
template <class K> struct WriteKeys {
  Keys<K> keys;
  int64_t first, rows, n;
  K* out;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t i = t.global(); i < rows * n; i += t.globals()) {
      const int64_t r = i / n;
      out[i] = keys.at(first + r, i - r * n);
    }
  }
};

struct WriteSorted {
  Sorted out;
  int64_t first, rows, n;
  const int32_t* at;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t i = t.global(); i < rows * out.keep; i += t.globals()) {
      const int64_t r = i / out.keep, place = i - r * out.keep;
      out.put(first + r, place, at[r * n + place]);
    }
  }
};

int power_of_two_above(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

template <class K>
void sort_rows(CudaBackend& backend, Context& c, bool descending, const View& x, const View& values,
               const View& indices) {
  void* const stream = backend.stream_of(c);
  const Keys<K> keys(x, descending);
  const Sorted out(x, values, indices);
  const int64_t rows = x.size(0), n = x.size(1);
  constexpr size_t kPair = sizeof(K) + sizeof(uint32_t);
  if (n <= kShort) {
    const int span = power_of_two_above(n), count = span > 512 ? span : 512, threads = count / 2;
    const int64_t needed = blocks_for(rows, count / span);
    const size_t shared = static_cast<size_t>(count) * kPair;
    launch(stream, "sort_short",
           {.blocks = backend.blocks_at_once<SortShort<K>>("sort_short", needed, threads, shared),
            .threads = threads,
            .shared = shared},
           SortShort<K>{keys, out, rows, n, span, count});
    return;
  }
  if (n > INT32_MAX)
    throw ValueError(str("sort: rows of ", n, " elements are more than a CUDA device sorts at once"));
  if (out.keep <= kTop && (rows >= 8 || n <= 1 << 17)) {
    const int span = power_of_two_above(out.keep);
    const size_t shared = static_cast<size_t>(span) * kPair + sizeof(typename SelectTop<K>::Shared);
    launch(stream, "select_top",
           {.blocks = backend.blocks_at_once<SelectTop<K>>("select_top", rows, 512, shared),
            .threads = 512,
            .shared = shared},
           SelectTop<K>{keys, out, rows, n, span, keys.bits()});
    return;
  }
  const int64_t at_once = kRoom / n < 1 ? 1 : kRoom / n < rows ? kRoom / n : rows;
  const PairRoom<K> room(backend, c, at_once * n);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t some = rows - first < at_once ? rows - first : at_once;
    launch(stream, "write_keys", backend.grid_for(some * n),
           WriteKeys<K>{keys, first, some, n, room.first().keys});
    const Pairs<K> sorted = sort_pairs(backend, c, room.first(), room.second(), some, n, keys.bits());
    launch(stream, "write_sorted", backend.grid_for(some * out.keep),
           WriteSorted{out, first, some, n, sorted.at});
  }
}

}  // namespace

void CudaBackend::sort(Context& c, bool descending, View x, View values, View indices) {
  if (indices.numel() == 0) return;
  enter();
  if (size_of(x.dtype) == 8) sort_rows<uint64_t>(*this, c, descending, x, values, indices);
  else sort_rows<uint32_t>(*this, c, descending, x, values, indices);
}

}  // namespace weft::cuda
