// Fused optimizer steps on CUDA devices. To run a rule (kernels/step_cpu.h) there, mark its call operator
// WEFT_HD and put these lines into one .cu file of the program:
//
//   #include <weft/kernels/cuda/step_cuda.h>
//   #include "sign_momentum.h"
//   WEFT_STEP_CUDA(SignMomentum)
//
// They are compiled as C++20 with --expt-relaxed-constexpr, which the target weft::cuda adds. They compile
// the rule for the device and register it under its kernel's name: SignMomentum::kName, or the name of the
// struct without one. Of a rule with several functors they register each one under its kKernelName. On the
// device V is a single float or double with the same operators and functions. A thread loads and stores packs
// of 16 bytes, and of 8 where a parameter with a float32 master is of a half type. One launch serves all
// tensors of a step. A block processes one chunk of one tensor, and reads chunk, tensor and functor from a
// table. The file needs nothing of weft::cuda at link time.
#pragma once

#include <cmath>
#include <type_traits>

#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/dtype.h>
#include <weft/kernels/half.h>
#include <weft/kernels/math.h>
#include <weft/kernels/step.h>
#include <weft/kernels/step_functor.h>

namespace weft::step_cuda {

/// One tensor of a step, for the device.
struct Row {
  const void* param;
  void* out;
  const void* grad;
  void* master;  ///< null, or the float32 master of a half type
  void* state[kMaxStepState];
  int64_t numel;
  int64_t hyper;  ///< byte offset of its functor
  int64_t packs;  ///< not 0: all its memory is aligned to packs
};
/// Elements [number * length, ...) of a tensor.
struct Chunk {
  int32_t tensor, number;
};
}  // namespace weft::step_cuda

namespace weft {
/// A step's table in device memory, one block per chunk; `length` is a multiple of 16.
struct StepTable {
  const step_cuda::Row* rows = nullptr;
  const step_cuda::Chunk* chunks = nullptr;
  const unsigned char* functors = nullptr;
  const double* skip = nullptr;    ///< null, or a number: if it is not 0, the step changes nothing
  const double* factor = nullptr;  ///< null, or a number by which the gradients are multiplied
  int64_t chunk_count = 0, length = 0;
};
}  // namespace weft

namespace weft::step_cuda {

/// A comparison's result.
class Flag {
 public:
  WEFT_HD explicit Flag(bool v) : v_(v) {}
  WEFT_HD bool value() const { return v_; }
  WEFT_HD friend Flag operator&(Flag a, Flag b) { return Flag(a.v_ && b.v_); }
  WEFT_HD friend Flag operator|(Flag a, Flag b) { return Flag(a.v_ || b.v_); }
  WEFT_HD friend Flag operator~(Flag a) { return Flag(!a.v_); }

