// How pointwise kernels meet memory. A kernel is a loop over contiguous memory of its own compute types; everything else (strides,
// broadcasting, half types, conversions) is done here by moving blocks of a few hundred elements through the first-level cache, so
// that each operation is instantiated once per compute type. Operand 0 is the output.
#pragma once

#include <weft/kernels/cpu/isa_table.h>
#include <weft/kernels/cpu/pool.h>

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr int kMaxOperands = 4;

struct Params {
  Scalar s, t;
};

/// Computes n elements: p[0] is written, p[1..] are read; p[0] may equal an input.
using Kernel = void (*)(const Params& params, void* const* p, int64_t n);

/// Converts n elements between dtypes, both contiguous.
using Convert = void (*)(const void* x, void* y, int64_t n);
Convert converter(DType from, DType to);

/// Moves n elements of `width` bytes; strides in elements, x stride 0 repeats one.
void move_strided(int64_t width, const void* x, int64_t x_stride, void* y, int64_t y_stride, int64_t n);

/// Loops over several operands of equal sizes: dims of size 1 dropped, ordered by the output's strides, merged where all allow it.
struct Loops {
  int ndim = 0;
  int64_t numel = 1;
  int64_t size[kMaxDims];
  int64_t stride[kMaxOperands][kMaxDims];

  Loops(const View* const* views, int count);
  /// The coordinates of linear position `at`, and the offsets (in elements) of each operand there.
  void locate(int64_t at, int count, int64_t* index, int64_t* offsets) const;
  /// Goes on by n steps along a dim that do not cross its end.
  void advance(int dim, int64_t n, int count, int64_t* index, int64_t* offsets) const;
  /// The dim along which the operand is dense while the output is dense along the last one, or -1 where tiles do not pay.
  int transposed_dim(int operand) const;
  /// Strides of a dense block with the dims in the order of `out`'s.
  static Shape dense_strides(const View& out);
};

/// y = x, equal sizes, any strides and dtypes.
void copy_any(V x, V y);

/// Runs `kernel` over all elements. compute[i] is the type that the kernel takes for operand i; others are converted.
void run_elementwise(Kernel kernel, const Params& params, const View* const* views, const DType* compute,
                     int count, int64_t grain);

inline constexpr int64_t kCheapGrain = 32768, kDearGrain = 8192;

}  // namespace weft::kernels::WEFT_ISA_NS
