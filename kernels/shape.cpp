// Arithmetic on sizes: text, row-major strides, the number of elements with an overflow check, broadcasting
// from the right, and dims counted from the end.
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

int64_t checked_numel(const char* what, const Shape& sizes) {
  int64_t count = 1;
  bool none = false;
  for (int64_t n : sizes) {
    if (n < 0) throw ShapeError(str(what, ": negative size in ", sizes));
    if (n == 0) none = true;
    else if (__builtin_mul_overflow(count, n, &count))
      throw ShapeError(str(what, ": ", sizes, " has more elements than an int64 counts"));
  }
  return none ? 0 : count;
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
  checked_numel(what, out);
  return out;
}

int wrap_dim(const char* what, int64_t dim, int ndim) {
  if (ndim == 0) throw IndexError(str(what, ": dim ", dim, " of a tensor without dims"));
  if (dim < -ndim || dim >= ndim)
    throw IndexError(str(what, ": dim ", dim, " is outside [", -ndim, ", ", ndim - 1, "] of a tensor with ",
                         ndim, " dims"));
  return static_cast<int>(dim < 0 ? dim + ndim : dim);
}

}  // namespace weft
