// Row-wise gradients inside the engine, whose lists and buffers hold tensors. A RowGrad is packed into a
// tensor of one dim over its values, whose slot has the sizes and the rows. Its one dim never equals the two
// of the gradient, so the check of sizes in the engine sees it. The engine passes it to leaves and to recv
// nodes, and makes it dense for all others.
#pragma once

#include <weft/autograd/tape/inner/slot.h>
#include <weft/autograd/tape/row_grad.h>

namespace weft {

/// The slot of a packed RowGrad.
struct RowSlot final : Slot {
  static void* operator new(size_t bytes);
  static void operator delete(void* p) noexcept;
  Shape whole;
  Tensor rows;
};

namespace detail {

/// Whether g is a packed RowGrad; false for an undefined tensor.
inline bool is_row_wise(const Tensor& g) { return g.defined() && g.body().row_wise; }
/// Shares the memory of contiguous values.
WEFT_API Tensor pack_rows(const RowGrad& g);
/// Shares memory with g, which is packed.
WEFT_API RowGrad unpack_rows(const Tensor& g);
/// A packed g as users see it: its rows, which were checked, refuse writes. Undefined for any other g.
WEFT_API RowGrad shown_rows(const Tensor& g);
/// The sizes of a gradient, packed or not.
inline const Shape& grad_sizes(const Tensor& g) {
  return is_row_wise(g) ? static_cast<RowSlot&>(*g.body().slot).whole : g.sizes();
}
WEFT_API Tensor made_dense(const Tensor& g);
/// A new dense tensor for a packed gradient, else g.
inline Tensor dense(const Tensor& g) { return is_row_wise(g) ? made_dense(g) : g; }
/// The gradient that x keeps, packed if it is row-wise; grad() is for users.
WEFT_API Tensor kept_grad(const Tensor& x);
/// A tensor over x's memory that refuses writes.
WEFT_API Tensor read_only(const Tensor& x);

/// Throws: ShapeError, DTypeError, DeviceError, ValueError, IndexError unless g has the form that row_grad.h
/// describes.
WEFT_API void check_rows(const char* name, const RowGrad& g);

/// The sum of two packed gradients of equal sizes, packed.
Tensor add_packed(const Tensor& a, const Tensor& b);
/// a += b for a dense, contiguous a and a packed b.
void add_packed_into(const Tensor& a, const Tensor& b);

/// The rows that `ids` name, each once and rising, without `skip`. at[i] is the position of ids[i] among
/// them, -1 for `skip`. ids: int64 [n], any device; rows and at: int64 on the CPU.
struct Lookups {
  Tensor rows, at;
};
Lookups lookups_of(const Tensor& ids, int64_t skip);

}  // namespace detail
}  // namespace weft
