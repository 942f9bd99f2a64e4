// Rows of a matrix x [R, K] as contiguous float or double, for any strides and dtype. A row that is
// contiguous and of the type is used in place, others are converted into a buffer. Also the loops over one
// row that softmax, cross entropy and layer norm share.
#pragma once

#include <type_traits>

#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/cpu/isa/vmath.h>
#include <weft/kernels/view.h>

namespace weft::kernels::WEFT_ISA_NS {

/// The compute type of a row of T.
template <class T> using RowType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f for the floating dtype.
template <class F> void dispatch_floating(DType t, const F& f) {
  switch (t) {
    case DType::kFloat64: return f(TypeTag<double>{});
    case DType::kFloat16: return f(TypeTag<Half>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    default: return f(TypeTag<float>{});
  }
}

/// Reads rows; `buffer` holds K numbers and is used only when conversion is needed.
template <class T> class RowReader {
 public:
  using C = RowType<T>;
  RowReader(const View& x, C* buffer)
      : data_(x.as<T>()), row_(x.stride(0)), col_(x.stride(1)), count_(x.size(1)), buffer_(buffer) {}
  const C* operator()(int64_t r) const {
    const T* from = data_ + r * row_;
    if constexpr (std::is_same_v<T, C>)
      if (col_ == 1 || count_ == 1) return from;
    for (int64_t k = 0; k < count_; ++k) buffer_[k] = static_cast<C>(from[k * col_]);
    return buffer_;
  }

 private:
  const T* data_;
  int64_t row_, col_, count_;
  C* buffer_;
};

/// Provides memory to write row r to; commit(r) converts it into the view if the memory is the buffer.
template <class T> class RowWriter {
 public:
  using C = RowType<T>;
  RowWriter(const View& y, C* buffer)
      : data_(y.as<T>()), row_(y.stride(0)), col_(y.stride(1)), count_(y.size(1)), buffer_(buffer) {}
  C* operator()(int64_t r) const {
    if constexpr (std::is_same_v<T, C>)
      if (in_place()) return data_ + r * row_;
    return buffer_;
  }
  void commit(int64_t r) const {
    if constexpr (std::is_same_v<T, C>)
      if (in_place()) return;
    for (int64_t k = 0; k < count_; ++k) data_[r * row_ + k * col_] = static_cast<T>(buffer_[k]);
  }

 private:
  bool in_place() const { return col_ == 1 || count_ == 1; }
  T* data_;
  int64_t row_, col_, count_;
  C* buffer_;
};

/// Element i of a vector view [R] of any floating dtype, as double.
inline double get_number(const View& v, int64_t i) {
  const int64_t at = i * v.stride(0);
  switch (v.dtype) {
    case DType::kFloat64: return v.as<double>()[at];
    case DType::kFloat16: return v.as<Half>()[at];
    case DType::kBFloat16: return v.as<BFloat16>()[at];
    default: return v.as<float>()[at];
  }
}
inline void set_number(const View& v, int64_t i, double value) {
  const int64_t at = i * v.stride(0);
  switch (v.dtype) {
    case DType::kFloat64: v.as<double>()[at] = value; break;
    case DType::kFloat16: v.as<Half>()[at] = Half(static_cast<float>(value)); break;
    case DType::kBFloat16: v.as<BFloat16>()[at] = BFloat16(static_cast<float>(value)); break;
    default: v.as<float>()[at] = static_cast<float>(value);
  }
}

/// Runs f(begin, end) over parts of the rows, each of about 16 thousand numbers. f allocates the buffers of a
/// part.
template <class F> void each_rows(int64_t rows, int64_t columns, const F& f) {
  const Parts parts(rows, columns >= 16384 ? 1 : 16384 / (columns + 1) + 1);
  if (parts.count == 1) return f(0, rows);
  each_task(parts.count, [&](int64_t i) { f(parts.begin(i), parts.begin(i + 1)); });
}

/// y[k] = op(x[k]...) over a row. op gets vectors; the last one is padded.
template <class T, class Op, class... In>
WEFT_INLINE void map_row(int64_t count, T* y, Op op, const In*... x) {
  int64_t k = 0;
  for (; k + kLanes<T> <= count; k += kLanes<T>) store(y + k, op(load(x + k)...));
  if (k < count) store_part(y + k, count - k, op(load_part(x + k, count - k)...));
}

/// sum over k of op(x[k]...), in four vectors of partial sums; lanes past the end count as zero.
template <class T, class Op, class... In> WEFT_INLINE T sum_row(int64_t count, Op op, const In*... x) {
  Vec<T> sum[4] = {};
  int64_t k = 0;
  for (; k + 4 * kLanes<T> <= count; k += 4 * kLanes<T>)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) sum[u] += op(load(x + k + u * kLanes<T>)...);
  for (; k + kLanes<T> <= count; k += kLanes<T>) sum[0] += op(load(x + k)...);
  if (k < count) {
    T rest[kLanes<T>] = {};
    store_part(rest, count - k, op(load_part(x + k, count - k)...));
    sum[1] += load(rest);
  }
  return sum_lanes<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// The largest number of the row, -infinity for an empty one; NaN is passed over.
template <class T> WEFT_INLINE T max_row(int64_t count, const T* x) {
  const T lowest = -__builtin_inf();
  Vec<T> best[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
  int64_t k = 0;
  for (; k + 4 * kLanes<T> <= count; k += 4 * kLanes<T>)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) best[u] = vmax(load(x + k + u * kLanes<T>), best[u]);
  for (; k + kLanes<T> <= count; k += kLanes<T>) best[0] = vmax(load(x + k), best[0]);
  if (k < count) best[1] = vmax(load_part(x + k, count - k, lowest), best[1]);
  const Vec<T> all = vmax(vmax(best[0], best[1]), vmax(best[2], best[3]));
  T result = lowest;
  for (int i = 0; i < kLanes<T>; ++i) result = all[i] > result ? all[i] : result;
  return result;
}

/// y[k] = exp(x[k] - top) for a top that no x exceeds; returns their sum. y may be x. The caches get `count`
/// numbers at `next` meanwhile, if it is not null.
template <class T> WEFT_INLINE T exp_row(int64_t count, const T* x, T top, T* y, const T* next = nullptr) {
  Vec<T> sum[2] = {};
  int64_t k = 0;
  for (; k + 2 * kLanes<T> <= count; k += 2 * kLanes<T>)
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      if (next) __builtin_prefetch(next + k + u * kLanes<T>);
      const Vec<T> e = vexp_below<T>(load(x + k + u * kLanes<T>) - top);
      store(y + k + u * kLanes<T>, e);
      sum[u] += e;
    }
  T total = sum_lanes<T>(sum[0] + sum[1]);
  for (; k < count; k += kLanes<T>) {
    const int64_t here = count - k < kLanes<T> ? count - k : kLanes<T>;
    const Vec<T> e = vexp_below<T>(load_part(x + k, here, top) - top);
    store_part(y + k, here, e);
    for (int64_t i = 0; i < here; ++i) total += e[i];
  }
  return total;
}

/// log(sum exp(x)) of a row in two parts, its maximum and log(sum exp(x - maximum)). Subtracting the maximum
/// first is exact; subtracting the sum of both is not if x is large.
template <class T> struct LogSum { T top, log; };

/// One pass over memory (online softmax). Blocks that fit the first-level cache are read twice, for their
/// maximum and for the sum. The running sum is rescaled if a block has a larger maximum.
template <class T> WEFT_INLINE LogSum<T> log_sum_row(int64_t count, const T* x) {
  constexpr int64_t kBlock = 2048;
  T top = -__builtin_inf(), sum = 0;
  for (int64_t k = 0; k < count; k += kBlock) {
    const int64_t here = count - k < kBlock ? count - k : kBlock;
    const T block_top = max_row(here, x + k);
    if (block_top > top) {
      sum *= static_cast<T>(__builtin_exp(static_cast<double>(top - block_top)));
      top = block_top;
    }
    const T shift = top == -__builtin_inf() ? T(0) : top;
    if (top == static_cast<T>(__builtin_inf())) break;
    sum += sum_row<T>(
        here, [shift](Vec<T> v) __attribute__((always_inline)) { return vexp_below<T>(v - shift); }, x + k);
  }
  if (top == static_cast<T>(__builtin_inf())) {  // a NaN counts for more
    for (int64_t k = 0; k < count; ++k)
      if (x[k] != x[k]) return {top, x[k]};
    return {top, 0};
  }
  return {top, static_cast<T>(__builtin_log(static_cast<double>(sum)))};
}

/// The same for the divisor of softmax: the logarithm is NaN in a row with an infinity, whose softmax is NaN.
template <class T> WEFT_INLINE LogSum<T> softmax_log_sum(int64_t count, const T* x) {
  const LogSum<T> sum = log_sum_row(count, x);
  return {sum.top, sum.top == static_cast<T>(__builtin_inf()) ? static_cast<T>(__builtin_nan("")) : sum.log};
}

}  // namespace weft::kernels::WEFT_ISA_NS
