// The arithmetic the engine itself needs on gradients (library internal): sums, broadcast undone, casts, and the strided placement that
// in-place writes to views are written with. Each records itself when grad mode is on, so create_graph sees it.
#pragma once

#include <weft/autograd/record.h>

namespace weft::detail {

/// a + b in fresh memory. Sizes and dtypes equal.
Tensor add_gradients(const Tensor& a, const Tensor& b);
/// a += b, unrecorded.
void add_into(const Tensor& a, const Tensor& b);
/// Sums g over the dims that broadcasting `sizes` to g's sizes had added or stretched.
Tensor sum_to(const Tensor& g, const Shape& sizes);
/// g repeated to `sizes`, as a view. Grad: the engine sums it back.
Tensor expand_to(const Tensor& g, const Shape& sizes);
Tensor cast_to(const Tensor& g, DType dtype);
/// A contiguous copy.
Tensor copy_of(const Tensor& g);
bool has_nan(const Tensor& g);

/// Where elements lie in a block, in elements from its start.
struct Geometry {
  Shape sizes, strides;
  int64_t offset = 0;
};
inline Geometry geometry_of(const Tensor& x) { return {x.sizes(), x.strides(), x.storage_offset()}; }

/// What `view` shows of x, where x has `base.sizes` and its elements stand for a block laid out as `base`. Shape: view.sizes.
Tensor strided_view(const Tensor& x, const Geometry& base, const Geometry& view);
/// The edge of strided_view(x) for an x whose edge is `from`, without computing anything.
Edge strided_view_edge(Edge from, const SlotMeta& meta, const Geometry& base, const Geometry& view);
/// x (zeros when undefined) with the elements that `view` shows replaced by g. Shape: base.sizes. Elements that `view` shows more than once
/// through dims of stride 0 receive the sum; other overlaps throw AutogradError.
Tensor strided_place(const Tensor& x, const Tensor& g, const Geometry& base, const Geometry& view);
/// True when two index tuples of this geometry meet in one element.
bool overlaps_itself(const Shape& sizes, const Shape& strides);

}  // namespace weft::detail
