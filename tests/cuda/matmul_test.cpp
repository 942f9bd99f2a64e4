// Matrix products on the device, where there is one, against the CPU: layouts, precision, repeated bits.
#include <gtest/gtest.h>

#include <cstring>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/weft.h>

namespace weft {
namespace {

struct CudaMatmul : testing::Test {
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  void TearDown() override { cuda::set_allow_tf32(before); }
  const Device gpu{DeviceType::kCuda, 0};
  const bool before = cuda::allow_tf32();
};

Tensor numbers(const Shape& sizes, uint64_t seed, DType dtype = kFloat32) {
  Generator generator(seed);
  return randn(sizes, {.dtype = kFloat64}, &generator).to(dtype);
}
/// Largest difference, relative to the largest entry of b.
double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(kCpu).to(kFloat64), y = b.to(kCpu).to(kFloat64);
  return (x - y).abs().max().item<double>() / y.abs().max().item<double>();
}
double tolerance(DType t) {
  return t == kFloat64 ? 1e-13 : t == kFloat32 ? 1e-5 : t == kFloat16 ? 2e-3 : 2e-2;
}

TEST_F(CudaMatmul, matches_the_cpu_in_every_layout) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const int64_t odd : {0, 1})  // a view that starts off the 16-byte grid
      for (int t = 0; t < 4; ++t) {
        SCOPED_TRACE(str(dtype, " odd ", odd, " t ", t));
        const int64_t m = 61 + odd * 3, n = 64 + odd, k = 48 + odd * 5;
        const Tensor a = numbers((t & 1) ? Shape{k, m + 1} : Shape{m, k + 1}, 1, dtype),
                     b = numbers((t & 2) ? Shape{n, k + 1} : Shape{k, n + 1}, 2, dtype),
                     bias = numbers({n}, 3, dtype);
        const auto product = [&](Device d) {
          Tensor x = a.to(d).narrow(1, odd, (t & 1) ? m : k), w = b.to(d).narrow(1, odd, (t & 2) ? k : n);
          if (t & 1) x = x.transpose(0, 1);
          if (!(t & 2)) w = w.transpose(0, 1);  // linear takes [n, k]
          return linear(x, w, bias.to(d));
        };
        EXPECT_LE(difference(product(gpu), product(kCpu)), tolerance(dtype));
      }
}

TEST_F(CudaMatmul, batches_match_the_cpu) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    SCOPED_TRACE(str(dtype));
    const Tensor a = numbers({7, 33, 20}, 1, dtype), b = numbers({7, 20, 31}, 2, dtype),
                 one = numbers({20, 31}, 3, dtype);
    EXPECT_LE(difference(bmm(a.to(gpu), b.to(gpu)), bmm(a, b)), tolerance(dtype));
    EXPECT_LE(difference(matmul(a.to(gpu), one.to(gpu)), matmul(a, one)), tolerance(dtype));
    EXPECT_LE(difference(bmm(b.to(gpu).transpose(1, 2), a.to(gpu).transpose(1, 2)),
                         bmm(b.transpose(1, 2), a.transpose(1, 2))),
              tolerance(dtype));
  }
}

TEST_F(CudaMatmul, float32_is_rounded_to_tf32_only_where_allowed) {
  const Tensor a = numbers({512, 512}, 1), b = numbers({512, 512}, 2),
               exact = matmul(a.to(kFloat64), b.to(kFloat64));
  cuda::set_allow_tf32(false);
  EXPECT_LE(difference(matmul(a.to(gpu), b.to(gpu)), exact), 2e-6);
  cuda::set_allow_tf32(true);
  EXPECT_LE(difference(matmul(a.to(gpu), b.to(gpu)), exact), 5e-3);
}

TEST_F(CudaMatmul, half_types_sum_in_float32) {
  for (const DType dtype : {kFloat16, kBFloat16}) {  // float16 counts in ones up to 2048, bfloat16 up to 256
    const Tensor ones_of = ones({8, 8192}, {.dtype = dtype, .device = gpu});
    EXPECT_EQ(matmul(ones_of, ones_of.transpose(0, 1)).to(kCpu).to(kFloat64).min().item<double>(), 8192)
        << to_string(dtype);
  }
}

TEST_F(CudaMatmul, a_product_repeats_its_bits) {
  // long sums, which are split
  const Tensor a = numbers({31, 20000}, 1).to(gpu), b = numbers({20000, 33}, 2).to(gpu);
  const Tensor first = matmul(a, b).to(kCpu);
  for (int i = 0; i < 5; ++i) {
    const Tensor again = matmul(a, b).to(kCpu);
    EXPECT_EQ(std::memcmp(first.raw(), again.raw(), static_cast<size_t>(first.numel()) * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace weft
