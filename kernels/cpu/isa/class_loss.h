// Targets and class weights of the losses with class indices: cross_entropy.cpp and linear_cross_entropy.cpp.
#pragma once

#include <weft/kernels/cpu/isa/rows.h>
#include <weft/kernels/cpu/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

/// Throws: IndexError for a target outside [0, classes).
inline void check_targets(V target, int64_t rows, int64_t classes, int64_t ignore) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = target.as<int64_t>()[r * target.stride(0)];
    if (t != ignore && (t < 0 || t >= classes)) throw_bad_target(t, r, classes);
  }
}

/// The class weights in the row type, and their sum. Without weights: null and K.
template <class C> struct Weights {
  Scratch<C> buffer;
  const C* each = nullptr;
  double sum;

  Weights(const View& weight, int64_t classes) : sum(static_cast<double>(classes)) {
    if (!weight.defined()) return;
    buffer.resize(classes + 1);
    sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += buffer.get()[k] = static_cast<C>(get_number(weight, k));
    each = buffer.get();
  }
  double of(int64_t target) const { return each ? static_cast<double>(each[target]) : 1.0; }
};

/// sum_k w[k] (x[k] - top).
template <class C> WEFT_INLINE double weighted_sum(int64_t count, C top, const C* x, const C* w) {
  if (w)
    return sum_row<C>(
        count, [top](Vec<C> v, Vec<C> u) __attribute__((always_inline)) { return (v - top) * u; }, x, w);
  return sum_row<C>(
      count, [top](Vec<C> v) __attribute__((always_inline)) { return v - top; }, x);
}

}  // namespace weft::kernels::WEFT_ISA_NS
