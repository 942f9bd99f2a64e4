// Attention in blocks of query rows and keys whose products stay in the second-level cache; the matrix of all
// products is never in memory. Forward keeps the maximum and the sum of each row so far. It rescales its
// result if a block has a larger maximum (online softmax). Backward makes the products of a block again, and
// from them the softmax: exp(product - maximum) * share. Groups of key blocks sum dq apart, and the groups
// are added in order. Blocks and groups depend on sizes only.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/gemm.h>
#include <weft/kernels/cpu/isa/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

constexpr int64_t kRows = 128, kKeys = 256;  // a block of float takes 128 KB
constexpr int64_t kMostGroups = 8;           // of a call

/// The matrices of one head.
template <class T> class Head {
 public:
  Head(const AttentionViews& v, int64_t number)
      : v_(v),
        at_{number / v.q.size(1), number % v.q.size(1)},
        width_(v.q.size(3)),
        values_(v.v.size(3)),
        keys_(v.k.size(2)),
        stats_(v.stats.as<T>() + number * v.q.size(2) * 2) {}

  void forward(int64_t first, int64_t rows) const {
    const Scratch<T> scratch(rows * kKeys), tops(rows), sums(rows);
    T *const p = scratch.get(), *const top = tops.get(), *const sum = sums.get(), *const y = out(v_.y, first);
    for (int64_t i = 0; i < rows; ++i) top[i] = -__builtin_inf(), sum[i] = 0;
    const int64_t last = v_.causal && first + rows < keys_ ? first + rows : keys_;
    const Parts blocks(last, kKeys);
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t key = blocks.begin(b), count = blocks.size(b);
      products(first, rows, key, count, p);
      for (int64_t i = 0; i < rows; ++i) {
        const T here = max_row(count, p + i * count), next = here > top[i] ? here : top[i],
                shift = shift_of(next);
        const T fade = static_cast<T>(__builtin_exp(static_cast<double>(top[i] - shift)));
        sum[i] = sum[i] * fade + exp_row(count, p + i * count, shift, p + i * count);
        top[i] = next;
        if (b > 0 && fade != 1) scale(y + i * values_, fade);
      }
      gemm_here<T>(rows, values_, count, {p, count, 1}, matrix(v_.v, key), y, values_,
                   {1, b == 0 ? T(0) : T(1), nullptr});
    }
    for (int64_t i = 0; i < rows; ++i) {
      const T share = sum[i] == 0 ? T(0) : 1 / sum[i];  // 0: no key takes part
      scale(y + i * values_, share);
      T* const kept = stats_ + (first + i) * 2;
      kept[0] = shift_of(top[i]), kept[1] = share;
    }
  }

  /// The gradients of the keys and values of blocks [begin, end), and their part of dq, zeros at first.
  /// along[i]: the sum of dy * y of row i.
  void backward(const Parts& blocks, int64_t begin, int64_t end, const T* along, T* dq) const {
    const int64_t length = v_.q.size(2);
    const Parts parts(length, kRows);
    const Scratch<T> scratch(kRows * kKeys), gradients(kRows * kKeys);
    T *const p = scratch.get(), *const ds = gradients.get();
    for (int64_t b = begin; b < end; ++b) {
      const int64_t key = blocks.begin(b), count = blocks.size(b);
      T* const dk = v_.dk.defined() ? out(v_.dk, key) : nullptr;
      T* const dv = v_.dv.defined() ? out(v_.dv, key) : nullptr;
      T before = 0;  // dk and dv hold sums of earlier rows
      for (int64_t part = 0; part < parts.count; ++part) {
        const int64_t first = parts.begin(part), rows = parts.size(part);
        if (v_.causal && first + rows <= key) continue;
        products(first, rows, key, count, p);
        for (int64_t i = 0; i < rows; ++i) {
          const T top = stats_[(first + i) * 2], share = stats_[(first + i) * 2 + 1];
          map_row(
              count, p + i * count,
              [=](Vec<T> s) __attribute__((always_inline)) { return vexp_below<T>(s - top) * share; },
              p + i * count);
        }
        const Operand<T> dy = matrix(v_.dy, first);
        if (dv)
          gemm_here<T>(count, values_, rows, Operand<T>{p, count, 1}.transposed(), dy, dv, values_,
                       {1, before, nullptr});
        if (dk || dq) {
          gemm_here<T>(rows, count, values_, dy, matrix(v_.v, key).transposed(), ds, count, {1, 0, nullptr});
          for (int64_t i = 0; i < rows; ++i) {
            const T mean = along[first + i], factor = static_cast<T>(v_.scale);
            map_row(
                count, ds + i * count,
                [=](Vec<T> d, Vec<T> w) __attribute__((always_inline)) { return (d - mean) * w * factor; },
                ds + i * count, p + i * count);
          }
          const Operand<T> d{ds, count, 1};
          if (dq)
            gemm_here<T>(rows, width_, count, d, matrix(v_.k, key), dq + first * width_, width_,
                         {1, 1, nullptr});
          if (dk)
            gemm_here<T>(count, width_, rows, d.transposed(), matrix(v_.q, first), dk, width_,
                         {1, before, nullptr});
        }
        before = 1;
      }
      if (before == 0) {  // no row takes part
        if (dk) __builtin_memset(dk, 0, static_cast<size_t>(count * width_) * sizeof(T));
        if (dv) __builtin_memset(dv, 0, static_cast<size_t>(count * values_) * sizeof(T));
      }
    }
  }

  /// The sum of dy * y of row i.
  T along(int64_t i) const {
    return sum_row<T>(
        values_, [](Vec<T> a, Vec<T> b) __attribute__((always_inline)) { return a * b; },
        matrix(v_.dy, i).data, out(v_.y, i));
  }

  /// Row `first` of this head in a contiguous result.
  T* out(const View& x, int64_t first) const {
    return x.as<T>() + ((at_[0] * x.size(1) + at_[1]) * x.size(2) + first) * x.size(3);
  }

 private:
  /// The shift of the exponentials of a row with this maximum.
  static T shift_of(T top) { return top == -__builtin_inf() ? T(0) : top; }
  void scale(T* row, T factor) const {
    map_row(
        values_, row, [=](Vec<T> x) __attribute__((always_inline)) { return x * factor; }, row);
  }
  /// Rows from `first`. A single row has any stride; the products want its length at least.
  Operand<T> matrix(const View& x, int64_t first) const {
    const int64_t row = x.stride(2) < x.size(3) ? x.size(3) : x.stride(2);
    return {x.as<T>() + at_[0] * x.stride(0) + at_[1] * x.stride(1) + first * row, row, 1};
  }

  /// scale q k^T + mask of a block; -infinity where a key takes no part.
  void products(int64_t first, int64_t rows, int64_t key, int64_t count, T* p) const {
    gemm_here<T>(rows, count, width_, matrix(v_.q, first), matrix(v_.k, key).transposed(), p, count,
                 {static_cast<T>(v_.scale), 0, nullptr});
    for (int64_t i = 0; i < rows; ++i, p += count) {
      if (v_.mask.defined()) {
        const View& m = v_.mask;
        const int64_t step = m.stride(3), from = at_[0] * m.stride(0) + at_[1] * m.stride(1) +
                                                 (first + i) * m.stride(2) + key * step;
        if (m.dtype == DType::kBool)
          for (int64_t j = 0; j < count; ++j) p[j] = m.as<bool>()[from + j * step] ? p[j] : -__builtin_inf();
        else
          for (int64_t j = 0; j < count; ++j) p[j] += m.as<T>()[from + j * step];
      }
      if (v_.causal)
        for (int64_t j = first + i + 1 > key ? first + i + 1 - key : 0; j < count; ++j)
          p[j] = -__builtin_inf();
    }
  }

  const AttentionViews& v_;
  const int64_t at_[2];
  const int64_t width_, values_, keys_;
  T* const stats_;
};

