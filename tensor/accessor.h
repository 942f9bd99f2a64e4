// Accessor: the elements of a CPU tensor by indices, for plain C++ loops:
// `auto a = x.accessor<float, 2>(); a[i][j] += 1;`. It costs no more than pointers and strides. The tape does
// not see it: a write neither changes the version nor is recorded.
#pragma once

#include <weft/tensor/tensor.h>

namespace weft {

namespace detail {
[[noreturn]] WEFT_API void throw_access(int64_t index, int64_t size);
}

/// A pointer with N sizes and strides. `a[i]` is an element if N is 1, else an Accessor of the remaining
/// dims.
template <class T, int N, bool Checked = kCheckedAccess> class Accessor {
 public:
  Accessor(T* data, const int64_t* sizes, const int64_t* strides) : data_(data) {
    for (int d = 0; d < N; ++d) sizes_[d] = sizes[d], strides_[d] = strides[d];
  }
  T* data() const { return data_; }
  int64_t size(int d = 0) const { return sizes_[d]; }
  int64_t stride(int d = 0) const { return strides_[d]; }
  decltype(auto) operator[](int64_t i) const {
    if constexpr (Checked)
      if (i < 0 || i >= sizes_[0]) detail::throw_access(i, sizes_[0]);
    if constexpr (N == 1) return (data_[i * strides_[0]]);
    else return Accessor<T, N - 1, Checked>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1);
  }

 private:
  T* data_;
  int64_t sizes_[N], strides_[N];
};

template <class T, int N> Accessor<T, N, kCheckedAccess> Tensor::accessor() const {
  static_assert(N >= 1 && N <= kMaxDims,
                "Tensor::accessor<T, N>: N is the number of dims, 1 to 8; a single number is item<T>()");
  check_access(dtype_of<std::remove_const_t<T>>, std::is_const_v<T>, N);
  return {static_cast<T*>(address()), sizes().data(), strides().data()};
}

}  // namespace weft
