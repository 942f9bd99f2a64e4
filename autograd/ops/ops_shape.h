// Operations that move elements: indexing, views, copies and rearrangements. ops.h has the rules for sizes,
// dtypes and errors that hold for all operations.
#pragma once

#include <vector>

#include <weft/autograd/ops/ops_reduce.h>
#include <weft/tensor/factories.h>

namespace weft {

// ---- indexing (index.cpp, index_many.cpp, scatter.cpp). Indices are int64 or int32. Negative indices count
// from the end in index and index_put only. Throws: DTypeError for an index of another dtype, IndexError for
// an index out of range.

/// x[at[0], at[1], ..], as PyTorch's indexing. Numbers, slices, None and Ellipsis give a view; with a mask or
/// a tensor of positions the result is a copy.
/// Shape: a number removes its dim and None adds one of size 1. Positions replace their dims by their
/// broadcast sizes, a mask by its count. The new dims stand at the place of the first indexed dim if all
/// indexed dims are neighbours, else in front. Grad: g added at the index.
/// Throws: IndexError for more indices than dims or a second Ellipsis. ShapeError for a mask of other sizes
/// than its dims, or positions that do not broadcast. ValueError for a slice with a step <= 0.
WEFT_API Tensor index(In x, const std::vector<TensorIndex>& at);
/// A copy of x with `values` at the elements that index(x, at) reads. For a position named twice the last
/// value counts; with `accumulate` all values are added.
/// Shape: x's sizes; values broadcast to the sizes of index(x, at).
/// Grad: dx = g (0 at the index unless accumulated), dvalues = g at the index.
/// Throws: as index; DTypeError unless x and values have one dtype, ShapeError for values that do not
/// broadcast.
WEFT_API Tensor index_put(In x, const std::vector<TensorIndex>& at, In values, bool accumulate = false);
/// A copy of x with the first elements of source, in order, where mask is true.
/// Shape: x's sizes, to which mask broadcasts. Grad: dx = g where mask is false, dsource = g at mask.
/// Throws: ShapeError for a mask that does not broadcast to x, or too few elements in source. DTypeError
/// unless mask is bool and source has x's dtype.
WEFT_API Tensor masked_scatter(In x, In mask, In source);
/// Rows of weight. Shape: weight [V, H], ids [..] -> [.., H].
/// Grad: rows of g summed by id; the row padding_idx gets no gradient (-1: no such row). With `sparse`, the
/// gradient of a weight that is a leaf is row-wise (row_grad.h), except under create_graph.
/// Throws: IndexError for an id outside [0, V) or a padding_idx outside [-1, V); ShapeError unless weight has
/// two dims.
WEFT_API Tensor embedding(In weight, In ids, int64_t padding_idx = -1, bool sparse = false);
/// x at `index` along dim. Shape: index [n] or [] -> x's sizes with n (or 1) at dim. Grad: g added at index.
/// Throws: ShapeError for an index of two or more dims.
WEFT_API Tensor index_select(In x, Whole dim, In index);
/// y[.., i, ..] = x[.., index[.., i, ..], ..] along dim.
/// Shape: the sizes of index, which outside dim are at most x's. Grad: g added at index.
/// Throws: ShapeError for an index of other sizes or another rank.
WEFT_API Tensor gather(In x, Whole dim, In index);
/// gather with an index that is first broadcast to x's sizes outside dim.
/// Shape: x's sizes with index's size at dim. Grad: g added at index.
/// Throws: ShapeError for an index that does not broadcast or of another rank.
WEFT_API Tensor take_along(In x, In index, Whole dim);
/// A copy y of x with y[.., index[.., i, ..], ..] = src[.., i, ..] along dim; the last of equal indices
/// counts. Shape: x's sizes; index and src have equal sizes, outside dim at most x's.
/// Grad: dx = g, 0 at index; dsrc = g at index, exact for distinct indices.
/// Throws: ShapeError for other sizes, DTypeError unless src has x's dtype.
WEFT_API Tensor scatter(In x, Whole dim, In index, In src);
/// The same with one value in the place of src. Throws: DTypeError for a number that x's dtype cannot hold.
WEFT_API Tensor scatter(In x, Whole dim, In index, Scalar value);
/// A copy y of x with y[.., index[.., i, ..], ..] += src[.., i, ..] along dim, in order of i.
/// Shape: as scatter. Grad: dx = g, dsrc = g at index. Throws: as scatter.
WEFT_API Tensor scatter_add(In x, Whole dim, In index, In src);
/// A copy of x with the slices of src added to the slices at `index` along dim, in order.
/// Shape: x's sizes; index [n], src x's sizes with n at dim. Grad: dx = g, dsrc = g at index.
/// Throws: ShapeError for other sizes, DTypeError unless src has x's dtype.
WEFT_API Tensor index_add(In x, Whole dim, In index, In src);
/// The elements of x where mask is true, in row-major order of their broadcast sizes. Shape: [count].
/// Grad: g at mask, else 0. Throws: DTypeError unless mask is bool.
WEFT_API Tensor masked_select(In x, In mask);
/// Coordinates of the non-zero elements, int64, in row-major order. Shape: [count, x.dim()].
WEFT_API Tensor nonzero(In x);
/// 1 at each id, 0 elsewhere, int64. Shape: [..] -> [.., classes].
/// Throws: IndexError for an id outside [0, classes), ValueError unless classes > 0.
WEFT_API Tensor one_hot(In ids, Whole classes);
/// x sorted along dim, stable; NaN counts as the largest. indices are the positions in x. Grad: g at indices.
WEFT_API MaxResult sort(In x, Whole dim = -1, Flag descending = false);
/// The k largest (or smallest) elements along dim, sorted, and their positions in x.
/// Shape: x's sizes with k at dim. Grad: g at indices, else 0.
/// Throws: ValueError for k < 0, ShapeError for k above the size of dim.
WEFT_API MaxResult topk(In x, Whole k, Whole dim = -1, Flag largest = true);

// ---- views, which share storage with x (shape.cpp). Grad: g at the elements that the view shows, else 0;
// the sum of g for an element shown more than once.

/// x with other sizes over the same memory; one size may be -1 and follows from the others.
/// Shape: the given sizes.
/// Throws: ShapeError if the numbers of elements differ, for two sizes of -1, or where no view is possible.
WEFT_API Tensor view(Viewed x, const Shape& sizes);
/// view if x's strides allow it, else a copy. Shape: the given sizes.
/// Throws: ShapeError if the numbers of elements differ, or for two sizes of -1.
WEFT_API Tensor reshape(Viewed x, const Shape& sizes);
/// Dims start to end, both included, joined into one: a reshape.
/// Shape: flatten(1, 2) of [A, B, C, D] -> [A, B*C, D]; [] -> [1]. Throws: ShapeError if start is after end.
WEFT_API Tensor flatten(Viewed x, Whole start = 0, Whole end = -1);
/// Dims d0 and d1 exchanged. Shape: x's sizes with these two exchanged.
WEFT_API Tensor transpose(Viewed x, int64_t d0, int64_t d1);
/// Dims reordered: dim i of the result is dim dims[i] of x. Shape: x's sizes in that order.
/// Throws: ShapeError unless dims names each dim once.
WEFT_API Tensor permute(Viewed x, const Shape& dims);
/// Dims of size 1 repeated without a copy (stride 0), and new dims in front; -1 keeps a size.
/// Shape: the given sizes. Throws: ShapeError unless x's sizes broadcast to them.
WEFT_API Tensor expand(Viewed x, const Shape& sizes);
/// x without its dims of size 1. Shape: [A, 1, B, 1] -> [A, B].
WEFT_API Tensor squeeze(Viewed x);
/// x without dim d if that has size 1, else all of x. Shape: squeeze(1) of [A, 1, B] -> [A, B].
WEFT_API Tensor squeeze(Viewed x, Whole d);
/// x with a new dim of size 1 at d, which may be x.dim(). Shape: unsqueeze(1) of [A, B] -> [A, 1, B].
WEFT_API Tensor unsqueeze(Viewed x, Whole d);
/// `length` elements of dim d from `start` on. Shape: x's sizes with `length` at d.
/// Throws: IndexError for elements outside the dim.
WEFT_API Tensor narrow(Viewed x, Whole d, Whole start, Whole length);
/// Element `index` of dim d, counted from the end if negative. Shape: x's sizes without d.
/// Throws: IndexError for an index out of range.
WEFT_API Tensor select(Viewed x, Whole d, Whole index);
/// Elements start, start + step, .. before end of dim d. If negative, start and end count from the end; they
/// are clamped to the size. Shape: x's sizes with ceil((end - start) / step) at d.
/// Throws: ValueError unless step > 0.
WEFT_API Tensor slice(Viewed x, Whole d, Whole start, Whole end = INT64_MAX, Whole step = 1);
/// Pieces along d of size `length`, the last piece smaller if it does not divide.
/// Shape: each has x's sizes with `length` at d, the last piece with the rest.
/// Throws: ValueError for a length that is not positive, and for more than 2^24 pieces. A length of 0 is
/// allowed if the dim has size 0.
WEFT_API std::vector<Tensor> split(Viewed x, int64_t length, Whole d = 0);
/// Pieces along d of the given sizes. Shape: piece i has x's sizes with lengths[i] at d.
/// Throws: ShapeError unless the lengths add up to the size of d.
WEFT_API std::vector<Tensor> split(Viewed x, const Shape& lengths, Whole d = 0);
template <std::floating_point T> void split(Viewed, T, Whole = 0) = delete;  // a length is an integer
/// At most `parts` pieces along d of equal size, the last piece smaller if it does not divide.
/// Shape: each has x's sizes with ceil(size / parts) at d, the last piece with the rest.
/// Throws: ValueError unless parts > 0, and for more than 2^24 pieces.
WEFT_API std::vector<Tensor> chunk(Viewed x, Whole parts, Whole d = 0);
/// One tensor per element of dim d. Shape: each has x's sizes without d.
/// Throws: ValueError for more than 2^24 elements.
WEFT_API std::vector<Tensor> unbind(Viewed x, Whole d = 0);
/// Any sizes and strides (in elements), from `offset` elements after x's first one. Shape: the given sizes.
/// Throws: ShapeError for a view beyond the memory between x's first and last element, negative numbers, or
/// lists of different lengths. AutogradError for an expanded x that requires grad.
WEFT_API Tensor as_strided(Viewed x, const Shape& sizes, const Shape& strides, int64_t offset = 0);
/// The diagonal of dims d0 and d1 as the last dim; `offset` > 0 is above the main diagonal.
/// Shape: x's sizes without d0 and d1, then the length: [.., M, N] -> [.., min(M, N)] for the last two dims
/// and offset 0. Throws: ShapeError if d0 and d1 are the same.
WEFT_API Tensor diagonal(Viewed x, Whole offset = 0, int64_t d0 = 0, int64_t d1 = 1);

// ---- copies and rearrangements (arrange.cpp; diag: shape.cpp)

/// x in row-major order: x itself if it is so already, else a copy. Grad: g.
WEFT_API Tensor contiguous(Viewed x);
/// A row-major copy. Grad: g.
WEFT_API Tensor clone(In x);
/// x in another dtype; x itself if it has that dtype. Grad: g in x's dtype.
WEFT_API Tensor to(Viewed x, DType dtype);
/// x on another device; x itself if it is there. non_blocking: does not wait for the copy (docs/cuda.md).
/// Grad: g on x's device. Throws: DeviceError for a device that is not available.
WEFT_API Tensor to(Viewed x, Device device, bool non_blocking = false);
/// x in another dtype and on another device; the transfer uses the smaller dtype.
/// Grad: g in x's dtype on x's device. Throws: DeviceError for a device that is not available.
WEFT_API Tensor to(Viewed x, Device device, DType dtype, bool non_blocking = false);
/// Tensors concatenated along dim, in their common dtype. Shape: [.., A, ..], [.., B, ..] -> [.., A + B, ..].
/// Grad: the pieces of g.
/// Throws: ValueError for an empty list; ShapeError for tensors without dims, of different ranks, or of
/// different sizes outside dim.
WEFT_API Tensor cat(const std::vector<Tensor>& xs, Whole dim = 0);
/// Tensors of equal sizes joined along a new dim. Shape: n tensors [A, B] at dim 0 -> [n, A, B].
/// Grad: the slices of g. Throws: ValueError for an empty list, ShapeError for different sizes.
WEFT_API Tensor stack(const std::vector<Tensor>& xs, Whole dim = 0);
/// x repeated times[d] times along each dim d; additional entries of times are for new dims in front.
/// Shape: repeat({2, 3}) of [A, B] -> [2 * A, 3 * B]. Grad: g summed over the repetitions.
/// Throws: ShapeError for fewer entries than x has dims, more than 4, or negative entries.
WEFT_API Tensor repeat(In x, const Shape& times);
/// x reversed along dims. Grad: g reversed. Throws: ShapeError for a dim named twice.
WEFT_API Tensor flip(In x, const Shape& dims);
/// x moved by `shift` elements along dim; elements moved out come in at the other end. Grad: g moved back.
WEFT_API Tensor roll(In x, Whole shift, Whole dim);
/// The same along all elements in row-major order; the result has x's sizes.
WEFT_API Tensor roll(In x, Whole shift);
/// A matrix with x on diagonal k and 0 elsewhere, or a copy of diagonal k of a matrix. k > 0 is above the
/// main diagonal. Shape: [N] -> [N + |k|, N + |k|], [M, N] -> [its length].
/// Grad: diagonal k of g, or a matrix with g on it. Throws: ShapeError unless x has one or two dims.
WEFT_API Tensor diag(In x, Whole k = 0);
/// The lower triangle of the last two dims: x on and below diagonal k, 0 above. Grad: tril of g.
/// Throws: ShapeError for fewer than two dims.
WEFT_API Tensor tril(In x, Whole k = 0);
/// The upper triangle of the last two dims: x on and above diagonal k, 0 below. Grad: triu of g.
/// Throws: ShapeError for fewer than two dims.
WEFT_API Tensor triu(In x, Whole k = 0);
/// x with `value` around it. pads holds {before, after} of the last dim, then of the dim before it, and so
/// on. Shape: pad({a, b}) of [.., N] -> [.., a + N + b]. Grad: the part of g that holds x.
/// Throws: ShapeError for an odd number of pads, more than x's dims need, or negative pads.
WEFT_API Tensor pad(In x, const Shape& pads, Scalar value = 0);

}  // namespace weft
