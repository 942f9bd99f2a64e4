// Few rows by a large row-major weight, with a kept pack above 24 rows and in place without. Weights of half
// types, whose floats are kept.
#include <gtest/gtest.h>

#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/packs.h>
#include <weft/weft.h>

namespace weft {
namespace {

TEST(PacksOfFewRows, have_the_bits_of_a_weight_that_keeps_none) {
  const kernels::GemmEngine engine = kernels::gemm_engine();
  kernels::set_gemm_engine(kernels::GemmEngine::kTile);
  drop_packs();
  for (const DType dtype : {kFloat32, kFloat64})
    for (const int64_t columns : {123, 241, 700})  // one vector more than whole blocks, and a part of one
      for (const int64_t rows : {1, 24, 25, 40, 48, 49}) {
        SCOPED_TRACE(str(dtype, ", ", rows, " rows, ", columns, " columns"));
        const Tensor few = randn({rows, 600}, {.dtype = dtype});
        const Tensor weight = randn({600, columns}, {.dtype = dtype}).requires_grad_();
        const Tensor want = matmul(few, weight.detach().clone());
        const int64_t made = pack_stats().made;
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(matmul(few, weight).detach().equal(want)) << i;
        const int64_t direct = 600 * columns * (dtype == kFloat32 ? 4 : 8) > (1 << 20) ? 24 : 48;
        EXPECT_EQ(pack_stats().made - made, rows > direct ? 1 : 0);
      }
  kernels::set_gemm_engine(engine);
}

/// A row of floats that is made by dot products may differ from the same row among more rows.
TEST(PacksOfHalfTypes, have_the_bits_of_weights_that_keep_none_and_of_row_major_ones) {
  drop_packs();
  for (const DType dtype : {kFloat16, kBFloat16})
    for (const int64_t rows : {1, 12, 40, 100}) {
      SCOPED_TRACE(str(dtype, ", ", rows, " rows"));
      const Tensor x = randn({rows, 600}).to(dtype), weight = randn({70, 600}).to(dtype);
      const Tensor row_major = weight.transpose(0, 1).contiguous(), columns = x.transpose(0, 1).contiguous();
      const Tensor want = matmul(x, row_major);
      EXPECT_TRUE(matmul(columns.transpose(0, 1), weight.transpose(0, 1)).equal(want));
      const int64_t made = pack_stats().made;
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(linear(x, weight).equal(want)) << i;
      EXPECT_EQ(pack_stats().made - made, 1);
      Tensor written = weight;
      written.mul_(2);
      EXPECT_TRUE(linear(x, weight).equal(matmul(x, row_major * 2)));
      const Tensor batch = stack({x, x});
      EXPECT_TRUE(
          matmul(batch, stack({weight, weight}).transpose(1, 2)).select(0, 1).equal(linear(x, weight)));
    }
}

/// The product of one column is one of dots in any layout of b, not of a.
TEST(PacksOfHalfTypes, leave_the_bits_of_one_column) {
  const Tensor x = randn({100, 600}).to(kBFloat16), column = randn({1, 600}).to(kBFloat16);
  const Tensor want = matmul(x, column.transpose(0, 1).contiguous());
  EXPECT_TRUE(linear(x, column).equal(want));
  EXPECT_TRUE(linear(x.transpose(0, 1).contiguous().transpose(0, 1), column).equal(want));
}

}  // namespace
}  // namespace weft
