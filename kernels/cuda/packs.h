// Memory access of pointwise kernels. If every operand is dense or constant along the innermost dim, a thread
// moves packs of up to 16 bytes. Elements after the last whole pack, and layouts that do not allow packs, are
// moved one by one. A thread moves two packs at a time, a warp's width apart. So each access of a warp is one
// run of memory, and two accesses are in flight.
#pragma once

#include <cstdint>
#include <cstring>

#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

/// E elements moved in one access.
template <class T, int E> struct alignas(E * sizeof(T)) Pack { T at[E]; };

template <class T, int E>
WEFT_DEVICE inline Pack<T, E> load_pack(const void* base, int64_t at, bool splat = false) {
  const T* const p = static_cast<const T*>(base) + at;
  if (!splat) return *reinterpret_cast<const Pack<T, E>*>(p);
  const T one = *p;
  Pack<T, E> pack;
  for (int i = 0; i < E; ++i) pack.at[i] = one;
  return pack;
}
template <class T, int E> WEFT_DEVICE inline void store_pack(void* base, int64_t at, const Pack<T, E>& pack) {
  T* const p = static_cast<T*>(base) + at;
#if defined(__CUDA_ARCH__)
  // as one word; otherwise the compiler stores numbers that it computed one by one separately
  if constexpr (sizeof pack == 16) {
    uint4 word;
    std::memcpy(&word, &pack, sizeof word);
    *reinterpret_cast<uint4*>(p) = word;
    return;
  }
#endif
  *reinterpret_cast<Pack<T, E>*>(p) = pack;
}

/// A loop over N operands, operand 0 being the output. packs == 0: all elements go one by one.
template <int N> struct Packs {
  Layout<N> layout;   ///< positions count packs, or elements if there are no packs; offsets are elements
  int64_t packs = 0;  ///< of `width` elements each
  int64_t numel = 0;
  int32_t width = 1;
  uint32_t splat = 0;  ///< bit i: operand i repeats one element within a pack

  WEFT_DEVICE bool splats(int i) const { return (splat >> i & 1) != 0; }
  /// Offsets of an element: any element if there are no packs, else one after the last pack.
  WEFT_DEVICE void element(int64_t at, int64_t (&offset)[N]) const {
    if (packs == 0) return layout.locate(at, offset);
    for (int i = 0; i < N; ++i) offset[i] = splats(i) ? 0 : at;
  }
  /// Number of threads with work.
  int64_t threads() const { return packs > 0 ? (packs + 1) / 2 + width : numel; }
  /// Switches to single elements.
  void by_element(const Layout<N>& elements) { layout = elements, packs = 0, width = 1, splat = 0; }
};

/// Packs of `width` elements if the operands allow them.
template <int N> Packs<N> packs_of(const View* const (&views)[N], const Layout<N>& elements, int width) {
  Packs<N> p;
  p.layout = elements;
  p.numel = elements.numel;
  Layout<N>& l = p.layout;
  const int last = l.ndim - 1;
  if (last < 0 || width < 2 || l.size[last] < width || (last > 0 && l.size[last] % width != 0)) return p;
  uint32_t splat = 0;
  for (int i = 0; i < N; ++i) {
    const int64_t inner = l.stride[i][last];
    if (inner == 0 && i > 0) {
      splat |= 1u << i;
      continue;
    }
    if (inner != 1 || reinterpret_cast<uintptr_t>(views[i]->data) %
                              static_cast<uintptr_t>(width * size_of(views[i]->dtype)) !=
                          0)
      return p;
    for (int d = 0; d < last; ++d)
      if (l.stride[i][d] % width != 0) return p;
  }
  l.size[last] /= width;
  for (int i = 0; i < N; ++i) l.stride[i][last] *= width;
  l.prepare();
  p.packs = l.numel, p.width = width, p.splat = splat;
  return p;
}

/// Calls f(first, second, both) for the packs of this thread; `second` is valid only if `both`.
template <class F> WEFT_DEVICE inline void each_two_packs(Thread t, int64_t packs, const F& f) {
  for (int64_t first = t.global() / kWarp * (2 * kWarp) + t.lane(); first < packs; first += 2 * t.globals())
    f(first, first + kWarp, first + kWarp < packs);
}

/// Calls f(TypeTag<U>) with the unsigned type of a width, for elements that are only moved.
template <class F> void with_width(int64_t width, const F& f) {
  switch (width) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

}  // namespace weft::cuda
