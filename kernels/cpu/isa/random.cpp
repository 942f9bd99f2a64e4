// Counter-based random kernels. Element i of a call depends on the key and on i alone (PhiloxKey in backend.h), so chunks are drawn in any
// order and on any thread. Uniform numbers, integers, masks and choices are the same on every device and instruction set; normal
// ones agree to rounding (the logarithm and the sine are computed there), and are the same bits on one instruction set.
// A chunk is drawn into a buffer of lanes, sixteen blocks side by side so that the rounds vectorise, and then converted.
#include <bit>
#include <cmath>
#include <type_traits>

#include <weft/kernels/cpu/isa/lines.h>
#include <weft/kernels/cpu/isa_table.h>
#include <weft/kernels/philox.h>

namespace weft::kernels::WEFT_ISA_NS {
namespace {

constexpr int64_t kChunk = 4096;  // elements drawn at a time; a multiple of 64
constexpr int kWide = 16;         // blocks side by side

/// Lanes of `blocks` consecutive blocks: out[4 * b + lane].
void draw(uint64_t seed, uint64_t first, int64_t blocks, uint32_t* out) {
  for (int64_t b = 0; b < blocks; b += kWide) {
    uint32_t c0[kWide], c1[kWide], c2[kWide], c3[kWide];
    for (int i = 0; i < kWide; ++i) {
      const uint64_t block = first + static_cast<uint64_t>(b + i);
      c0[i] = static_cast<uint32_t>(block), c1[i] = static_cast<uint32_t>(block >> 32), c2[i] = 0, c3[i] = 0;
    }
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kWide; ++i) {
        const uint64_t x = uint64_t{0xD2511F53u} * c0[i], y = uint64_t{0xCD9E8D57u} * c2[i];
        const uint32_t n0 = static_cast<uint32_t>(y >> 32) ^ c1[i] ^ k0, n2 = static_cast<uint32_t>(x >> 32) ^ c3[i] ^ k1;
        c1[i] = static_cast<uint32_t>(y), c3[i] = static_cast<uint32_t>(x), c0[i] = n0, c2[i] = n2;
      }
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const int64_t n = blocks - b < kWide ? blocks - b : kWide;
    for (int64_t i = 0; i < n; ++i) {
      uint32_t* to = out + 4 * (b + i);
      to[0] = c0[i], to[1] = c1[i], to[2] = c2[i], to[3] = c3[i];
    }
  }
}

template <class T> inline constexpr bool kPair = sizeof(T) == 8;  // float64 and int64 take two lanes

/// draw_chunk(bits, i0, n) for chunks of the element range of y; Bits holds one lane (or two) per element.
template <bool pair, class F>
void each_chunk(PhiloxKey key, int64_t count, const F& f) {
  const Parts parts((count + kChunk - 1) / kChunk, 8);  // in chunks, so every task begins at a block
  each_task(parts.count, [&](int64_t task) {
    uint32_t bits[kChunk * (pair ? 2 : 1)];
    for (int64_t c = parts.begin(task), end = c + parts.size(task); c < end; ++c) {
      const int64_t i0 = c * kChunk, n = count - i0 < kChunk ? count - i0 : kChunk, lanes = pair ? 2 * n : n;
      draw(key.seed, key.offset + static_cast<uint64_t>(pair ? i0 / 2 : i0 / 4), (lanes + 3) / 4, bits);
      f(bits, i0, n);
    }
  });
}

/// get(i) and put(i, v) of elements [i0, i0 + n) of a view in row-major order.
template <class T>
class Cells {
 public:
  Cells(const View& v, int64_t i0) : data_(v.as<T>()), i0_(i0), dense_(v.is_contiguous()), lines_(v.sizes, -1, {v.strides}) {
    if (!dense_) lines_.seek(i0);
  }
  template <class F>
  void each(int64_t n, const F& f) {
    if (dense_)
      for (int64_t i = 0; i < n; ++i) f(i, data_[i0_ + i]);
    else
      for (int64_t i = 0; i < n; ++i, lines_.next()) f(i, data_[lines_.offset(0)]);
  }

