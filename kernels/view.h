// View: a tensor as kernels see it. A pointer, the dtype, sizes and strides (in elements), passed by value;
// it owns nothing.
#pragma once

#include <weft/kernels/dtype.h>
#include <weft/kernels/shape.h>

namespace weft {

/// A tensor in the form of kernel arguments.
struct View {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape sizes;
  Shape strides;

  int ndim() const { return sizes.size(); }
  int64_t size(int dim) const { return sizes[dim]; }
  int64_t stride(int dim) const { return strides[dim]; }
  int64_t numel() const { return sizes.numel(); }
  bool defined() const { return data != nullptr; }
  template <class T> T* as() const { return static_cast<T*>(data); }

  bool is_contiguous() const { return is_row_major(sizes, strides); }
};

}  // namespace weft
