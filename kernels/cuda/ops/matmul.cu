// Matrix product of views: c = alpha a b + beta c (+ bias over rows, relu), [M, K] [K, N] or a batch of it.
// The operand c is read only if beta is not 0. Floating dtypes use host/gemm.h. If one of the last two
// strides is 1 and rows do not overlap, the strides become transpose flags and row lengths. Otherwise the
// operand is copied. A batch with a shared b is one tall product. A column-major result is the transposed
// product. Products of a half dtype may have a float32 result and bias, for the recurrent layers. Gelu, its
// slope and sums are joined with a product where cuBLASLt does that (multiply_joined).
//
// Integers run here: tiles of 16 x 16 results, with steps of 16 along K through shared memory. Sums wrap
// around as int64. 2 K integer operations and K / 8 loaded elements per result.
#include <algorithm>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/gemm.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

constexpr int kTile = 16;

/// The view as rank 3; an operand that is repeated over the batch has batch stride 0.
View batched(View v) {
  if (v.ndim() == 2) return {v.data, v.dtype, {1, v.size(0), v.size(1)}, {0, v.stride(0), v.stride(1)}};
  if (v.size(0) == 1) v.strides[0] = 0;
  return v;
}

View transposed(View v) {
  std::swap(v.sizes[1], v.sizes[2]);
  std::swap(v.strides[1], v.strides[2]);
  return v;
}

/// The memory layout of a matrix: rows with a stride of `leading` elements, of it or of its transpose.
struct Rows {
  bool fit = true, transposed = false;
  int64_t leading = 0;
};
Rows rows_of(const View& v) {
  const int64_t rows = v.size(1), columns = v.size(2), row = v.stride(1), column = v.stride(2);
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1))
    return {true, false, rows == 1 ? columns : row};
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1))
    return {true, true, columns == 1 ? rows : column};
  return {false, false, columns};
}

/// An operand in a layout for gemm: in place, or a dense copy.
class Operand {
 public:
  Operand(CudaBackend& b, Context& c, View v)
      : view_(batched(v)), rows_(rows_of(view_)), copy_(b, c, rows_.fit ? 0 : dense_bytes(view_)) {
    if (rows_.fit) return;
    if (view_.stride(0) == 0) view_.sizes[0] = 1;
    const View dense{copy_.as<void>(), view_.dtype, view_.sizes, contiguous_strides(view_.sizes)};
    b.copy(c, view_, dense);
    view_ = dense;
    if (view_.size(0) == 1) view_.strides[0] = 0;
  }
  const void* data() const { return view_.data; }
  DType dtype() const { return view_.dtype; }
  bool transposed() const { return rows_.transposed; }
  int64_t leading() const { return rows_.leading; }
  int64_t stride() const { return view_.stride(0); }

 private:
  static size_t dense_bytes(const View& v) {
    return static_cast<size_t>((v.stride(0) == 0 ? 1 : v.size(0)) * v.size(1) * v.size(2) * size_of(v.dtype));
  }
  View view_;
  Rows rows_;
  Scratch copy_;
};

/// The batch as one tall product, if b is shared and the rows of a and c continue from matrix to matrix.
void stack(View& a, View& b, View& c) {
  const int64_t batch = c.size(0), m = c.size(1);
  if (batch == 1 || b.stride(0) != 0 || a.stride(0) == 0 || c.stride(2) != 1) return;
  if (m == 1) a.strides[1] = a.stride(0), c.strides[1] = c.stride(0);
  else if (a.stride(0) != m * a.stride(1) || c.stride(0) != m * c.stride(1)) return;
  a.sizes[0] = c.sizes[0] = b.sizes[0] = 1;
  a.sizes[1] = c.sizes[1] = batch * m;
  a.strides[0] = c.strides[0] = 0;
}

WEFT_DEVICE inline uint64_t load(const void* p, DType t, int64_t i) {
  switch (t) {
    case kInt64: return static_cast<uint64_t>(static_cast<const int64_t*>(p)[i]);
    case kInt32: return static_cast<uint64_t>(static_cast<int64_t>(static_cast<const int32_t*>(p)[i]));
    default: return static_cast<const uint8_t*>(p)[i];
  }
}
WEFT_DEVICE inline void store(void* p, DType t, int64_t i, uint64_t v) {
  switch (t) {
    case kInt64: static_cast<int64_t*>(p)[i] = static_cast<int64_t>(v); break;
    case kInt32: static_cast<int32_t*>(p)[i] = static_cast<int32_t>(v); break;
    case kUInt8: static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(v); break;
    default: static_cast<uint8_t*>(p)[i] = v != 0; break;
  }
}