 private:
  T* data_;
  int64_t i0_;
  bool dense_;
  Lines<1> lines_;
};

template <class T> using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Compute<T> unit(const uint32_t* bits, int64_t i) {
  if constexpr (std::is_same_v<T, double>) return unit_double(bits[2 * i], bits[2 * i + 1]);
  else return unit_float(bits[i]);
}

template <class F>
void dispatch_real(DType t, const F& f) {
  switch (t) {
    case DType::kFloat64: return f(TypeTag<double>{});
    case DType::kFloat16: return f(TypeTag<Half>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat32: return f(TypeTag<float>{});
    default: throw DTypeError(str("random: takes a floating tensor, got ", t));
  }
}

void uniform(PhiloxKey key, double low, double high, V y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const C a = static_cast<C>(low), width = static_cast<C>(high - low), last = std::nextafter(static_cast<C>(high), a);
    each_chunk<kPair<T>>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      Cells<T>(y, i0).each(n, [&](int64_t i, T& to) {
        const C v = a + width * unit<T>(bits, i);
        to = static_cast<T>(v > last && last >= a ? last : v);  // rounding must not reach the open end
      });
    });
  });
}

/// log(x) of x in (0, 1]: exponent and mantissa, then the series of log((1 + s) / (1 - s)). Within 2e-7 relative.
inline float fast_log(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t shifted = u - 0x3F3504F3u;  // the mantissa is taken in [sqrt(1/2), sqrt(2))
  const int32_t exponent = static_cast<int32_t>(shifted) >> 23;
  const float m = std::bit_cast<float>(u - (static_cast<uint32_t>(exponent) << 23));
  const float s = (m - 1) / (m + 1), z = s * s;
  const float series = 2 * s * (1 + z * (0.333333333f + z * (0.2f + z * (0.142857143f + z * 0.111111111f))));
  return static_cast<float>(exponent) * 0.693147181f + series;
}

/// cos and sin of 2 pi t, t in [0, 1): reduced to an eighth of a turn, then Taylor.
inline void turn(float t, float& c, float& s) {
  const float quarter = t * 4;
  const int32_t q = static_cast<int32_t>(quarter + 0.5f);
  const float a = (quarter - static_cast<float>(q)) * 1.57079632679f, z = a * a;
  const float sine = a * (1 + z * (-1.66666667e-1f + z * (8.33333333e-3f + z * (-1.98412698e-4f + z * 2.75573192e-6f))));
  const float cosine = 1 + z * (-0.5f + z * (4.16666667e-2f + z * (-1.38888889e-3f + z * (2.48015873e-5f + z * -2.75573192e-7f))));
  const float first = (q & 1) ? sine : cosine, second = (q & 1) ? cosine : sine;
  c = ((q + 1) & 2) ? -first : first;
  s = (q & 2) ? -second : second;
}

/// Standard normal numbers by pairs (Box & Muller 1958), out[0 .. n), n even.
void normal_pairs(const uint32_t* bits, int64_t n, float* out) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const float u = (static_cast<float>(bits[2 * i] >> 8) + 1) * 0x1p-24f;  // (0, 1]
    const float r = __builtin_sqrtf(-2 * fast_log(u) + 0.0f);
    float c, s;
    turn(unit_float(bits[2 * i + 1]), c, s);
    out[2 * i] = r * c;
    out[2 * i + 1] = r * s;
  }
}

void normal(PhiloxKey key, double mean, double stddev, V y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    each_chunk<kPair<T>>(key, y.numel(), [&](uint32_t* bits, int64_t i0, int64_t n) {
      C z[kChunk];
      const int64_t even = n + n % 2;
      if constexpr (std::is_same_v<T, double>) {
        if (even != n) {  // the partner of the last element
          const PhiloxBlock b = philox(key.seed, key.offset + static_cast<uint64_t>((i0 + n) / 2));
          const int lane = (i0 + n) % 2 ? 2 : 0;
          bits[2 * n] = b.v[lane], bits[2 * n + 1] = b.v[lane + 1];
        }
        for (int64_t i = 0; i < even; i += 2) {
          const double u = 1 - unit_double(bits[2 * i], bits[2 * i + 1]), t = unit_double(bits[2 * i + 2], bits[2 * i + 3]);
          const double r = std::sqrt(-2 * std::log(u));
          z[i] = r * std::cos(6.283185307179586 * t);
          z[i + 1] = r * std::sin(6.283185307179586 * t);
        }
      } else {
        normal_pairs(bits, even, z);
      }
      Cells<T>(y, i0).each(n, [&](int64_t i, T& to) { to = static_cast<T>(static_cast<C>(mean) + static_cast<C>(stddev) * z[i]); });
    });
  });
}

