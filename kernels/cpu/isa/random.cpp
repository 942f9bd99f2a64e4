// Counter-based random kernels. Element i of a call depends only on the key and on i (PhiloxKey in
// backend.h). So chunks may be drawn in any order and on any thread. This file is compiled without fused
// multiply-add. With the formulas of inner/random.h, numbers then have the same bits under every instruction
// set and on every device. Only float64 normal numbers agree up to the rounding of the library's log, cos and
// sin. A chunk is drawn into a buffer of lanes, several vectors of blocks at a time, and then converted by
// plain loops.
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/inner/random.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

using namespace kernels::random;

constexpr int64_t kChunk = 2048;  // elements drawn at a time; a multiple of the blocks per turn of draw()

/// Eight-byte lanes that hold one 32-bit word of one block each; the upper halves carry anything.
using Words = uint64_t __attribute__((vector_size(kVecBytes)));
inline constexpr int kPerVec = kVecBytes / 8;
inline constexpr int kVecs = 4;  // independent chains, so that the multiplier stays busy

WEFT_INLINE Words times(Words a, uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(b)));
#else
  return (a & 0xFFFFFFFFu) * uint64_t{b};
#endif
}

WEFT_INLINE void interleave(Words a, Words b, uint32_t* out) {
#if defined(__AVX512F__)
  const Words first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  const Words second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  const Words first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  const Words first = __builtin_shufflevector(a, b, 0, 2);
  const Words second = __builtin_shufflevector(a, b, 1, 3);
#endif
  __builtin_memcpy(out, &first, sizeof first);
  __builtin_memcpy(out + 2 * kPerVec, &second, sizeof second);
}

/// Lanes of consecutive blocks: out[4 * b + lane], rounded up to a whole number of groups of kVecs * kPerVec
/// blocks.
void draw(uint64_t seed, uint64_t first, int64_t blocks, uint32_t* out) {
  Words lane;
  for (int i = 0; i < kPerVec; ++i) lane[i] = static_cast<uint64_t>(i);
  for (int64_t b = 0; b < blocks; b += kVecs * kPerVec) {
    Words c0[kVecs], c1[kVecs], c2[kVecs], c3[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      c0[v] = lane + (first + static_cast<uint64_t>(b + v * kPerVec));
      c1[v] = c0[v] >> 32;
      c2[v] = c3[v] = Words{};
    }
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const Words x = times(c0[v], 0xD2511F53u), y = times(c2[v], 0xCD9E8D57u);
        c0[v] = (y >> 32) ^ c1[v] ^ uint64_t { k0 };
        c2[v] = (x >> 32) ^ c3[v] ^ uint64_t { k1 };
        c1[v] = y;
        c3[v] = x;
      }
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const Words low = (c0[v] & 0xFFFFFFFFu) | (c1[v] << 32), high = (c2[v] & 0xFFFFFFFFu) | (c3[v] << 32);
      interleave(low, high, out + 4 * (b + v * kPerVec));
    }
  }
}

template <class T> inline constexpr bool kPair = sizeof(T) == 8;  // float64 and int64 take two lanes

/// f(bits, i0, n) for chunks of `count` elements: n from i0 on. `bits` has one word per element, or two.
template <bool pair, class F> void each_chunk(PhiloxKey key, int64_t count, const F& f) {
  const Parts parts((count + kChunk - 1) / kChunk, 16);  // in chunks, so every task begins at a block
  each_task(parts.count, [&](int64_t task) {
    alignas(64) uint32_t bits[kChunk * (pair ? 2 : 1)];
    for (int64_t c = parts.begin(task), end = c + parts.size(task); c < end; ++c) {
      const int64_t i0 = c * kChunk, n = count - i0 < kChunk ? count - i0 : kChunk, lanes = pair ? 2 * n : n;
      draw(key.seed, key.offset + static_cast<uint64_t>(pair ? i0 / 2 : i0 / 4), (lanes + 3) / 4, bits);
      f(bits, i0, n);
    }
  });
}

