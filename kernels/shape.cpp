// Arithmetic on sizes: text, row-major strides, broadcasting, negative dims.
#include <weft/kernels/shape.h>

#include <algorithm>

namespace weft {

void Shape::too_long() { throw ShapeError(str("Shape: more than ", kMaxDims, " dims")); }

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out += "]";
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides(sizes.size(), 1);
  for (int d = sizes.size() - 2; d >= 0; --d)
    strides[d] = strides[d + 1] * std::max<int64_t>(sizes[d + 1], 1);
  return strides;
}

Shape broadcast(const char* what, const Shape& a, const Shape& b) {
  const int n = std::max(a.size(), b.size());
  Shape out(n, 1);
  for (int i = 1; i <= n; ++i) {
    const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) throw ShapeError(str(what, ": sizes do not broadcast: ", a, " and ", b));
    out[n - i] = x == 1 ? y : x;
  }
  return out;
}

int wrap_dim(const char* what, int64_t dim, int ndim) {
  const int64_t count = std::max(ndim, 1);  // a scalar takes dim 0 and -1
  if (dim < -count || dim >= count)
    throw IndexError(str(what, ": dim ", dim, " is outside [", -count, ", ", count - 1, "] of a tensor with ",
                         ndim, " dims"));
  return static_cast<int>(dim < 0 ? dim + count : dim);
}

}  // namespace weft