void bernoulli(PhiloxKey key, V p, V y) {
  // One lane per element whatever the types, so a mask does not depend on the dtype it is written in.
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dispatch_real(p.dtype, [&](auto ptag) {
      using P = typename decltype(ptag)::type;
      each_chunk<false>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
        double chance[kChunk];
        Cells<P>(p, i0).each(n, [&](int64_t i, const P& v) { chance[i] = static_cast<double>(v); });
        Cells<T>(y, i0).each(n, [&](int64_t i, T& to) {
          const bool hit = static_cast<double>(unit_float(bits[i])) < chance[i];
          if constexpr (sizeof(T) == 2) to = T(hit ? 1.0f : 0.0f);
          else to = static_cast<T>(hit);
        });
      });
    });
  });
}

void random_int(PhiloxKey key, int64_t low, int64_t high, V y) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  dispatch(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each_chunk<true>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      Cells<T>(y, i0).each(n, [&](int64_t i, T& to) {
        const uint64_t word = (uint64_t{bits[2 * i]} << 32) | bits[2 * i + 1];
        const int64_t v = low + static_cast<int64_t>(static_cast<uint64_t>((static_cast<unsigned __int128>(word) * range) >> 64));
        if constexpr (sizeof(T) == 2) to = T(static_cast<float>(v));
        else to = static_cast<T>(v);
      });
    });
  });
}

void dropout(PhiloxKey key, double p, V x, V y) {
  dispatch_real(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const float limit = static_cast<float>(p);
    const C scale = p < 1 ? static_cast<C>(1 / (1 - p)) : 0;
    // One lane per element for every type: the mask does not depend on it.
    each_chunk<false>(key, y.numel(), [&](const uint32_t* bits, int64_t i0, int64_t n) {
      if (x.is_contiguous() && y.is_contiguous()) {
        const T* from = x.as<T>() + i0;
        T* to = y.as<T>() + i0;
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(unit_float(bits[i]) >= limit ? static_cast<C>(from[i]) * scale : C(0));
        return;
      }
      C kept[kChunk];
      Cells<T>(x, i0).each(n, [&](int64_t i, const T& v) { kept[i] = unit_float(bits[i]) >= limit ? static_cast<C>(v) * scale : C(0); });
      Cells<T>(y, i0).each(n, [&](int64_t i, T& to) { to = static_cast<T>(kept[i]); });
    });
  });
}

void multinomial(PhiloxKey key, bool replacement, V p, V indices) {
  const int64_t rows = p.size(0), k = p.size(1), n = indices.size(1);
  dispatch_real(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t r = 0; r < rows; ++r) {  // all rows before anything is written
      double sum = 0;
      int64_t positive = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double w = static_cast<double>(p.as<T>()[r * p.stride(0) + j * p.stride(1)]);
        if (!(w >= 0) || w > 1.7e308) throw ValueError(str("multinomial: weight ", w, " of class ", j, " in row ", r, " is negative or not finite"));
        sum += w, positive += w > 0;
      }
      if (!(sum > 0)) throw ValueError(str("multinomial: the weights of row ", r, " sum to ", sum));
      if (!replacement && positive < n) throw ValueError(str("multinomial: row ", r, " has ", positive, " positive weights, ", n, " draws without replacement"));
    }
    const Parts parts(rows, (1 << 14) / (k + n) + 1);
    each_task(parts.count, [&](int64_t task) {
      Scratch<double> running(k), left(k);
      for (int64_t r = parts.begin(task), end = r + parts.size(task); r < end; ++r) {
        for (int64_t j = 0; j < k; ++j) left.get()[j] = static_cast<double>(p.as<T>()[r * p.stride(0) + j * p.stride(1)]);
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

}  // namespace

void fill_random(IsaTable& t) {
  t.uniform = uniform;
  t.normal = normal;
  t.bernoulli = bernoulli;
  t.random_int = random_int;
  t.dropout = dropout;
  t.multinomial = multinomial;
}

}  // namespace weft::kernels::WEFT_ISA_NS
