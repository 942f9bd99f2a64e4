// Recurrent layers against PyTorch: outputs, gradients of every input and parameter.
#include <functional>

#include <weft/autograd/tape/gradcheck.h>
#include <weft/weft.h>

#include "../support/golden.h"

namespace weft {
namespace {

using nn::Recurrent;
using testing::close;
using testing::Golden;

struct Case {
  const char* file;
  std::function<std::unique_ptr<Recurrent>()> make;
  double tolerance;
};

std::unique_ptr<Recurrent> lstm(nn::RnnOptions o) { return std::make_unique<nn::LSTM>(5, 17, o); }
std::unique_ptr<Recurrent> gru(nn::RnnOptions o) { return std::make_unique<nn::GRU>(5, 17, o); }

const Case kCases[] = {
    {"lstm_1layer", [] { return lstm({}); }, 1e-5},
    {"lstm_1layer_f64", [] { return lstm({.dtype = kFloat64}); }, 1e-12},
    {"lstm_1layer_no_bias", [] { return lstm({.bias = false}); }, 1e-5},
    {"lstm_2layer", [] { return lstm({.num_layers = 2}); }, 1e-5},
    {"lstm_2layer_bidirectional", [] { return lstm({.num_layers = 2, .bidirectional = true}); }, 1e-5},
    {"lstm_batch_first", [] { return lstm({.batch_first = true}); }, 1e-5},
    {"gru_1layer", [] { return gru({}); }, 1e-5},
    {"gru_1layer_f64", [] { return gru({.dtype = kFloat64}); }, 1e-12},
    {"gru_2layer_bidirectional", [] { return gru({.num_layers = 2, .bidirectional = true}); }, 1e-5},
    {"rnn_tanh_1layer", []() -> std::unique_ptr<Recurrent> { return std::make_unique<nn::RNN>(5, 17); },
     1e-5},
    {"rnn_relu_2layer",
     []() -> std::unique_ptr<Recurrent> {
       return std::make_unique<nn::RNN>(5, 17, nn::RnnOptions{.num_layers = 2}, nn::RNN::Nonlinearity::kRelu);
     },
     1e-5},
};

class RecurrentGolden : public ::testing::TestWithParam<Case> {};

TEST_P(RecurrentGolden, matches_pytorch) {
  const Case& c = GetParam();
  const Golden golden(c.file);
  std::unique_ptr<Recurrent> layer = c.make();
  nn::StateDict state;
  for (const auto& [name, p] : layer->named_parameters()) state.emplace_back(name, golden["param." + name]);
  layer->load_state_dict(state);
  layer->to(testing::golden_device());

  Tensor x = golden["in.x"].clone().requires_grad_(), h0 = golden["in.h0"].clone().requires_grad_(), c0;
  const bool cell = golden.has("in.c0");
  if (cell) c0 = golden["in.c0"].clone().requires_grad_();
  const nn::RnnOutput out = layer->forward(x, h0, c0);
  const double t = c.tolerance, a = c.tolerance / 5;
  EXPECT_TRUE(close(out.y, golden["out.y"], t, a));
  EXPECT_TRUE(close(out.h, golden["out.hn"], t, a));
  Tensor total = (out.y * golden["cot.y"]).sum() + (out.h * golden["cot.hn"]).sum();
  if (cell) {
    EXPECT_TRUE(close(out.c, golden["out.cn"], t, a));
    total = total + (out.c * golden["cot.cn"]).sum();
  }
  total.backward();
  EXPECT_TRUE(close(x.grad(), golden["grad.in.x"], t, a));
  EXPECT_TRUE(close(h0.grad(), golden["grad.in.h0"], t, a));
  if (cell) {
    EXPECT_TRUE(close(c0.grad(), golden["grad.in.c0"], t, a));
  }
  for (const auto& [name, p] : layer->named_parameters())
    EXPECT_TRUE(close(p.grad(), golden["grad.param." + name], 2 * t, 10 * a)) << name;
}

INSTANTIATE_TEST_SUITE_P(Files, RecurrentGolden, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.file); });

TEST(Recurrent, one_cell_agrees_with_the_published_numbers) {
  nn::LSTM cell(1, 1, {.dtype = kFloat64});
  cell.load_state_dict({{"weight_ih_l0", tensor({.1, .2, .3, .4}, {.dtype = kFloat64}).view({4, 1})},
                        {"weight_hh_l0", tensor({.5, .6, .7, .8}, {.dtype = kFloat64}).view({4, 1})},
                        {"bias_ih_l0", tensor({.01, .02, .03, .04}, {.dtype = kFloat64})},
                        {"bias_hh_l0", tensor({0., 0., 0., 0.}, {.dtype = kFloat64})}});
  const nn::RnnOutput out = cell.forward(tensor({1., 2.}, {.dtype = kFloat64}).view({2, 1, 1}));
  EXPECT_NEAR(out.y.select(0, 0).item<double>(), 0.101243307370, 1e-12);
  EXPECT_NEAR(out.y.select(0, 1).item<double>(), 0.299092705206, 1e-12);
  EXPECT_NEAR(out.c.item<double>(), 0.445470134909, 1e-12);
}

TEST(Recurrent, rejects_wrong_sizes_and_leaves_state_alone) {
  nn::LSTM layer(5, 7);
  EXPECT_THROW(layer.forward(zeros({3, 2, 4})), ShapeError);
  EXPECT_THROW(layer.forward(zeros({3, 2, 5}), zeros({1, 3, 7})), ShapeError);
  EXPECT_THROW(nn::GRU(5, 7).forward(zeros({3, 2, 5}), {}, zeros({1, 2, 7})), ValueError);
  EXPECT_THROW(nn::LSTM(0, 7), ValueError);
  EXPECT_THROW(nn::LSTM(5, 7, {.dropout = 1.5}), ValueError);
}

TEST(Recurrent, dropout_acts_between_layers_in_training_alone) {
  nn::LSTM layer(3, 5, {.num_layers = 2, .dropout = 0.5});
  layer.seed(7);
  const Tensor x = randn({4, 2, 3});
  const Tensor a = layer.forward(x).y, b = layer.forward(x).y;
  EXPECT_FALSE(equal(a, b));
  layer.eval();
  EXPECT_TRUE(testing::same_bits(layer.forward(x).y, layer.forward(x).y));
}

TEST(Recurrent, the_fused_layer_has_the_gradients_of_finite_differences) {
  nn::LSTM layer(2, 3, {.num_layers = 2, .bidirectional = true, .dtype = kFloat64});
  const Tensor x = randn({3, 2, 2}, {.dtype = kFloat64}).requires_grad_();
  const auto f = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{layer.forward(in[0]).y}; };
  EXPECT_TRUE(gradcheck(f, {x}));
}

}  // namespace
}  // namespace weft
