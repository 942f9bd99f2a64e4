// Indexing of several dims at once, x.index({0, Slice(1, 3), None, Ellipsis, mask, positions}), and x[mask].
// Both are expressions that can be written to. autograd/ops/index_many.cpp implements them.
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
  Slice(std::optional<Whole> start_at = None, std::optional<Whole> stop_at = None,
        std::optional<Whole> by = None)
      : start(start_at), stop(stop_at), step(by.value_or(1)) {}
  std::optional<int64_t> start, stop;
  int64_t step;
};

/// One entry of an index list: a number, which removes its dim, a Slice, None or Ellipsis. Or a bool mask
/// over one or more dims. Or an int64 or int32 tensor of positions, where negative positions count from the
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

/// The result of x[mask], x[positions] and x.index({..}): a view of x if the index has no tensor, else a copy
/// of the elements. A write to the unnamed result goes to x, also by a method in place: `x[mask] = 0`,
/// `x[mask] *= 2`, `x.index({0, mask}) += 1`, `x[mask].clamp_(0, 1)`. Once named, `auto y = x[mask]`, a copy
/// is an independent tensor.
class WEFT_API Indexed : public Tensor {
 public:
  Indexed(Tensor from, std::vector<TensorIndex> at);
  Indexed(const Indexed&) = default;
  Indexed(Indexed&&) noexcept = default;
  ~Indexed() = default;
  Indexed& operator=(const Indexed&) & = default;
  Indexed& operator=(Indexed&&) & noexcept = default;
  Indexed& operator=(const Tensor& t) & {
    static_cast<Tensor&>(*this) = t;
    return *this;
  }
  Tensor operator=(const Indexed& values) && { return assign(values); }
  Tensor operator=(const Tensor& values) && { return assign(values); }
  Tensor operator=(Scalar value) &&;
#define WEFT_COMPOUND(symbol, method, Other)                      \
  Tensor& operator symbol(Other o)& { return Tensor::method(o); } \
  Tensor operator symbol(Other o)&& {                             \
    check_kept("operator" #symbol), Tensor::method(o);            \
    return store();                                               \
  }
  WEFT_COMPOUNDS(const Tensor&)
  WEFT_COMPOUNDS(Scalar)
#undef WEFT_COMPOUND
#undef WEFT_COMPOUNDS
#define WEFT_WRITE(method)                                                                          \
  template <class... A> Tensor& method(A&&... a)& { return Tensor::method(std::forward<A>(a)...); } \
  template <class... A> Indexed method(A&&... a)&& {                                                \
    check_kept(#method), Tensor::method(std::forward<A>(a)...);                                     \
    return store();                                                                                 \
  }
  WEFT_WRITE(zero_)
  WEFT_WRITE(fill_)
  WEFT_WRITE(copy_)
  WEFT_WRITE(add_)
  WEFT_WRITE(sub_)
  WEFT_WRITE(mul_)
  WEFT_WRITE(div_)
  WEFT_WRITE(remainder_)
  WEFT_WRITE(pow_)
  WEFT_WRITE(exp_)
  WEFT_WRITE(neg_)
  WEFT_WRITE(bitwise_and_)
  WEFT_WRITE(bitwise_or_)
  WEFT_WRITE(bitwise_xor_)
  WEFT_WRITE(clamp_)
  WEFT_WRITE(relu_)
  WEFT_WRITE(masked_fill_)
  WEFT_WRITE(masked_scatter_)
  WEFT_WRITE(scatter_)
  WEFT_WRITE(scatter_add_)
  WEFT_WRITE(index_add_)
  WEFT_WRITE(uniform_)
  WEFT_WRITE(normal_)
  WEFT_WRITE(bernoulli_)
#undef WEFT_WRITE
  template <class V>
  Tensor& index_put_(const std::vector<TensorIndex>& at, const V& values, bool accumulate = false) & {
    return Tensor::index_put_(at, values, accumulate);
  }
  template <class V>
  Indexed index_put_(const std::vector<TensorIndex>& at, const V& values, bool accumulate = false) && {
    check_kept("index_put_"), Tensor::index_put_(at, values, accumulate);
    return store();
  }

 private:
  void check_kept(const char* write) const;  // as check_seen, of x if this is a copy
  Tensor assign(const Tensor& values);
  Indexed& store();  // writes this copy to x
  Tensor from_;      // x, undefined if this is a view
  std::vector<TensorIndex> at_;
};

}  // namespace weft
