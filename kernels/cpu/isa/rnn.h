// Shared parts of forward and backward of a recurrent layer: views as dense matrices, packed recurrent
// weights, partition of a sequence into tasks.
//
// The reserve has a row of reserve_width * H numbers per (t, n), in blocks of H:
//   LSTM  i f g o c tanh(c)     (gates after their activation; c after the step)
//   GRU   r z n q               (q = W_hn h + b_hn, before r multiplies it)
//   tanh, relu  h
//
// There are two partitions. The first needs several threads, and packed recurrent weights that fit the
// second-level cache. There each task runs some rows of the batch through the whole sequence, independently
// of other tasks. Otherwise the tasks of each step share the columns of H. All rows use a panel of W_hh while
// it is in the first-level cache. The sum of an element does not depend on the partition, so both give the
// same bits.
#pragma once

#include <weft/kernels/backend.h>
#include <weft/kernels/cpu/isa/gemm.h>
#include <weft/kernels/cpu/isa/rows.h>
#include <weft/kernels/cpu_settings.h>

namespace weft::kernels::WEFT_ISA_NS {

/// A view [T, N, C] or [N, C] as numbers of type T with contiguous rows. Element (t, n, c) is data[t * step +
/// n * row + c]. If the view has another layout or dtype, `kIn` copies it; `kOut` provides a buffer, and
/// finish() copies that to the view.
enum class Flow { kIn, kOut };

template <class T> class Dense {
 public:
  Dense() = default;
  Dense(const View& v, Flow flow) {
    if (!v.defined()) return;
    const int r = v.ndim();
    steps_ = r == 3 ? v.size(0) : 1, rows_ = r >= 2 ? v.size(r - 2) : 1, columns_ = v.size(r - 1);
    if (v.dtype == dtype_of<T> && (v.stride(r - 1) == 1 || columns_ == 1)) {
      data_ = v.as<T>();
      step = r == 3 ? v.stride(0) : 0, row = r >= 2 ? v.stride(r - 2) : 0;
      if (rows_ == 1) row = steps_ > 1 ? step : columns_;
      return;
    }
    buffer_.resize(steps_ * rows_ * columns_);
    data_ = buffer_.get();
    row = columns_, step = rows_ * columns_;
    if (flow == Flow::kIn) convert(v, true);
    else target_ = &v;
  }
  /// Whether row (t, n) is row t * rows + n of one matrix.
  bool flat() const { return steps_ <= 1 || step == rows_ * row; }
  /// Makes it flat, by a copy if needed; for inputs only.
  void flatten() {
    if (!data_ || flat()) return;
    Scratch<T> flat(steps_ * rows_ * columns_);
    for (int64_t t = 0; t < steps_; ++t)
      for (int64_t n = 0; n < rows_; ++n)
        __builtin_memcpy(flat.get() + (t * rows_ + n) * columns_, data_ + t * step + n * row,
                         columns_ * sizeof(T));
    buffer_.swap(flat);
    data_ = buffer_.get();
    row = columns_, step = rows_ * columns_;
  }
  void finish() const {
    if (target_) convert(*target_, false);
  }
  bool defined() const { return data_ != nullptr; }
  T* at(int64_t t, int64_t n) const { return data_ + t * step + n * row; }
  T* data() const { return data_; }
  Operand<T> matrix() const { return {data_, row, 1}; }

  int64_t step = 0, row = 0;

 private:
  void convert(const View& v, bool in) const {
    dispatch_floating(v.dtype, [&](auto tag) {
      using U = typename decltype(tag)::type;
      const int r = v.ndim();
      for (int64_t t = 0; t < steps_; ++t)
        for (int64_t n = 0; n < rows_; ++n) {
          U* there = v.as<U>() + (r == 3 ? t * v.stride(0) : 0) + (r >= 2 ? n * v.stride(r - 2) : 0);
          T* here = at(t, n);
          for (int64_t c = 0; c < columns_; ++c) {
            U& outside = there[c * v.stride(r - 1)];
            if (in) here[c] = static_cast<T>(outside);
            else outside = static_cast<U>(here[c]);
          }
        }
    });
  }

  T* data_ = nullptr;
  int64_t steps_ = 1, rows_ = 1, columns_ = 0;
  Scratch<T> buffer_;
  const View* target_ = nullptr;
};

/// The partition of a layer of N rows, G gates and H columns.
struct RnnPartition {
  bool by_rows;
  Parts rows;    ///< of the batch
  Parts panels;  ///< of H, in panels
  int64_t panel, hidden;

  /// `least`: panels that each part has at least.
  RnnPartition(int64_t batch, int64_t gates, int64_t h, int64_t panel_width, int64_t element_size,
               int64_t least)
      : by_rows(num_threads() > 1 && gates * h * h * element_size <= (int64_t{3} << 18)),
        rows(batch, kStripRows),
        panels(0, 1),
        panel(panel_width),
        hidden(h) {
    const int64_t count = (h + panel - 1) / panel;
    int64_t tasks = batch * gates * h * h >> 19;
    if (tasks > count / least) tasks = count / least;
    if (tasks > 16) tasks = 16;
    if (tasks < 1) tasks = 1;
    if (rows.count < 2 && tasks > 1) by_rows = false;
    if (by_rows || count == 0) tasks = 1;
    else rows = Parts(batch, batch);
    panels = Parts(count, count == 0 ? 1 : (count + tasks - 1) / tasks);
  }
  int64_t first(int64_t part) const { return panels.begin(part) * panel; }
  int64_t last(int64_t part) const {
    return part + 1 == panels.count ? hidden : panels.begin(part + 1) * panel;
  }
};

/// Runs a fused kernel over elements [begin, end) of several rows. It calls f(get, put) once per vector;
/// get(p) reads the vector of row p, and put(p, v) writes it. The last vector may be partial.
template <class T, class F> WEFT_INLINE void each_vector(int64_t begin, int64_t end, const F& f) {
  int64_t k = begin;
  for (; k + kLanes<T> <= end; k += kLanes<T>)
    f(
        [k](const T* p) __attribute__((always_inline)) { return load(p + k); },
        [k](T * p, Vec<T> v) __attribute__((always_inline)) { store(p + k, v); });
  if (k < end)
    f(
        [ k, end ](const T* p) __attribute__((always_inline)) { return load_part(p + k, end - k); },
        [ k, end ](T * p, Vec<T> v) __attribute__((always_inline)) { store_part(p + k, end - k, v); });
}

/// Copies rows of one step; null `from` gives zeros.
template <class T>
void copy_rows(T* to, int64_t to_row, const T* from, int64_t from_row, int64_t rows, int64_t columns) {
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < columns; ++k) to[n * to_row + k] = from ? from[n * from_row + k] : T(0);
}

}  // namespace weft::kernels::WEFT_ISA_NS
