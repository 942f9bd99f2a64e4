// The last step of a matrix product (gemm_tile.h) for one vector of sums, the same in each kernel.
#pragma once

#include <weft/kernels/cpu/isa/gemm_tile.h>
#include <weft/kernels/cpu/isa/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

/// Rounds a product here. A sum that takes it in its own instruction has other bits, and the compiler would
/// choose differently from place to place.
template <class V> WEFT_INLINE void round_here(V& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__FMA__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  if constexpr (sizeof v <= kVecBytes) {
    asm("" : "+w"(v));
  } else {  // in several registers
    VecD parts[sizeof v / kVecBytes];
    __builtin_memcpy(parts, &v, sizeof v);
    for (VecD& part : parts) asm("" : "+w"(part));
    __builtin_memcpy(&v, parts, sizeof v);
  }
#else
  static_cast<void>(v);  // there is no such instruction
#endif
}

template <class T>
WEFT_INLINE void finish_vector(T* c, Vec<T> acc, int64_t count, Finish<T> f, const T* bias) {
  const bool whole = count >= kLanes<T>;
  Vec<T> v = acc * f.alpha;
  round_here(v);
  if (f.beta != 0) v += (whole ? load(c) : load_part(c, count)) * f.beta;
  if (bias) v += whole ? load(bias) : load_part(bias, count);
  if (whole) store(c, v);
  else store_part(c, count, v);
}

template <class T> Finish<T> at_column(Finish<T> f, int64_t column) {
  if (f.bias) f.bias += column;
  return f;
}

}  // namespace weft::kernels::WEFT_ISA_NS
