// Memory access of pointwise kernels. A kernel is a loop over contiguous memory of its compute types.
// Strides, broadcasting, half dtypes and conversions are handled here, by copying blocks of a few hundred
// elements through the first-level cache. So each operation is instantiated once per compute type. Operand 0
// is the output.
#pragma once

#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/pool.h>

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr int kMaxOperands = 4;

using Params = PointwiseParams;
using Kernel = PointwiseRow;

/// Converts n elements between dtypes, both contiguous.
using Convert = void (*)(const void* x, void* y, int64_t n);
Convert converter(DType from, DType to);

/// Moves n elements of `width` bytes; strides in elements, x stride 0 repeats one.
void move_strided(int64_t width, const void* x, int64_t x_stride, void* y, int64_t y_stride, int64_t n);

/// Nested loops over operands of equal sizes. Dims of size 1 are dropped; the others are ordered by the
/// output's strides and merged if all operands allow it.
struct Loops {
  int ndim = 0;
  int64_t numel = 1;
  int64_t size[kMaxDims];
  int64_t stride[kMaxOperands][kMaxDims];

  Loops(const View* const* views, int count);
  /// The coordinates of linear position `at`, and the offsets (in elements) of each operand there.
  void locate(int64_t at, int count, int64_t* index, int64_t* offsets) const;
  /// Advances by n steps along a dim, not beyond its end.
  void advance(int dim, int64_t n, int count, int64_t* index, int64_t* offsets) const;
  /// The dim along which the operand is dense if that is not the output's, the last one. -1 if tiles do not
  /// pay.
  int transposed_dim(int operand) const;
  /// Strides of a dense block with the dims in the order of `out`'s.
  static Shape dense_strides(const View& out);
};

/// y = x, equal sizes, any strides and dtypes.
void copy_any(V x, V y);

/// Runs `kernel` over all elements. compute[i] is the kernel's dtype for operand i; operands of other dtypes
/// are converted.
void run_elementwise(Kernel kernel, const Params& params, const View* const* views, const DType* compute,
                     int count, int64_t grain);

inline constexpr int64_t kCheapGrain = 32768, kDearGrain = 8192;
static_assert(kRowElements <= kDearGrain, "rows run directly are not cut here either");

}  // namespace weft::kernels::WEFT_ISA_NS
