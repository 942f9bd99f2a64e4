// Order, counts and groups (order.cpp, scatter.cpp), composed of sorts, cumulative sums and scatters. ops.h
// has the rules for sizes, dtypes and errors that hold for all operations.
#pragma once

#include <optional>

#include <weft/autograd/ops/ops_reduce.h>

namespace weft {

/// Indices that sort x along dim, int64. The sort is stable; NaN counts as the largest.
WEFT_API Tensor argsort(In x, Whole dim = -1, Flag descending = false);
/// The median of all elements, the lower of two middle elements; NaN if any element is NaN.
/// Shape: [..] -> [].
/// Grad: g shared evenly by the elements equal to it. Throws: ShapeError if x is empty.
WEFT_API Tensor median(In x);
/// The median along dim and its index. Shape: x's sizes without dim, or with size 1 there if keepdim.
/// Grad: g to that element. Throws: ShapeError if dim has size 0.
WEFT_API MaxResult median(In x, Whole dim, Flag keepdim = false);

/// The additional results of unique.
struct UniqueOptions {
  bool inverse = false;  ///< also return, for each element of x, its index among the values
  bool counts = false;   ///< also return the number of occurrences of each value
};
/// The results of unique.
struct UniqueResult {
  Tensor values;   ///< [U], ascending; each NaN counts as a separate value
  Tensor inverse;  ///< x's sizes, int64; undefined unless requested
  Tensor counts;   ///< [U], int64; undefined unless requested
};
/// The distinct elements of x. Not differentiable. Shape: [U] for U distinct elements; inverse as x.
WEFT_API UniqueResult unique(In x, const UniqueOptions& options = {});

/// The number of occurrences in x of each integer from 0 on, int64. With weights, the sum of the weights of
/// these occurrences, in the weights' floating dtype; integer weights give float64.
/// Shape: x [N], weights [N] or undefined -> [max(largest + 1, minlength)]. Grad: dweights = g at x.
/// Throws: DTypeError unless x is int64 or int32, IndexError for a negative element, ShapeError for other
/// sizes, ValueError for minlength < 0.
WEFT_API Tensor bincount(In x, In weights = Tensor(), Whole minlength = 0);
/// A copy of x with each element along dim `repeats` times in a row; without dim, of x flattened.
/// Shape: x's sizes with size * repeats at dim. Grad: g summed over the repetitions.
/// Throws: ValueError for repeats < 0.
WEFT_API Tensor repeat_interleave(In x, Whole repeats, std::optional<int64_t> dim = {});
/// The same with a count for each element.
/// Shape: repeats [size of dim] or [1] -> x's sizes with the sum of repeats at dim.
/// Throws: ValueError for a negative count, ShapeError for repeats of other sizes, DTypeError unless they are
/// int64 or int32.
WEFT_API Tensor repeat_interleave(In x, In repeats, std::optional<int64_t> dim = {});

/// The reduction of scatter_reduce.
enum class ScatterReduce : uint8_t { kSum, kProd, kMean, kAmax, kAmin };
/// A copy of x with the elements of src reduced into the elements at index along dim. Without include_self
/// the elements of x at index are replaced. Integer means are rounded down. Shape: as scatter.
/// Grad: by the rule of the sum, mean or product; of amax and amin shared evenly by the elements equal to the
/// result.
/// Throws: as scatter. IndexError for an index out of range. DTypeError for an index that is not int64 or
/// int32, or a mean of bool. AutogradError for the second gradient of a product with a factor 0.
WEFT_API Tensor scatter_reduce(In x, Whole dim, In index, In src, ScatterReduce reduce,
                               bool include_self = true);

}  // namespace weft
