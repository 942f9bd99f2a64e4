// Fused optimizer steps on the CPU. A functor is the whole update rule, written once as a template on a
// vector type:
//
//   struct Momentum {
//     static constexpr int kState = 1;         // state tensors per parameter, at most kMaxStepState
//     double lr, m;                            // hyper-parameters; StepTensor::hyper points to an instance
//     template <class V> void operator()(V& p, const V& g, V* state) const {
//       state[0] = m * state[0] + g;
//       p -= lr * state[0];
//     }
//   };
//   static constexpr StepKernel kernel = make_step_kernel<Momentum>("Momentum");
//
// V holds one register of floats or doubles. Its instruction set is chosen at run time (weft::cpu_isa()) and
// does not depend on the caller's compiler flags. Each set has a vector class, whose operators are compiled
// for that set. The loop over a tensor is too, and it inlines the functor (attribute flatten; from -O1 on).
//
// V has + - * / with V, double or int on either side, unary -, and += -= *= /=. The comparisons < <= > >= ==
// give a mask V::Mask, and & | ~ combine masks. The functions are sqrt(x), abs(x), max(a, b), min(a, b) and
// select(mask, a, b). Doubles are rounded to the element type once. A rule that needs another function of a
// scalar computes it in advance, as a member. A member of type Hyper (step_functor.h) in place of double is
// rounded on the host, which saves a CUDA kernel the conversion. There is no lane index and no sum over
// lanes. Each element is updated independently, so results do not depend on the partition of the work.
//
// For CUDA devices, mark the call operator WEFT_HD and name the rule in a .cu file: cuda/step_cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <weft/kernels/backend.h>
#include <weft/kernels/cpu_settings.h>
#include <weft/kernels/step.h>
#include <weft/kernels/step_functor.h>