struct Matrix {
  void* data;
  int64_t batch, row, column;
  explicit Matrix(const View& v) : data(v.data), batch(v.stride(0)), row(v.stride(1)), column(v.stride(2)) {}
};

/// One result per thread; blocks run over tiles, rows of blocks over the batch.
struct IntegerTile {
  DType dtype;
  int64_t count, m, n, k;
  Matrix a, b, c;
  const void* bias;
  int64_t bias_stride;
  double alpha, beta;

  WEFT_DEVICE static uint64_t scaled(double factor, uint64_t x) {  // an integer factor; wraps around as int64
    return static_cast<uint64_t>(kernels::to_integer<int64_t>(factor)) * x;
  }
  WEFT_DEVICE void operator()(Thread t) const {
    uint64_t* const left = t.shared<uint64_t>();
    uint64_t* const right = left + kTile * kTile;
    const int64_t across = (n + kTile - 1) / kTile;
    const int y = t.id() / kTile, x = t.id() % kTile;
    const int64_t r = t.block() / across * kTile + y, s = t.block() % across * kTile + x;
    for (int64_t z = t.row(); z < count; z += t.rows()) {
      uint64_t sum = 0;
      for (int64_t k0 = 0; k0 < k; k0 += kTile) {
        left[t.id()] =
            r < m && k0 + x < k ? load(a.data, dtype, z * a.batch + r * a.row + (k0 + x) * a.column) : 0;
        right[t.id()] =
            k0 + y < k && s < n ? load(b.data, dtype, z * b.batch + (k0 + y) * b.row + s * b.column) : 0;
        t.sync();
        for (int i = 0; i < kTile; ++i) sum += left[y * kTile + i] * right[i * kTile + x];
        t.sync();
      }
      if (r >= m || s >= n) continue;
      const int64_t at = z * c.batch + r * c.row + s * c.column;
      sum = scaled(alpha, sum);
      if (beta != 0) sum += scaled(beta, load(c.data, dtype, at));
      if (bias) sum += load(bias, dtype, s * bias_stride);
      store(c.data, dtype, at, sum);
    }
  }
};

void multiply_integers(void* stream, double alpha, const View& a, const View& b, double beta,
                       const View& bias, const View& c) {
  const int64_t m = c.size(1), n = c.size(2), tiles = blocks_for(m, kTile) * blocks_for(n, kTile);
  launch(stream, "matmul",
         {.blocks = tiles,
          .rows = std::min<int64_t>(c.size(0), 65535),
          .threads = kTile * kTile,
          .shared = 2 * kTile * kTile * sizeof(uint64_t)},
         IntegerTile{c.dtype, c.size(0), m, n, a.size(2), Matrix(a), Matrix(b), Matrix(c), bias.data,
                     bias.defined() ? bias.stride(0) : 0, alpha, beta});
}

/// c = beta c + bias, for K = 0.
void finish_empty_sum(CudaBackend& backend, Context& context, double beta, const View& bias, const View& c) {
  const View wide = bias.defined() ? View{bias.data, bias.dtype, c.sizes, {0, 0, bias.stride(0)}} : View{};
  if (beta == 0) return wide.defined() ? backend.copy(context, wide, c) : backend.fill(context, 0, c);
  if (beta != 1) backend.unary(context, Unary::kMulScalar, beta, 0, c, c);
  if (wide.defined()) backend.binary(context, Binary::kAdd, 1, 0, c, wide, c);
}

/// The product of two operands, for a c in a layout that gemm can write.
Gemm product_of(const Operand& x, const Operand& y, int64_t k, const View& bias, const View& c,
                int64_t leading) {
  return {.dtype = x.dtype(),
          .wide = x.dtype() != c.dtype,
          .transpose_a = x.transposed(),
          .transpose_b = y.transposed(),
          .m = c.size(1),
          .n = c.size(2),
          .k = k,
          .batch = c.size(0),
          .a = x.data(),
          .b = y.data(),
          .bias = bias.data,
          .c = c.data,
          .lda = x.leading(),
          .ldb = y.leading(),
          .ldc = leading,
          .stride_a = x.stride(),
          .stride_b = y.stride(),
          .stride_c = c.stride(0)};
}