 private:
  bool v_;
};

/// The V of a rule on the device: one number.
template <class T> class Number {
 public:
  using Mask = Flag;
  WEFT_HD Number() : v_(0) {}
  template <class S>
  requires std::is_arithmetic_v<S> WEFT_HD Number(S x) : v_(static_cast<T>(x)) {}
  WEFT_HD Number(const Hyper& x) : v_(x.as<T>()) {}
  WEFT_HD T value() const { return v_; }
  WEFT_HD friend Number operator+(Number a, Number b) { return Number(a.v_ + b.v_); }
  WEFT_HD friend Number operator-(Number a, Number b) { return Number(a.v_ - b.v_); }
  WEFT_HD friend Number operator*(Number a, Number b) { return Number(a.v_ * b.v_); }
  WEFT_HD friend Number operator/(Number a, Number b) { return Number(a.v_ / b.v_); }
  WEFT_HD Number operator-() const { return Number(-v_); }
  WEFT_HD Number& operator+=(Number o) { return *this = *this + o; }
  WEFT_HD Number& operator-=(Number o) { return *this = *this - o; }
  WEFT_HD Number& operator*=(Number o) { return *this = *this * o; }
  WEFT_HD Number& operator/=(Number o) { return *this = *this / o; }
  WEFT_HD friend Mask operator<(Number a, Number b) { return Mask(a.v_ < b.v_); }
  WEFT_HD friend Mask operator<=(Number a, Number b) { return Mask(a.v_ <= b.v_); }
  WEFT_HD friend Mask operator>(Number a, Number b) { return Mask(a.v_ > b.v_); }
  WEFT_HD friend Mask operator>=(Number a, Number b) { return Mask(a.v_ >= b.v_); }
  WEFT_HD friend Mask operator==(Number a, Number b) { return Mask(a.v_ == b.v_); }
  WEFT_HD friend Number select(Mask m, Number a, Number b) { return m.value() ? a : b; }
  WEFT_HD friend Number max(Number a, Number b) { return a.v_ > b.v_ ? a : b; }
  WEFT_HD friend Number min(Number a, Number b) { return a.v_ < b.v_ ? a : b; }
  WEFT_HD friend Number abs(Number a) { return Number(a.v_ > 0 ? a.v_ : T(0) - a.v_); }
  WEFT_HD friend Number sqrt(Number a) { return Number(std::sqrt(a.v_)); }

 private:
  T v_;
};

/// The kernel of a step; one chunk per block. kMaster: parameters and gradients are of a half type, here as
/// their bits, and the rule updates float32 masters.
template <class F, class T, bool kMaster = false> struct Step {
  using Stored = std::conditional_t<kMaster, uint16_t, T>;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256;
  static constexpr int kStates = F::kState > 0 ? F::kState : 1, kPack = 16 / static_cast<int>(sizeof(T));
  StepTable table;
  bool bfloat = false;  ///< the half type is bfloat16

  WEFT_DEVICE void operator()(cuda::Thread t) const {
    const Chunk chunk = table.chunks[t.block()];
    const Row row = table.rows[chunk.tensor];
    const F f = *reinterpret_cast<const F*>(table.functors + row.hyper);
    const int64_t begin = chunk.number * table.length,
                  end = begin + table.length < row.numel ? begin + table.length : row.numel;
    if (table.skip && *table.skip != 0) {
      if (row.out != row.param)
        for (int64_t i = begin + t.id(); i < end; i += t.count())
          static_cast<Stored*>(row.out)[i] = static_cast<const Stored*>(row.param)[i];
      return;
    }
    const T factor = table.factor ? static_cast<T>(*table.factor) : T(1);
    int64_t rest = begin;
    if (row.packs) {
      rest = begin + (end - begin) / kPack * kPack;
      for (int64_t i = begin + static_cast<int64_t>(t.id()) * kPack; i < rest;
           i += static_cast<int64_t>(t.count()) * kPack)
        update<kPack>(f, row, i, factor);
    }
    for (int64_t i = rest + t.id(); i < end; i += t.count()) update<1>(f, row, i, factor);
  }
  template <int N> WEFT_DEVICE void update(const F& f, const Row& row, int64_t i, T factor) const {
    using cuda::Pack;
    const Pack<Stored, N> stored = cuda::load_pack<Stored, N>(row.param, i);
    Pack<T, N> p, s[kStates];
    if constexpr (kMaster) p = cuda::load_pack<T, N>(row.master, i);
    else p = stored;
    const Pack<Stored, N> g = cuda::load_pack<Stored, N>(row.grad, i);
    for (int k = 0; k < F::kState; ++k) s[k] = cuda::load_pack<T, N>(row.state[k], i);
    for (int j = 0; j < N; ++j) {
      if constexpr (kMaster)
        if (rounded(p.at[j]) != stored.at[j]) p.at[j] = number(stored.at[j]);
      Number<T> value(p.at[j]), state[kStates];
      for (int k = 0; k < F::kState; ++k) state[k] = Number<T>(s[k].at[j]);
      f(value, Number<T>(number(g.at[j]) * factor), state);
      p.at[j] = value.value();
      for (int k = 0; k < F::kState; ++k) s[k].at[j] = state[k].value();
    }
    if constexpr (kMaster) {
      cuda::store_pack(row.master, i, p);
      store_rounded(row.out, i, p);
    } else {
      cuda::store_pack(row.out, i, p);
    }
    for (int k = 0; k < F::kState; ++k) cuda::store_pack(row.state[k], i, s[k]);
  }
  WEFT_DEVICE T number(Stored x) const {
    if constexpr (!kMaster) return x;
    else if (bfloat) return kernels::widen(kernels::of_bits<BFloat16>(x));
    else return kernels::widen(kernels::of_bits<Half>(x));
  }
  WEFT_DEVICE Stored rounded(T x) const {
    if constexpr (!kMaster) return x;
    else return bfloat ? kernels::narrow<BFloat16>(x).bits : kernels::narrow<Half>(x).bits;
  }
  /// In one store: the compiler would write numbers that it computed one by one separately.
  template <int N> WEFT_DEVICE void store_rounded(void* to, int64_t at, const cuda::Pack<T, N>& p) const {
    uint64_t word = 0;
    for (int j = 0; j < N; ++j) word |= static_cast<uint64_t>(rounded(p.at[j])) << (16 * j);
    if constexpr (N == 4) static_cast<uint64_t*>(to)[at / 4] = word;
    else static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>(word);
  }
};

template <class F> void run(void* stream, const char* name, DType dtype, const StepTable& table) {
  const cuda::Grid grid{.blocks = table.chunk_count};
  if (dtype == DType::kFloat64) cuda::launch(stream, name, grid, Step<F, double>{table});
  else if (is_half(dtype))
    cuda::launch(stream, name, grid, Step<F, float, true>{table, dtype == DType::kBFloat16});
  else cuda::launch(stream, name, grid, Step<F, float>{table});
}

template <class F> bool register_rule(const char* name) {
  static_assert(std::is_trivially_copyable_v<F> && alignof(F) <= 16, "a step functor is plain data");
  static_assert(F::kState >= 0 && F::kState <= kMaxStepState);
  static constexpr StepCuda form{sizeof(F), F::kState, run<F>};
  return register_step_cuda(name, &form);
}
template <class... F> bool register_each(StepFunctors<F...>) {
  static_assert((requires { F::kKernelName; } && ...),
                "each functor of a rule that has several has a kKernelName");
  return (register_rule<F>(step_kernel_name<F>()) && ...);
}
/// Registers every functor of the rule; a functor without a name gets `written`.
template <class Rule> bool register_functors(const char* written) {
  if constexpr (requires { typename Rule::Functors; }) return register_each(typename Rule::Functors());
  else return register_rule<Rule>(step_kernel_name<Rule>(written));
}

}  // namespace weft::step_cuda

#define WEFT_STEP_CUDA_JOIN2(a, b) a##b
#define WEFT_STEP_CUDA_JOIN(a, b) WEFT_STEP_CUDA_JOIN2(a, b)
#define WEFT_STEP_CUDA_REGISTERED(call) \
  [[maybe_unused]] static const bool WEFT_STEP_CUDA_JOIN(weft_step_cuda_, __COUNTER__) = call;
/// Compiles `Rule` for CUDA devices; in a .cu file, at namespace scope.
#define WEFT_STEP_CUDA(Rule) WEFT_STEP_CUDA_REGISTERED(::weft::step_cuda::register_functors<Rule>(#Rule))
/// The same under another kernel name.
#define WEFT_STEP_CUDA_AS(name, Rule) WEFT_STEP_CUDA_REGISTERED(::weft::step_cuda::register_rule<Rule>(name))
