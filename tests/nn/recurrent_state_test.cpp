// The zero state of recurrent layers follows the parameters.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/nn/nn.h>

namespace weft {
namespace {

TEST(RecurrentState, zero_state_has_the_dtype_of_the_parameters) {
  nn::LSTM layer(3, 5, {.num_layers = 2});
  EXPECT_EQ(layer.zero_state(2).dtype(), kFloat32);
  layer.to(kFloat64);
  const Tensor zero = layer.zero_state(2);
  EXPECT_EQ(zero.dtype(), kFloat64);
  const Tensor x = ones({4, 2, 3}, {.dtype = kFloat64});
  EXPECT_TRUE(equal(layer.forward(x, zero, zero).y, layer.forward(x).y));
}

}  // namespace
}  // namespace weft
