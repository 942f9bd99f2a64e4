// Shape: a short list of int64 (sizes, strides or dims) without heap memory, and arithmetic on sizes.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <vector>

#include <weft/kernels/error.h>

namespace weft {

inline constexpr int kMaxDims = 8;

/// Up to eight int64 values inline. A single number converts to a list of one: `x.sum(0)`, `zeros(3)`.
/// Throws: ShapeError for more than eight values.
class WEFT_API Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> values) {
    for (int64_t v : values) push_back(v);
  }
  Shape(const std::vector<int64_t>& values) {
    for (int64_t v : values) push_back(v);
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) constexpr Shape(T value) { push_back(static_cast<int64_t>(value)); }
  constexpr Shape(int count, int64_t value) {
    for (int i = 0; i < count; ++i) push_back(value);
  }

  constexpr int size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr int64_t& operator[](int i) { return data_[i]; }
  constexpr int64_t operator[](int i) const { return data_[i]; }
  constexpr int64_t* begin() { return data_; }
  constexpr int64_t* end() { return data_ + size_; }
  constexpr const int64_t* begin() const { return data_; }
  constexpr const int64_t* end() const { return data_ + size_; }
  constexpr int64_t* data() { return data_; }
  constexpr const int64_t* data() const { return data_; }
  constexpr int64_t back() const { return data_[size_ - 1]; }

  constexpr void push_back(int64_t v) {
    if (size_ == kMaxDims) too_long();
    data_[size_++] = v;
  }
  constexpr void insert(int at, int64_t v) {
    push_back(v);
    for (int i = size_ - 1; i > at; --i) data_[i] = data_[i - 1];
    data_[at] = v;
  }
  constexpr void erase(int at) {
    for (int i = at; i + 1 < size_; ++i) data_[i] = data_[i + 1];
    --size_;
  }
  constexpr void resize(int n, int64_t fill = 0) {
    if (n > kMaxDims) too_long();
    for (int i = size_; i < n; ++i) data_[i] = fill;
    size_ = n;
  }
  constexpr int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < size_; ++i) n *= data_[i];
    return n;
  }
  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a.data_[i] != b.data_[i]) return false;
    return true;
  }
  friend bool operator==(const Shape&, std::integral auto) = delete;  // compare size() or one entry
  friend WEFT_API std::ostream& operator<<(std::ostream& out, const Shape& shape);

 private:
  [[noreturn]] static void too_long();
  int64_t data_[kMaxDims] = {};
  int size_ = 0;
};

/// "[2, 3]".
WEFT_API std::string to_string(const Shape& shape);
/// Row-major strides in elements.
WEFT_API Shape contiguous_strides(const Shape& sizes);
/// Whether elements of these sizes and strides lie in row-major order without gaps.
constexpr bool is_row_major(const Shape& sizes, const Shape& strides) {
  int64_t expected = 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (sizes[d] == 0) return true;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}
/// The number of elements.
/// Throws: ShapeError that names `what` for a negative size, or if the product of the non-zero sizes exceeds
/// int64.
WEFT_API int64_t checked_numel(const char* what, const Shape& sizes);
/// The common sizes under broadcasting.
/// Throws: ShapeError that names `what` and both shapes if they do not broadcast or the product exceeds
/// int64.
WEFT_API Shape broadcast(const char* what, const Shape& a, const Shape& b);
/// `dim`, counted from the end if negative, in [0, ndim). Throws: IndexError for a dim outside.
WEFT_API int wrap_dim(const char* what, int64_t dim, int ndim);

}  // namespace weft
