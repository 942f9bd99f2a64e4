// Cells stepped through a sequence against PyTorch's layers of one, and against their own formulas.
#include <weft/autograd/tape/gradcheck.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::close;
using testing::Golden;
using testing::same_bits;

/// "weight_ih" of "param.weight_ih_l0".
void load_layer(nn::RecurrentCell& cell, const Golden& golden) {
  nn::StateDict state;
  for (const auto& [name, p] : cell.named_parameters())
    state.emplace_back(name, golden["param." + name + "_l0"]);
  cell.load_state_dict(state);
  cell.to(testing::golden_device());
}

/// Steps `cell` through in.x and compares outputs and gradients with the layer's. `step` gives {h, c} of x,
/// h, c.
template <class Cell, class Step> void compare(const char* file, Cell&& cell, Step step, double t) {
  const Golden golden(file);
  load_layer(cell, golden);
  const Tensor x = golden["in.x"].clone().requires_grad_(), h0 = golden["in.h0"].clone().requires_grad_();
  nn::CellState state{h0.select(0, 0), {}};
  if (golden.has("in.c0")) state.c = golden["in.c0"].select(0, 0);
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < x.size(0); ++i) {
    state = step(cell, x.select(0, i), state);
    ys.push_back(state.h);
  }
  const Tensor y = stack(ys, 0);
  EXPECT_TRUE(close(y, golden["out.y"], t, t / 5)) << file;
  Tensor total = (y * golden["cot.y"]).sum() + (state.h * golden["cot.hn"].select(0, 0)).sum();
  if (state.c.defined()) total = total + (state.c * golden["cot.cn"].select(0, 0)).sum();
  total.backward();
  EXPECT_TRUE(close(x.grad(), golden["grad.in.x"], t, t)) << file;
  EXPECT_TRUE(close(h0.grad(), golden["grad.in.h0"], t, t)) << file;
  for (const auto& [name, p] : cell.named_parameters())
    EXPECT_TRUE(close(p.grad(), golden["grad.param." + name + "_l0"], 2 * t, 10 * t)) << file << name;
}

nn::CellState lstm_step(const nn::LSTMCell& cell, const Tensor& x, const nn::CellState& s) {
  return cell.forward(x, s.h, s.c);
}
template <class Cell> nn::CellState plain_step(const Cell& cell, const Tensor& x, const nn::CellState& s) {
  return {cell.forward(x, s.h), {}};
}

TEST(RecurrentCell, stepped_through_a_sequence_is_the_layer_of_pytorch) {
  compare("lstm_1layer", nn::LSTMCell(5, 17), lstm_step, 1e-5);
  compare("lstm_1layer_f64", nn::LSTMCell(5, 17, {.dtype = kFloat64}), lstm_step, 1e-12);
  compare("lstm_1layer_no_bias", nn::LSTMCell(5, 17, {.bias = false}), lstm_step, 1e-5);
  compare("gru_1layer", nn::GRUCell(5, 17), plain_step<nn::GRUCell>, 1e-5);
  compare("gru_1layer_f64", nn::GRUCell(5, 17, {.dtype = kFloat64}), plain_step<nn::GRUCell>, 1e-12);
  compare("rnn_tanh_1layer", nn::RNNCell(5, 17), plain_step<nn::RNNCell>, 1e-5);
}

TEST(RecurrentCell, relu_is_the_plain_formula) {
  const nn::RNNCell cell(3, 4, {.dtype = kFloat64}, nn::RNNCell::Nonlinearity::kRelu);
  const Tensor x = randn({2, 3}, {.dtype = kFloat64}), h = randn({2, 4}, {.dtype = kFloat64});
  EXPECT_TRUE(close(cell.forward(x, h),
                    relu(linear(x, cell.weight_ih, cell.bias_ih) + linear(h, cell.weight_hh, cell.bias_hh)),
                    1e-12, 1e-12));
}

TEST(RecurrentCell, parameters_have_the_names_and_sizes_of_pytorch) {
  const auto names = [](const nn::Module& cell) {
    std::string out;
    for (const auto& [name, p] : cell.named_parameters()) out += str(name, p.sizes(), " ");
    return out;
  };
  EXPECT_EQ(names(nn::LSTMCell(3, 5)), "weight_ih[20, 3] weight_hh[20, 5] bias_ih[20] bias_hh[20] ");
  EXPECT_EQ(names(nn::GRUCell(3, 5, {.bias = false})), "weight_ih[15, 3] weight_hh[15, 5] ");
  EXPECT_EQ(nn::GRUCell(3, 5, {.bias = false}).name(), "GRUCell(3, 5, bias=false)");
}

