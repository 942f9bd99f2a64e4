// Indexing of several dims at once, x.index({0, Slice(1, 3), None, Ellipsis, mask, positions}), and x[mask]
// as an expression that takes assignments. autograd/ops/index_many.cpp implements both.
#pragma once

#include <concepts>
#include <optional>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft {

/// In a Slice, an absent bound; as an index, a new dim of size 1.
inline constexpr std::nullopt_t None = std::nullopt;
struct EllipsisIndex {};
/// Stands for all dims that the other indices leave over.
inline constexpr EllipsisIndex Ellipsis{};

/// Elements start, start + step, .. before stop of one dim; negative bounds count from the end. Slice() is a
/// whole dim.
struct Slice {
  Slice(std::optional<int64_t> start_at = None, std::optional<int64_t> stop_at = None,
        std::optional<int64_t> by = None)
      : start(start_at), stop(stop_at), step(by.value_or(1)) {}
  std::optional<int64_t> start, stop;
  int64_t step;
};

/// One entry of an index list: a number, which removes its dim, a Slice, None or Ellipsis. Or a bool mask
/// over one or more dims. Or an int64 or int32 tensor of positions, of which negative ones count from the
/// end.
class WEFT_API TensorIndex {
 public:
  enum class Kind : uint8_t { kNumber, kSlice, kNewDim, kEllipsis, kTensor };
  template <std::integral T>
  requires(!std::same_as<T, bool>) TensorIndex(T at)
      : kind(Kind::kNumber), number(static_cast<int64_t>(at)) {}
  TensorIndex(const Slice& s) : kind(Kind::kSlice), slice(s) {}
  TensorIndex(std::nullopt_t) : kind(Kind::kNewDim) {}
  TensorIndex(EllipsisIndex) : kind(Kind::kEllipsis) {}
  TensorIndex(const Tensor& t) : kind(Kind::kTensor), tensor(t) {}

  Kind kind;
  int64_t number = 0;
  Slice slice;
  Tensor tensor;
};

/// The result of x[mask] or x[positions]: a copy of those elements. Assigning to the unnamed result writes to
/// x, as index_put_ does: `x[mask] = 0`, `x[mask] = v`, `x[mask] *= 2`, `x[mask] &= m`. Once named, `auto y =
/// x[mask]`, it is an independent tensor.
class WEFT_API Indexed : public Tensor {
 public:
  Indexed(Tensor from, const Tensor& at);
  Indexed(const Indexed&) = default;
  Indexed(Indexed&&) noexcept = default;
  ~Indexed() = default;
  Indexed& operator=(const Indexed&) & = default;
  Indexed& operator=(Indexed&&) & noexcept = default;
  Indexed& operator=(const Tensor& t) & {
    static_cast<Tensor&>(*this) = t;
    return *this;
  }
  Tensor operator=(const Indexed& values) && { return write(values); }
  Tensor operator=(const Tensor& values) && { return write(values); }
  Tensor operator=(Scalar value) &&;
#define WEFT_COMPOUND(symbol, method)                                    \
  Tensor& operator symbol(const Tensor& o)& { return method(o); }        \
  Tensor operator symbol(const Tensor& o)&& { return write(method(o)); } \
  Tensor& operator symbol(Scalar s)& { return method(s); }               \
  Tensor operator symbol(Scalar s)&& { return write(method(s)); }
  WEFT_COMPOUND(+=, add_)
  WEFT_COMPOUND(-=, sub_)
  WEFT_COMPOUND(*=, mul_)
  WEFT_COMPOUND(/=, div_)
#undef WEFT_COMPOUND
#define WEFT_COMPOUND(symbol, method)                             \
  Tensor& operator symbol(const Tensor& o)& { return method(o); } \
  Tensor operator symbol(const Tensor& o)&& { return write(method(o)); }
  WEFT_COMPOUND(&=, bitwise_and_)
  WEFT_COMPOUND(|=, bitwise_or_)
  WEFT_COMPOUND(^=, bitwise_xor_)
#undef WEFT_COMPOUND

 private:
  Tensor write(const Tensor& values);
  Tensor from_, at_;
};

}  // namespace weft
