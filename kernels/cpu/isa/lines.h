// Iteration over views line by line: a counter over all dims except one, with the offsets of N views, in
// elements.
#pragma once

#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/view.h>

namespace weft::kernels::WEFT_ISA_NS {

template <int N> class Lines {
 public:
  /// The dims of `sizes` but `skip` (-1: none), outermost first.
  Lines(const Shape& sizes, int skip, const Shape (&strides)[N]) {
    for (int d = 0; d < sizes.size(); ++d) {
      if (d == skip) continue;
      size_[dims_] = sizes[d];
      for (int k = 0; k < N; ++k) stride_[k][dims_] = strides[k][d];
      ++dims_;
      count_ *= sizes[d];
    }
  }
  int64_t count() const { return count_; }
  int64_t offset(int k) const { return offset_[k]; }

  void seek(int64_t line) {
    for (int k = 0; k < N; ++k) offset_[k] = 0;
    for (int d = dims_ - 1; d >= 0; --d) {
      at_[d] = line % size_[d];
      line /= size_[d];
      for (int k = 0; k < N; ++k) offset_[k] += at_[d] * stride_[k][d];
    }
  }
  void next() {
    for (int d = dims_ - 1; d >= 0; --d) {
      ++at_[d];
      for (int k = 0; k < N; ++k) offset_[k] += stride_[k][d];
      if (at_[d] < size_[d]) return;
      for (int k = 0; k < N; ++k) offset_[k] -= at_[d] * stride_[k][d];
      at_[d] = 0;
    }
  }

 private:
  int dims_ = 0;
  int64_t count_ = 1;
  int64_t size_[kMaxDims], at_[kMaxDims], stride_[N][kMaxDims], offset_[N] = {};
};

/// Calls f(lines) for every line of `sizes` without dim `skip`, in tasks of about `work` elements.
template <int N, class F>
void each_line(const Shape& sizes, int skip, const Shape (&strides)[N], const F& f, int64_t work = 1 << 15) {
  const Lines<N> all(sizes, skip, strides);
  if (all.count() == 0) return;
  const int64_t length = skip < 0 ? 1 : (sizes[skip] > 0 ? sizes[skip] : 1);
  const int64_t per_task = work / length > 0 ? work / length : 1;
  const Parts parts(all.count(), per_task);
  each_task(parts.count, [&](int64_t task) {
    Lines<N> lines = all;
    lines.seek(parts.begin(task));
    for (int64_t left = parts.size(task); left > 0; --left, lines.next()) f(lines);
  });
}

/// The dim, other than `dim`, along which the elements of a view lie side by side, if it has four or more.
/// -1: there is none.
inline int run_dim(const View& x, int dim) {
  for (int d = 0; d < x.ndim(); ++d)
    if (d != dim && x.size(d) >= 4 && x.stride(d) == 1 && x.stride(dim) > 1) return d;
  return -1;
}

inline constexpr int64_t kRunElements = 256;
/// Calls f(lines, first, count) for parts of the lines along `run`: elements [first, first + count) of the
/// line at lines.offset, at most kRunElements. `sizes` has 1 for the dims over which f loops itself. `work`:
/// elements that f visits for each element of a line.
template <int N, class F>
void each_run(const Shape& sizes, int run, const Shape (&strides)[N], int64_t work, const F& f) {
  const Lines<N> all(sizes, run, strides);
  const Parts runs(sizes[run], kRunElements);
  const int64_t cost = work * (runs.count > 0 ? runs.size(0) : 1);
  const Parts parts(all.count() * runs.count, cost < (1 << 15) ? (1 << 15) / (cost + 1) + 1 : 1);
  each_task(parts.count, [&](int64_t task) {
    Lines<N> lines = all;
    for (int64_t i = parts.begin(task); i < parts.begin(task + 1); ++i) {
      if (i == parts.begin(task) || i % runs.count == 0) lines.seek(i / runs.count);
      f(lines, runs.begin(i % runs.count), runs.size(i % runs.count));
    }
  });
}

/// Calls f with an unsigned type of t's width, for kernels that only move elements.
template <class F> void dispatch_width(DType t, const F& f) {
  switch (size_of(t)) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

}  // namespace weft::kernels::WEFT_ISA_NS