TEST(RecurrentCell, absent_states_are_zeros_and_one_sample_is_a_batch_of_one) {
  const nn::LSTMCell lstm(3, 5);
  const nn::GRUCell gru(3, 5);
  const Tensor x = randn({2, 3});
  const auto [h, c] = lstm.forward(x);
  const auto [h0, c0] = lstm.forward(x, zeros({2, 5}), zeros({2, 5}));
  EXPECT_TRUE(same_bits(h, h0) && same_bits(c, c0));
  EXPECT_TRUE(same_bits(gru.forward(x), gru.forward(x, zeros({2, 5}))));
  const auto [one, cell] = lstm.forward(x[1]);
  EXPECT_TRUE(same_bits(one, lstm.forward(x.narrow(0, 1, 1)).h[0]));
  EXPECT_EQ(cell.sizes(), Shape({5}));
  EXPECT_EQ(gru.forward(x[1], one).sizes(), Shape({5}));
  EXPECT_EQ(gru.forward(zeros({0, 3})).sizes(), Shape({0, 5}));
}

TEST(RecurrentCell, gradients_pass_the_finite_differences) {
  const nn::LSTMCell cell(2, 3, {.dtype = kFloat64});
  const TensorOptions f64{.dtype = kFloat64};
  const auto f = [&](const std::vector<Tensor>& in) {
    const auto [h, c] = cell.forward(in[0], in[1], in[2]);
    return std::vector<Tensor>{h, c};
  };
  EXPECT_TRUE(gradcheck(f, {randn({2, 2}, f64).requires_grad_(), randn({2, 3}, f64).requires_grad_(),
                            randn({2, 3}, f64).requires_grad_()}));
}

TEST(RecurrentCell, rejects_wrong_sizes_and_types) {
  const nn::GRUCell cell(3, 5);
  EXPECT_TRUE(has(error_of<ShapeError>([&] {
                    cell.forward(zeros({2, 4}));
                  }),
                  "GRUCell: x must be [N, 3] or [3], got [2, 4]"));
  EXPECT_TRUE(has(error_of<ShapeError>([&] {
                    cell.forward(zeros({2, 3}), zeros({3, 5}));
                  }),
                  "GRUCell: h must be [2, 5], got [3, 5]"));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { cell.forward(zeros({3}), zeros({1, 5})); }), "h must be [5]"));
  EXPECT_THROW(cell.forward(zeros({2, 3}, {.dtype = kFloat64})), DTypeError);
  EXPECT_THROW(nn::LSTMCell(0, 5), ValueError);
}

TEST(Linear, refuses_an_input_of_another_type) {
  const nn::Linear layer(3, 5);
  const Tensor wide = zeros({2, 3}, {.dtype = kFloat64});
  EXPECT_EQ(error_of<DTypeError>([&] { layer.forward(wide); }),
            "Linear: x is float64, weight is float32; convert one of them with to()");
  EXPECT_THROW(layer.forward(zeros({2, 3}, {.dtype = kInt64})), DTypeError);
  EXPECT_THROW(nn::LayerNorm(3).forward(wide), DTypeError);
  const Autocast half(kBFloat16);
  EXPECT_EQ(layer.forward(zeros({2, 3}, {.dtype = kBFloat16})).dtype(), kBFloat16);
  EXPECT_THROW(layer.forward(wide), DTypeError);
}

TEST(RecurrentCell, errors_about_dtypes_name_the_layer_and_the_argument) {
  const Tensor x = ones({1, 2}, {.dtype = kFloat64});
  const nn::LSTMCell lstm(2, 2);
  const nn::GRUCell gru(2, 2);
  const nn::RNNCell rnn(2, 2);
  const std::string tail = ": x is float64, weight_ih is float32; convert one of them with to()";
  EXPECT_EQ(test::error_of<DTypeError>([&] { lstm.forward(x); }), "LSTMCell" + tail);
  EXPECT_EQ(test::error_of<DTypeError>([&] { gru.forward(x); }), "GRUCell" + tail);
  EXPECT_EQ(test::error_of<DTypeError>([&] { rnn.forward(x); }), "RNNCell(tanh)" + tail);
  EXPECT_EQ(test::error_of<DTypeError>([&] {
              lstm.forward(ones({1, 2}), x);
            }),
            "LSTMCell: h is float64, x is float32; convert one of them with to()");
  EXPECT_TRUE(
      test::has(test::error_of<ValueError>([&] { gru.forward(Tensor()); }),
                "GRUCell: x is undefined: it was never assigned, or it is a grad() that is not there"));
  EXPECT_EQ(test::error_of<DTypeError>([&] { nn::LSTM(2, 2).forward(x.unsqueeze(0)); }),
            "LSTM: x is float64, weight_ih_l0 is float32; convert one of them with to()");
}

}  // namespace
}  // namespace weft