/// Floating dtypes.
void multiply(CudaBackend& backend, Context& context, double alpha, const View& a, const View& b, double beta,
              const View& bias, bool relu, const View& c, int64_t leading) {
  const Operand x(backend, context, a), y(backend, context, b);
  Gemm g = product_of(x, y, a.size(2), bias, c, leading);
  g.alpha = alpha, g.beta = beta, g.relu = relu;
  gemm(backend, backend.stream_of(context), g);
}

/// c = a b with `joined`. Returns false, with nothing done, where that is not one product of cuBLASLt. The
/// error of its gelu is not documented. So float32 that must not be rounded to TF32 is left to a kernel.
bool multiply_joined(CudaBackend& backend, Context& context, View a, View b, const View& bias, Joined joined,
                     const View& beside, View c) {
  backend.enter();
  if (!is_half(c.dtype) && !(c.dtype == kFloat32 && allow_tf32())) return false;
  a = batched(a), b = batched(b), c = batched(c);
  const Rows rows = rows_of(c);
  if (!rows.fit || rows.transposed || (bias.defined() && bias.stride(0) != 1)) return false;
  const bool matrix = beside.ndim() == 2;
  // cuBLASLt wants rows of whole packs
  if (matrix && (beside.stride(1) != 1 || beside.stride(0) % 8 != 0 ||
                 reinterpret_cast<uintptr_t>(beside.data) % 16 != 0))
    return false;
  const Operand x(backend, context, a), y(backend, context, b);
  Gemm g = product_of(x, y, a.size(2), bias, c, rows.leading);
  g.joined = joined, g.beside = beside.data, g.beside_row = matrix ? beside.stride(0) : 0;
  return gemm_joined(backend, backend.stream_of(context), g);
}

}  // namespace

void CudaBackend::matmul(Context& context, double alpha, View a, View b, double beta, View bias, View c,
                         bool relu) {
  if (c.numel() == 0) return;
  enter();
  a = batched(a), b = batched(b), c = batched(c);
  if (!is_floating(c.dtype)) return multiply_integers(stream_of(context), alpha, a, b, beta, bias, c);
  if (a.size(2) == 0) {
    finish_empty_sum(*this, context, beta, bias, c);
    if (relu) unary(context, Unary::kRelu, 0, 0, c, c);
    return;
  }
  stack(a, b, c);
  const int64_t n = c.size(2);
  const bool loose_bias = bias.defined() && bias.stride(0) != 1 && n > 1;
  const Scratch side_by_side(*this, context, loose_bias ? static_cast<size_t>(n * size_of(bias.dtype)) : 0);
  if (loose_bias) {
    const View dense{side_by_side.as<void>(), bias.dtype, {n}, {1}};
    copy(context, bias, dense);
    bias = dense;
  }
  const Rows rows = rows_of(c);
  if (rows.fit && !rows.transposed)
    return multiply(*this, context, alpha, a, b, beta, bias, relu, c, rows.leading);
  if (rows.fit && !bias.defined())
    return multiply(*this, context, alpha, transposed(b), transposed(a), beta, {}, relu, transposed(c),
                    rows.leading);
  const Scratch result(*this, context, static_cast<size_t>(c.numel() * size_of(c.dtype)));
  const View dense{result.as<void>(), c.dtype, c.sizes, contiguous_strides(c.sizes)};
  if (beta != 0) copy(context, c, dense);
  multiply(*this, context, alpha, a, b, beta, bias, relu, dense, n);
  copy(context, dense, c);
}

void CudaBackend::matmul_gelu(Context& context, View a, View b, View bias, View before, View c) {
  if (!multiply_joined(*this, context, a, b, bias, Joined::kGelu, before, c))
    Accelerator::matmul_gelu(context, a, b, bias, before, c);
}
void CudaBackend::matmul_gelu_grad(Context& context, View a, View b, View before, View c) {
  if (!multiply_joined(*this, context, a, b, {}, Joined::kGeluGrad, before, c))
    Accelerator::matmul_gelu_grad(context, a, b, before, c);
}
void CudaBackend::matmul_sums(Context& context, View a, View b, View c, View sums) {
  if (sums.stride(0) != 1 || !multiply_joined(*this, context, a, b, {}, Joined::kSums, sums, c))
    Accelerator::matmul_sums(context, a, b, c, sums);
}

}  // namespace weft::cuda