/// Elements [i0, i0 + n) of a view in row-major order to or from contiguous numbers of type C.
template <class C> void load_chunk(const View& v, int64_t i0, int64_t n, C* to) {
  const Convert convert = converter(v.dtype, dtype_of<C>);
  const int64_t width = size_of(v.dtype);
  const char* const data = static_cast<const char*>(v.data);
  if (v.is_contiguous()) return convert(data + i0 * width, to, n);
  Lines<1> lines(v.sizes, -1, {v.strides});
  lines.seek(i0);
  for (int64_t i = 0; i < n; ++i, lines.next()) convert(data + lines.offset(0) * width, to + i, 1);
}
template <class C> void store_chunk(const View& v, int64_t i0, int64_t n, const C* from) {
  const Convert convert = converter(dtype_of<C>, v.dtype);
  const int64_t width = size_of(v.dtype);
  char* const data = static_cast<char*>(v.data);
  if (v.is_contiguous()) return convert(from, data + i0 * width, n);
  Lines<1> lines(v.sizes, -1, {v.strides});
  lines.seek(i0);
  for (int64_t i = 0; i < n; ++i, lines.next()) convert(from + i, data + lines.offset(0) * width, 1);
}
/// The destination of a chunk of C: the view itself if possible, else `buffer`, which store_chunk then
/// copies.
template <class C> C* chunk_target(const View& v, int64_t i0, C* buffer) {
  return v.dtype == dtype_of<C> && v.is_contiguous() ? v.as<C>() + i0 : buffer;
}

/// Calls f(TypeTag<C>) for the compute type C of a floating dtype.
template <class F> void dispatch_real(DType t, const F& f) {
  if (!is_floating(t)) throw DTypeError(str("random: takes a floating tensor, got ", t));
  if (t == DType::kFloat64) f(TypeTag<double>{});
  else f(TypeTag<float>{});
}

}  // namespace

void IsaBackend::uniform(Context&, PhiloxKey key, double low, double high, View y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const Uniform<C> range(low, high, y.dtype);
    each_chunk<kPair<C>>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      C buffer[kChunk];
      C* const to = chunk_target(y, i0, buffer);
      for (int64_t i = 0; i < n; ++i) to[i] = range(unit<C>(bits, i));
      if (to == buffer) store_chunk(y, i0, n, buffer);
    });
  });
}

namespace {

/// Normal numbers by pairs, out[0 .. n), n even.
template <class C> void normal_pairs(const uint32_t* bits, int64_t n, C mean, C stddev, C* out) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; i += 2) normal_pair(bits + (kPair<C> ? 2 * i : i), mean, stddev, out + i);
}

}  // namespace

void IsaBackend::normal(Context&, PhiloxKey key, double mean, double stddev, View y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    each_chunk<kPair<C>>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      C z[kChunk];
      // the last element's partner is drawn and dropped
      C* const to = n % 2 == 0 ? chunk_target(y, i0, z) : z;
      normal_pairs(bits, n + n % 2, static_cast<C>(mean), static_cast<C>(stddev), to);
      if (to == z) store_chunk(y, i0, n, z);
    });
  });
}

// Masks use one lane per element for every dtype, so they do not depend on the dtype of the output.
void IsaBackend::bernoulli(Context&, PhiloxKey key, View p, View y) {
  dispatch_real(p.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    bool one = true;  // one probability for all elements
    for (int d = 0; d < p.ndim(); ++d) one = one && (p.stride(d) == 0 || p.size(d) == 1);
    C single = 0;
    if (one && y.numel() > 0) converter(p.dtype, dtype_of<C>)(p.data, &single, 1);
    const auto run = [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      each_chunk<false>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
        C chance[kChunk];
        Out hit[kChunk];
        Out* const to = chunk_target(y, i0, hit);
        if (one) {
          for (int64_t i = 0; i < n; ++i)
            to[i] = static_cast<C>(unit_float(bits[i])) < single ? Out(1) : Out(0);
        } else {
          load_chunk(p, i0, n, chance);
          for (int64_t i = 0; i < n; ++i)
            to[i] = static_cast<C>(unit_float(bits[i])) < chance[i] ? Out(1) : Out(0);
        }
        if (to == hit) store_chunk(y, i0, n, hit);
      });
    };
    if (is_floating(y.dtype)) run(TypeTag<float>{});
    else run(TypeTag<bool>{});
  });
}