template <class T> void forward(const AttentionViews& v) {
  const Parts rows(v.q.size(2), kRows);
  each_task(v.q.size(0) * v.q.size(1) * rows.count, [&](int64_t task) {
    const int64_t part = task % rows.count;
    Head<T>(v, task / rows.count).forward(rows.begin(part), rows.size(part));
  });
}

template <class T> void backward(const AttentionViews& v) {
  const int64_t heads = v.q.size(0) * v.q.size(1), length = v.q.size(2), size = length * v.q.size(3);
  const Parts blocks(v.k.size(2), kKeys);
  const int64_t wanted = heads >= kMostGroups ? 1 : (kMostGroups + heads - 1) / heads;
  const Parts groups(blocks.count, (blocks.count + wanted - 1) / wanted);
  const Scratch<T> along(heads * length), apart(v.dq.defined() ? heads * (groups.count - 1) * size : 0);
  each_task(heads, [&](int64_t h) {
    const Head<T> head(v, h);
    for (int64_t i = 0; i < length; ++i) along.get()[h * length + i] = head.along(i);
  });
  each_task(heads * groups.count, [&](int64_t task) {
    const int64_t h = task / groups.count, group = task % groups.count;
    const Head<T> head(v, h);
    T* dq = nullptr;
    if (v.dq.defined()) {
      dq = group == 0 ? head.out(v.dq, 0) : apart.get() + (h * (groups.count - 1) + group - 1) * size;
      __builtin_memset(dq, 0, static_cast<size_t>(size) * sizeof(T));
    }
    head.backward(blocks, groups.begin(group), groups.begin(group + 1), along.get() + h * length, dq);
  });
  if (v.dq.defined() && groups.count > 1)
    each_task(heads, [&](int64_t h) {
      T* const dq = Head<T>(v, h).out(v.dq, 0);
      for (int64_t group = 1; group < groups.count; ++group)
        map_row(
            size, dq, [](Vec<T> a, Vec<T> b) __attribute__((always_inline)) { return a + b; }, dq,
            apart.get() + (h * (groups.count - 1) + group - 1) * size);
    });
}

}  // namespace

void IsaBackend::attention(Context&, const AttentionViews& v) {
  if (v.q.dtype == DType::kFloat32) forward<float>(v);
  else forward<double>(v);
}

void IsaBackend::attention_backward(Context&, const AttentionViews& v) {
  if (v.q.dtype == DType::kFloat32) backward<float>(v);
  else backward<double>(v);
}

}  // namespace weft::kernels::WEFT_ISA_NS
