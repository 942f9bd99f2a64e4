// Reductions, cumulative sums and products. ops.h has the rules for sizes, dtypes and errors that hold for
// all operations.
#pragma once

#include <weft/autograd/tape/record.h>
#include <weft/tensor/tensor.h>

namespace weft {

// ---- reductions (reduce.cpp, extremes.cpp, softmax.cpp)
// An overload without dims reduces all elements. Shape: [..] -> [].
// An overload with dims reduces these dims, or all if the list is empty. Shape: x's sizes without the reduced
// dims, or with size 1 there if keepdim. Throws: ShapeError for a dim named twice.

/// The chosen values and their positions along the dim, int64.
struct MaxResult {
  Tensor values, indices;
};
/// Sum. Grad: g at every element.
WEFT_API Tensor sum(Fp32Arg x);
/// Sum over dims. Grad: g at every element.
WEFT_API Tensor sum(Fp32Arg x, const Shape& dims, Flag keepdim = false);
/// x summed over the dims along which `sizes` would be broadcast to x's: the inverse of expand.
/// Shape: the given sizes. Grad: g expanded. Throws: ShapeError unless `sizes` broadcast to x's.
WEFT_API Tensor sum_to(In x, const Shape& sizes);
/// Mean of n elements. Grad: g / n. Throws: DTypeError for integers.
WEFT_API Tensor mean(In x);
/// Mean over dims, of n elements each. Grad: g / n. Throws: DTypeError for integers.
WEFT_API Tensor mean(In x, const Shape& dims, Flag keepdim = false);
/// Product. Grad: g * (product of the other elements), computed without a division.
WEFT_API Tensor prod(Fp32Arg x);
/// Product over one dim. Grad: as prod(x).
WEFT_API Tensor prod(Fp32Arg x, Whole dim, Flag keepdim = false);
/// Largest element. Grad: g shared evenly by all elements equal to it. Throws: ShapeError if x is empty.
WEFT_API Tensor max(In x);
/// Largest element along dim and its index, the first among equals. Grad: g to that element.
/// Throws: ShapeError if dim has size 0.
WEFT_API MaxResult max(In x, Whole dim, Flag keepdim = false);
/// Smallest element. Grad: g shared evenly by all elements equal to it. Throws: ShapeError if x is empty.
WEFT_API Tensor min(In x);
/// Smallest element along dim and its index, the first among equals. Grad: g to that element.
/// Throws: ShapeError if dim has size 0.
WEFT_API MaxResult min(In x, Whole dim, Flag keepdim = false);
/// Largest element over dims. Grad: g shared evenly by all elements equal to it.
/// Throws: ShapeError if one of the dims has size 0.
WEFT_API Tensor amax(In x, const Shape& dims = {}, Flag keepdim = false);
/// Smallest element over dims. Grad: g shared evenly by all elements equal to it.
/// Throws: ShapeError if one of the dims has size 0.
WEFT_API Tensor amin(In x, const Shape& dims = {}, Flag keepdim = false);
/// Index of the largest element along dim, int64, the first among equals.
/// Throws: ShapeError if dim has size 0.
WEFT_API Tensor argmax(In x, Whole dim, Flag keepdim = false);
/// Index of the largest element of x in row-major order. Throws: ShapeError if x is empty.
WEFT_API Tensor argmax(In x);
/// Index of the smallest element along dim, int64, the first among equals.
/// Throws: ShapeError if dim has size 0.
WEFT_API Tensor argmin(In x, Whole dim, Flag keepdim = false);
/// Index of the smallest element of x in row-major order. Throws: ShapeError if x is empty.
WEFT_API Tensor argmin(In x);
/// Whether any element is non-zero, bool.
WEFT_API Tensor any(In x);
/// Whether any element over dims is non-zero, bool.
WEFT_API Tensor any(In x, const Shape& dims, Flag keepdim = false);
/// Whether all elements are non-zero, bool.
WEFT_API Tensor all(In x);
/// Whether all elements over dims are non-zero, bool.
WEFT_API Tensor all(In x, const Shape& dims, Flag keepdim = false);
/// Variance of n elements, divided by n - 1; var(x, {}, 0) divides by n. Grad: g * 2 * (x - mean) / (n - 1).
/// Throws: DTypeError for integers.
WEFT_API Tensor var(Fp32Arg x);
/// Variance over dims, of n elements each, divided by n - correction, which need not be whole.
/// Grad: g * 2 * (x - mean) / (n - correction). Throws: DTypeError for integers.
WEFT_API Tensor var(Fp32Arg x, const Shape& dims, double correction = 1, Flag keepdim = false);
/// Standard deviation, the square root of var(x). Grad: g * (x - mean) / ((n - 1) * y); 0 where y = 0.
/// Throws: DTypeError for integers.
WEFT_API Tensor std(Fp32Arg x);
/// Standard deviation over dims, the square root of var.
/// Grad: g * (x - mean) / ((n - correction) * y); 0 where y = 0. Throws: DTypeError for integers.
WEFT_API Tensor std(Fp32Arg x, const Shape& dims, double correction = 1, Flag keepdim = false);
/// (sum |x|^p)^(1/p). p = 0 counts the non-zero elements and has no gradient; p = infinity is max |x|.
/// Grad: g * sign(x) * (|x| / y)^(p-1), 0 at y = 0; for infinity shared evenly by the largest.
/// Throws: DTypeError for integers, ValueError unless p >= 0, ShapeError for p = infinity of no elements.
WEFT_API Tensor norm(Fp32Arg x, double p = 2);
/// The same over dims.
WEFT_API Tensor norm(Fp32Arg x, double p, const Shape& dims, Flag keepdim = false);
/// log(sum(e^x)) along dim without overflow. Grad: g * softmax(x). Throws: DTypeError for integers.
WEFT_API Tensor logsumexp(Fp32Arg x, Whole dim, Flag keepdim = false);

// ---- cumulative (extremes.cpp). The result has x's sizes.

/// y[i] = x[0] + .. + x[i] along dim. Grad: the cumulative sum of g from the end.
WEFT_API Tensor cumsum(Fp32Arg x, Whole dim);
/// y[i] = x[0] * .. * x[i] along dim. Grad: by the product rule, computed without a division.
WEFT_API Tensor cumprod(Fp32Arg x, Whole dim);

}  // namespace weft
