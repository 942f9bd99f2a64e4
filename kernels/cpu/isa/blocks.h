// How N strided views of one size become runs of contiguous numbers of a computing type (float, double, int64): views are merged to the
// fewest dims, the innermost is cut into blocks, and an operand that is dense and already of that type is used in place; any other is
// converted through a block on the stack. A kernel is thus one loop over contiguous memory, whatever the views.
#pragma once

#include <type_traits>

#include <weft/kernels/cpu/isa/lines.h>

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr int64_t kBlock = 512;
inline constexpr int64_t kGrain = 1 << 15;  // elements per task

/// The type that elements of T are computed in.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double,
                                       std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, int64_t>>;

enum class Compute : uint8_t { kFloat, kDouble, kInt };
inline Compute compute_of(DType t) { return t == DType::kFloat64 ? Compute::kDouble : is_floating(t) ? Compute::kFloat : Compute::kInt; }

template <class C, class T>
void read_as(const T* from, int64_t step, int64_t n, C* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(from[i * step]);
}
template <class C, class T>
void write_as(const C* from, int64_t n, T* to, int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(T) == 2) to[i * step] = T(static_cast<float>(from[i]));
    else to[i * step] = static_cast<T>(from[i]);
  }
}

/// Calls f with the types whose computing type is C.
template <class C, class F>
void dispatch_stored(DType t, const F& f) {
  if constexpr (std::is_same_v<C, double>) {
    f(TypeTag<double>{});
  } else if constexpr (std::is_same_v<C, float>) {
    if (t == DType::kFloat16) f(TypeTag<Half>{});
    else if (t == DType::kBFloat16) f(TypeTag<BFloat16>{});
    else f(TypeTag<float>{});
  } else {
    switch (t) {
      case DType::kBool: return f(TypeTag<bool>{});
      case DType::kUInt8: return f(TypeTag<uint8_t>{});
      case DType::kInt32: return f(TypeTag<int32_t>{});
      default: return f(TypeTag<int64_t>{});
    }
  }
}

template <class C>
void read_block(const View& v, int64_t offset, int64_t step, int64_t n, C* to) {
  dispatch_stored<C>(v.dtype, [&](auto tag) { read_as(v.as<typename decltype(tag)::type>() + offset, step, n, to); });
}
template <class C>
void write_block(const C* from, int64_t n, const View& v, int64_t offset, int64_t step) {
  dispatch_stored<C>(v.dtype, [&](auto tag) { write_as(from, n, v.as<typename decltype(tag)::type>() + offset, step); });
}

template <class C> bool stored_as(DType t) { return t == dtype_of<C>; }

/// N views of one size with as few dims as their strides allow; at least one dim.
template <int N>
struct Merged {
  Shape sizes, strides[N];
  explicit Merged(const View* const (&views)[N]) {
    const View& first = *views[0];
    for (int d = 0; d < first.ndim(); ++d) {
      if (first.size(d) == 1) continue;
      const int last = sizes.size() - 1;
      bool joins = last >= 0;
      for (int k = 0; k < N && joins; ++k) joins = strides[k][last] == views[k]->stride(d) * first.size(d);
      if (joins) {
        sizes[last] *= first.size(d);
        for (int k = 0; k < N; ++k) strides[k][last] = views[k]->stride(d);
      } else {
        sizes.push_back(first.size(d));
        for (int k = 0; k < N; ++k) strides[k].push_back(views[k]->stride(d));
      }
    }
    if (sizes.empty()) {
      sizes.push_back(1);
      for (int k = 0; k < N; ++k) strides[k].push_back(1);
    }
  }
  int inner() const { return sizes.size() - 1; }
};

/// f(in, out, n) over all elements: views[0] is the output of type Out (C or bool), the rest are inputs of computing type C.
template <class C, class Out, int N, class F>
void each_block(const View* const (&views)[N], const F& f) {
  const Merged<N> m(views);
  const int inner = m.inner();
  const int64_t length = m.sizes[inner];
  if (m.sizes.numel() == 0) return;
  const auto run = [&](const int64_t* offsets, int64_t from, int64_t n) {
    C buffers[N - 1][kBlock];
    Out out_buffer[kBlock];
    const int64_t out_step = m.strides[0][inner];
    const bool out_direct = out_step == 1 && views[0]->dtype == dtype_of<Out>;
    for (int64_t at = from; at < from + n; at += kBlock) {
      const int64_t count = from + n - at < kBlock ? from + n - at : kBlock;
      const C* in[N - 1];
      for (int k = 1; k < N; ++k) {
        const int64_t step = m.strides[k][inner], offset = offsets[k] + at * step;
        if (step == 1 && stored_as<C>(views[k]->dtype)) {
          in[k - 1] = views[k]->template as<C>() + offset;
        } else {
          if (step != 0 || at == from) read_block(*views[k], offset, step, step == 0 ? (n < kBlock ? n : kBlock) : count, buffers[k - 1]);
          in[k - 1] = buffers[k - 1];
        }
      }
      const int64_t out_offset = offsets[0] + at * out_step;
      Out* out = out_direct ? views[0]->template as<Out>() + out_offset : out_buffer;
      f(in, out, count);
      if (!out_direct) {
        if constexpr (std::is_same_v<Out, C>) write_block(out_buffer, count, *views[0], out_offset, out_step);
        else write_as(out_buffer, count, views[0]->template as<Out>() + out_offset, out_step);
      }
    }
  };
  Lines<N> all(m.sizes, inner, m.strides);
  if (all.count() == 1) {
    const int64_t zero[N] = {};
    if (length <= kGrain) return run(zero, 0, length);
    const Parts parts(length, kGrain);
    each_task(parts.count, [&](int64_t task) { run(zero, parts.begin(task), parts.size(task)); });
    return;
  }
  each_line<N>(m.sizes, inner, m.strides, [&](const Lines<N>& line) {
    int64_t offsets[N];
    for (int k = 0; k < N; ++k) offsets[k] = line.offset(k);
    run(offsets, 0, length);
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
