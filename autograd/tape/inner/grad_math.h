// The engine's arithmetic on gradients: sums, reduction of broadcast dims, casts, and strided views for
// in-place writes to views. Each function records itself if grad mode is on, so that create_graph works.
#pragma once

#include <weft/autograd/tape/record.h>

namespace weft::detail {

/// a + b in new memory; sizes and dtypes must be equal. Both may be row-wise (packed_rows.h), and the sum of
/// two that are is.
WEFT_API Tensor add_gradients(const Tensor& a, const Tensor& b);
/// a += b, unrecorded; b may be row-wise.
void add_into(const Tensor& a, const Tensor& b);
/// Sums g over the dims along which `sizes` was broadcast to g's sizes.
Tensor sum_to(const Tensor& g, const Shape& sizes);
/// g repeated to `sizes`, as a view. Grad: the engine sums it back.
Tensor expand_to(const Tensor& g, const Shape& sizes);
Tensor cast_to(const Tensor& g, DType dtype);
/// A contiguous copy.
Tensor copy_of(const Tensor& g);
bool has_nan(const Tensor& g);

/// Sizes, strides and offset of a view in a block, in elements.
struct Geometry {
  Shape sizes, strides;
  int64_t offset = 0;
};
inline Geometry geometry_of(const Tensor& x) { return {x.sizes(), x.strides(), x.storage_offset()}; }

/// The part of x that `view` covers, if x's elements are the block laid out as `base`. Shape: x base.sizes ->
/// view.sizes.
Tensor strided_view(const Tensor& x, const Geometry& base, const Geometry& view);
/// The edge of strided_view(x) for an x whose edge is `from`, without computing anything.
Edge strided_view_edge(Edge from, const SlotMeta& meta, const Geometry& base, const Geometry& view);
/// x (zeros when undefined) with the elements that `view` shows replaced by g. Shape: base.sizes.
/// Elements that `view` shows more than once through dims of stride 0 receive the sum; other overlaps throw
/// AutogradError.
Tensor strided_place(const Tensor& x, const Tensor& g, const Geometry& base, const Geometry& view);
/// Whether two indices of this layout refer to the same element.
bool overlaps_itself(const Shape& sizes, const Shape& strides);

}  // namespace weft::detail