namespace weft {

namespace step_cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Square roots, by reference: passing vectors by value would depend on the calling convention.
#define WEFT_STEP_AVX2 __attribute__((target("avx2,fma"))) inline
#define WEFT_STEP_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) inline
using F4 = float __attribute__((vector_size(16)));
using D2 = double __attribute__((vector_size(16)));
using F8 = float __attribute__((vector_size(32)));
using D4 = double __attribute__((vector_size(32)));
using F16 = float __attribute__((vector_size(64)));
using D8 = double __attribute__((vector_size(64)));
template <class R> inline void lane_sqrt(R& x) {
  for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i)
    x[i] = sizeof x[0] == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
}
#if defined(__x86_64__) && !defined(__clang__)
inline void vector_sqrt(F4& x) { x = __builtin_ia32_sqrtps(x); }
inline void vector_sqrt(D2& x) { x = __builtin_ia32_sqrtpd(x); }
WEFT_STEP_AVX2 void vector_sqrt(F8& x) { x = __builtin_ia32_sqrtps256(x); }
WEFT_STEP_AVX2 void vector_sqrt(D4& x) { x = __builtin_ia32_sqrtpd256(x); }
// 4: the current rounding mode
WEFT_STEP_AVX512 void vector_sqrt(F16& x) { x = __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
WEFT_STEP_AVX512 void vector_sqrt(D8& x) { x = __builtin_ia32_sqrtpd512_mask(x, x, -1, 4); }
#else
template <class R> inline void vector_sqrt(R& x) { lane_sqrt(x); }
#endif

/// A register of T for one instruction set. Copies are written out, so that no calling convention for vectors
/// is involved.
template <class T, Isa kIsa> class Lanes;

#define WEFT_STEP_VECTOR(T, IsaName, Bytes, Target)                                                        \
  template <> class Lanes<T, Isa::IsaName> {                                                               \
    using Raw = T __attribute__((vector_size(Bytes)));                                                     \
    using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t> __attribute__((vector_size(Bytes))); \
                                                                                                           \
   public:                                                                                                 \
    static constexpr int kCount = Bytes / static_cast<int>(sizeof(T));                                     \
    class Mask {                                                                                           \
     public:                                                                                               \
      Target explicit Mask(const Bits& b) : bits(b) {}                                                     \
      Target Mask(const Mask& o) : bits(o.bits) {}                                                         \
      Target Mask& operator=(const Mask& o) {                                                              \
        bits = o.bits;                                                                                     \
        return *this;                                                                                      \
      }                                                                                                    \
      Target friend Mask operator&(const Mask& a, const Mask& b) { return Mask(a.bits & b.bits); }         \
      Target friend Mask operator|(const Mask& a, const Mask& b) { return Mask(a.bits | b.bits); }         \
      Target friend Mask operator~(const Mask& a) { return Mask(~a.bits); }                                \
      Bits bits;                                                                                           \
    };                                                                                                     \
    Target Lanes() : v{} {}                                                                                \
    template <class S>                                                                                     \
    requires std::is_arithmetic_v<S> Target Lanes(S x) : v(static_cast<T>(x) - Raw{}) {}                   \
    Target Lanes(const Hyper& x) : v(x.as<T>() - Raw{}) {}                                                 \
    Target explicit Lanes(const Raw& r) : v(r) {}                                                          \
    Target Lanes(const Lanes& o) : v(o.v) {}                                                               \
    Target Lanes& operator=(const Lanes& o) {                                                              \
      v = o.v;                                                                                             \
      return *this;                                                                                        \
    }                                                                                                      \
    Target void load(const T* p) { __builtin_memcpy(&v, p, sizeof v); }                                    \
    Target void store(T* p) const { __builtin_memcpy(p, &v, sizeof v); }                                   \
    Target friend Lanes operator+(const Lanes& a, const Lanes& b) { return Lanes(a.v + b.v); }             \
    Target friend Lanes operator-(const Lanes& a, const Lanes& b) { return Lanes(a.v - b.v); }             \
    Target friend Lanes operator*(const Lanes& a, const Lanes& b) { return Lanes(a.v * b.v); }             \
    Target friend Lanes operator/(const Lanes& a, const Lanes& b) { return Lanes(a.v / b.v); }             \
    Target Lanes operator-() const { return Lanes(-v); }                                                   \
    Target Lanes& operator+=(const Lanes& o) {                                                             \
      v = v + o.v;                                                                                         \
      return *this;                                                                                        \
    }                                                                                                      \
    Target Lanes& operator-=(const Lanes& o) {                                                             \
      v = v - o.v;                                                                                         \
      return *this;                                                                                        \
    }                                                                                                      \
    Target Lanes& operator*=(const Lanes& o) {                                                             \
      v = v * o.v;                                                                                         \
      return *this;                                                                                        \
    }                                                                                                      \
    Target Lanes& operator/=(const Lanes& o) {                                                             \
      v = v / o.v;                                                                                         \
      return *this;                                                                                        \
    }                                                                                                      \
    Target friend Mask operator<(const Lanes& a, const Lanes& b) { return Mask(a.v < b.v); }               \
    Target friend Mask operator<=(const Lanes& a, const Lanes& b) { return Mask(a.v <= b.v); }             \
    Target friend Mask operator>(const Lanes& a, const Lanes& b) { return Mask(a.v > b.v); }               \
    Target friend Mask operator>=(const Lanes& a, const Lanes& b) { return Mask(a.v >= b.v); }             \
    Target friend Mask operator==(const Lanes& a, const Lanes& b) { return Mask(a.v == b.v); }             \
    Target friend Lanes select(const Mask& m, const Lanes& a, const Lanes& b) {                            \
      return Lanes(m.bits ? a.v : b.v);                                                                    \
    }                                                                                                      \
    Target friend Lanes max(const Lanes& a, const Lanes& b) { return Lanes(a.v > b.v ? a.v : b.v); }       \
    Target friend Lanes min(const Lanes& a, const Lanes& b) { return Lanes(a.v < b.v ? a.v : b.v); }       \
    Target friend Lanes abs(const Lanes& a) { return Lanes(a.v > 0 ? a.v : T(0) - a.v); }                  \
    Target friend Lanes sqrt(const Lanes& a) {                                                             \
      Lanes r(a);                                                                                          \
      vector_sqrt(r.v);                                                                                    \
      return r;                                                                                            \
    }                                                                                                      \
                                                                                                           \
   private:                                                                                                \
    Raw v;                                                                                                 \
  };

WEFT_STEP_VECTOR(float, kBaseline, 16, inline)
WEFT_STEP_VECTOR(double, kBaseline, 16, inline)
#if defined(__x86_64__)
WEFT_STEP_VECTOR(float, kAvx2, 32, WEFT_STEP_AVX2)
WEFT_STEP_VECTOR(double, kAvx2, 32, WEFT_STEP_AVX2)
WEFT_STEP_VECTOR(float, kAvx512, 64, WEFT_STEP_AVX512)
WEFT_STEP_VECTOR(double, kAvx512, 64, WEFT_STEP_AVX512)
#endif
#undef WEFT_STEP_VECTOR

/// The least length, in elements, of a quarter of a range whose quarters are stepped side by side.
inline constexpr int64_t kLeastPlace = 1024;

/// Whether quarters are stepped side by side. Intel's cores fetch from several places of memory at once
/// faster than from one, AMD's slower. The bits of the result do not depend on it.
inline bool side_by_side() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

/// The functor over elements [begin, end): whole registers, then the rest. The rest is the end of a whole
/// register that is read before the loop writes a part of it. Both writes give that part the same bits. Fewer
/// elements than a register has go through a padded copy.
#define WEFT_STEP_LOOP(IsaName, Target)                                                                 \
  template <class F, class T>                                                                           \
  Target __attribute__((flatten)) void run_##IsaName(const StepTensor& t, int64_t begin, int64_t end) { \
    using Vec = Lanes<T, Isa::IsaName>;                                                                 \
    constexpr int kStates = F::kState > 0 ? F::kState : 1;                                              \
    const F f = *static_cast<const F*>(t.hyper);                                                        \
    const T* param = static_cast<const T*>(t.param);                                                    \
    const T* grad = static_cast<const T*>(t.grad);                                                      \
    T* out = static_cast<T*>(t.out ? t.out : t.param);                                                  \
    T* state[kStates];                                                                                  \
    for (int k = 0; k < F::kState; ++k) state[k] = static_cast<T*>(t.state[k]);                         \
    const bool scaled = t.factor != nullptr;                                                            \
    const Vec factor(scaled ? *t.factor : 1.0);                                                         \
    Vec p, g, s[kStates], last_p, last_g, last_s[kStates];                                              \
    const int64_t last = end - Vec::kCount;                                                             \
    if (last >= begin) {                                                                                \
      last_p.load(param + last), last_g.load(grad + last);                                              \
      for (int k = 0; k < F::kState; ++k) last_s[k].load(state[k] + last);                              \
    }                                                                                                   \
    const auto step = [&](int64_t at) {                                                                 \
      p.load(param + at);                                                                               \
      g.load(grad + at);                                                                                \
      for (int k = 0; k < F::kState; ++k) s[k].load(state[k] + at);                                     \
      if (scaled) g *= factor;                                                                          \
      f(p, g, s);                                                                                       \
      p.store(out + at);                                                                                \
      for (int k = 0; k < F::kState; ++k) s[k].store(state[k] + at);                                    \
    };                                                                                                  \
    int64_t i = begin;                                                                                  \
    const int64_t place = (end - begin) / (4 * Vec::kCount) * Vec::kCount;                              \
    if (place >= kLeastPlace && side_by_side()) {                                                       \
      for (; i < begin + place; i += Vec::kCount)                                                       \
        step(i), step(i + place), step(i + 2 * place), step(i + 3 * place);                             \
      i += 3 * place;                                                                                   \
    }                                                                                                   \
    for (; i <= last; i += Vec::kCount) step(i);                                                        \
    if (i == end) return;                                                                               \
    const size_t rest = static_cast<size_t>(end - i) * sizeof(T);                                       \
    T buffer[Vec::kCount] = {};                                                                         \
    const auto load_rest = [&](Vec& v, const T* from) {                                                 \
      __builtin_memcpy(buffer, from, rest), v.load(buffer);                                             \
    };                                                                                                  \
    const auto store_rest = [&](const Vec& v, T* to) {                                                  \
      v.store(buffer), __builtin_memcpy(to, buffer, rest);                                              \
    };                                                                                                  \
    if (last >= begin) {                                                                                \
      p = last_p, g = last_g;                                                                           \
      for (int k = 0; k < F::kState; ++k) s[k] = last_s[k];                                             \
    } else {                                                                                            \
      load_rest(p, param + i), load_rest(g, grad + i);                                                  \
      for (int k = 0; k < F::kState; ++k) load_rest(s[k], state[k] + i);                                \
    }                                                                                                   \
    if (scaled) g *= factor;                                                                            \
    f(p, g, s);                                                                                         \
    if (last >= begin) {                                                                                \
      p.store(out + last);                                                                              \
      for (int k = 0; k < F::kState; ++k) s[k].store(state[k] + last);                                  \
    } else {                                                                                            \
      store_rest(p, out + i);                                                                           \
      for (int k = 0; k < F::kState; ++k) store_rest(s[k], state[k] + i);                               \
    }                                                                                                   \
  }

WEFT_STEP_LOOP(kBaseline, inline)
#if defined(__x86_64__)
WEFT_STEP_LOOP(kAvx2, WEFT_STEP_AVX2)
WEFT_STEP_LOOP(kAvx512, WEFT_STEP_AVX512)
#endif
#undef WEFT_STEP_LOOP

template <class F, class T> void run(const StepTensor& t, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  const char* isa = cpu_isa();  // "baseline", "avx2", "avx512"
  if (isa[0] == 'a') return isa[3] == '2' ? run_kAvx2<F, T>(t, begin, end) : run_kAvx512<F, T>(t, begin, end);
#endif
  run_kBaseline<F, T>(t, begin, end);
}

}  // namespace step_cpu

/// The kernel of a functor (see the head of this file). WEFT_STEP_CUDA registers its CUDA form.
template <class F> constexpr StepKernel make_step_kernel(const char* name) {
  static_assert(F::kState >= 0 && F::kState <= kMaxStepState,
                "a step keeps at most kMaxStepState state tensors");
  static_assert(std::is_trivially_copyable_v<F>, "a step functor is plain data");
  return {name, &step_cpu::run<F, float>, &step_cpu::run<F, double>, nullptr, F::kState};
}

}  // namespace weft