void IsaBackend::random_int(Context&, PhiloxKey key, int64_t low, int64_t high, View y) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  each_chunk<true>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
    int64_t buffer[kChunk];
    int64_t* const to = chunk_target(y, i0, buffer);
    for (int64_t i = 0; i < n; ++i) to[i] = bounded(bits[2 * i], bits[2 * i + 1], low, range);
    if (to == buffer) store_chunk(y, i0, n, buffer);
  });
}

void IsaBackend::dropout(Context&, PhiloxKey key, double p, View x, View y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    const float limit = static_cast<float>(p);
    const C scale = p < 1 ? static_cast<C>(1 / (1 - p)) : 0;
    each_chunk<false>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      C in[kChunk], out[kChunk];
      const bool direct = x.dtype == dtype_of<C> && x.is_contiguous();
      if (!direct) load_chunk(x, i0, n, in);
      const C* const from = direct ? x.as<C>() + i0 : in;
      C* const to = chunk_target(y, i0, out);
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const C scaled = from[i] * scale;
        to[i] = unit_float(bits[i]) >= limit ? scaled : C(0);
      }
      if (to == out) store_chunk(y, i0, n, out);
    });
  });
}

void IsaBackend::multinomial(Context&, PhiloxKey key, bool replacement, View p, View indices) {
  const int64_t rows = p.size(0), k = p.size(1), n = indices.size(1);
  if (!is_floating(p.dtype)) throw DTypeError(str("multinomial: takes floating weights, got ", p.dtype));
  dispatch(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t r = 0; r < rows; ++r) {  // all rows before anything is written
      double sum = 0;
      int64_t positive = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double w = static_cast<double>(p.as<T>()[r * p.stride(0) + j * p.stride(1)]);
        if (!(w >= 0) || w > 1.7e308)
          throw ValueError(
              str("multinomial: weight ", w, " of class ", j, " in row ", r, " is negative or not finite"));
        sum += w, positive += w > 0;
      }
      if (!(sum > 0)) throw ValueError(str("multinomial: the weights of row ", r, " sum to ", sum));
      if (!replacement && positive < n)
        throw ValueError(str("multinomial: row ", r, " has ", positive, " positive weights, ", n,
                             " draws without replacement"));
    }
    const Parts parts(rows, (1 << 14) / (k + n) + 1);
    each_task(parts.count, [&](int64_t task) {
      Scratch<double> running(k), left(k);
      for (int64_t r = parts.begin(task), end = r + parts.size(task); r < end; ++r) {
        for (int64_t j = 0; j < k; ++j)
          left.get()[j] = static_cast<double>(p.as<T>()[r * p.stride(0) + j * p.stride(1)]);
        for (int64_t d = 0; d < n; ++d) {
          if (d == 0 || !replacement) {
            double sum = 0;
            for (int64_t j = 0; j < k; ++j) running.get()[j] = sum += left.get()[j];
          }
          const uint64_t element = static_cast<uint64_t>(r * n + d);
          const PhiloxBlock b = philox(key.seed, key.offset + element / 2);
          const int lane = element % 2 ? 2 : 0;
          const double u = unit_double(b.v[lane], b.v[lane + 1]) * running.get()[k - 1];
          int64_t low = 0, high = k - 1;  // the first class whose running sum is above u
          while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (running.get()[middle] > u) high = middle;
            else low = middle + 1;
          }
          while (low > 0 && left.get()[low] == 0) --low;  // u at the very end of the range
          indices.as<int64_t>()[r * indices.stride(0) + d * indices.stride(1)] = low;
          if (!replacement) left.get()[low] = 0;
        }
      }
    });
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
