// The state of recurrent layers: the zero state follows the parameters, and a sequence given step by step
// ends where the whole one does.
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

/// Single steps read the recurrent weights in place, long sequences pack them.
template <class Layer> void expect_steps_agree(Layer& layer, int64_t batch) {
  NoGrad guard;
  manual_seed(3);
  const Tensor x = randn({12, batch, 7});
  const nn::RnnOutput whole = layer.forward(x);
  Tensor h = layer.zero_state(batch), c = whole.c.defined() ? layer.zero_state(batch) : Tensor();
  for (int64_t t = 0; t < 12; ++t) {
    const nn::RnnOutput one = layer.forward(x.narrow(0, t, 1), h, c);
    h = one.h, c = one.c;
    EXPECT_TRUE(one.y[0].allclose(whole.y[t], 1e-5, 1e-6)) << t;
  }
  EXPECT_TRUE(h.allclose(whole.h, 1e-5, 1e-6));
  if (c.defined()) {
    EXPECT_TRUE(c.allclose(whole.c, 1e-5, 1e-6));
  }
}

TEST(RecurrentState, single_steps_end_where_the_whole_sequence_does) {
  for (const int64_t batch : {1, 2, 5}) {
    manual_seed(2);
    nn::LSTM lstm(7, 70, {.num_layers = 2});
    expect_steps_agree(lstm, batch);
    nn::GRU gru(7, 33);
    expect_steps_agree(gru, batch);
  }
}

}  // namespace
}  // namespace weft
