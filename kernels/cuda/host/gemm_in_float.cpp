// A product of a half dtype on a device without such products. The operands are converted to float32 copies,
// and the result is rounded once, as on other devices. Additional memory traffic: 6 bytes per element of a
// and b, and of a c of the half dtype, twice if c is read.
#include <weft/kernels/cuda/host/gemm.h>

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda {

namespace {

/// Memory for a view's elements as dense float32; `filled`: with a copy of them.
class FloatCopy {
 public:
  FloatCopy(CudaBackend& backend, Context& context, const View& v, bool filled)
      : memory_(backend, context, static_cast<size_t>(v.numel()) * sizeof(float)),
        view_{memory_.as<void>(), kFloat32, v.sizes, contiguous_strides(v.sizes)} {
    if (filled) backend.copy(context, v, view_);
  }
  const View& view() const { return view_; }

 private:
  Scratch memory_;
  View view_;
};

}  // namespace

void gemm_in_float(CudaBackend& backend, void* stream, const Gemm& g) {
  Context context{.stream = stream};
  const auto stored = [&](const void* p, DType t, int64_t rows, int64_t columns, int64_t leading,
                          int64_t stride) {
    return View{const_cast<void*>(p), t, {stride == 0 ? 1 : g.batch, rows, columns}, {stride, leading, 1}};
  };
  const int64_t rows_a = g.transpose_a ? g.k : g.m, columns_a = g.transpose_a ? g.m : g.k,
                rows_b = g.transpose_b ? g.n : g.k, columns_b = g.transpose_b ? g.k : g.n;
  const FloatCopy a(backend, context, stored(g.a, g.dtype, rows_a, columns_a, g.lda, g.stride_a), true),
      b(backend, context, stored(g.b, g.dtype, rows_b, columns_b, g.ldb, g.stride_b), true);
  Gemm f = g;
  f.dtype = kFloat32, f.wide = false;
  f.a = a.view().data, f.lda = columns_a, f.stride_a = g.stride_a == 0 ? 0 : rows_a * columns_a;
  f.b = b.view().data, f.ldb = columns_b, f.stride_b = g.stride_b == 0 ? 0 : rows_b * columns_b;
  if (g.wide) return gemm(backend, stream, f);
  const View result = stored(g.c, g.dtype, g.m, g.n, g.ldc, g.stride_c),
             row{const_cast<void*>(g.bias), g.dtype, {g.bias ? g.n : 0}, {1}};
  const FloatCopy c(backend, context, result, g.beta != 0), bias(backend, context, row, g.bias != nullptr);
  f.c = c.view().data, f.ldc = g.n, f.stride_c = g.batch == 1 ? 0 : g.m * g.n;
  f.bias = g.bias ? bias.view().data : nullptr;
  gemm(backend, stream, f);
  backend.copy(context, c.view(), result);
}

}  // namespace weft::cuda
