// Few rows by a large row-major weight: with a kept pack above 24 rows, in place without.
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

}  // namespace
}  // namespace weft
