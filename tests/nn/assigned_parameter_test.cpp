// Parameters that are assigned after construction: the module lists the tensors that its forward uses.
#include <weft/weft.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

Tensor weight_of(double value) { return full({2, 2}, value).requires_grad_(); }

TEST(AssignedParameter, forward_optimizer_and_state_agree) {
  nn::Linear layer(2, 2, {.bias = false});
  layer.weight = weight_of(1);
  ASSERT_TRUE(layer.parameters()[0].is_same(layer.weight));
  EXPECT_TRUE(layer.named_parameters()[0].second.is_same(layer.weight));
  optim::SGD sgd(layer.parameters(), {.lr = 0.5});
  sum(layer.forward(ones({1, 2}))).backward();
  sgd.step();
  EXPECT_EQ(layer.weight.to_vector<float>(), std::vector<float>(4, 0.5f));
  EXPECT_TRUE(same_bits(layer.state_dict()[0].second, layer.weight));
  EXPECT_EQ(layer.forward(ones({1, 2})).to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(AssignedParameter, a_file_has_the_numbers_that_forward_uses_and_loads_into_them) {
  const std::string path = (std::filesystem::temp_directory_path() / "weft_assigned_parameter").string();
  nn::Linear layer(2, 2, {.bias = false});
  layer.weight = weight_of(3);
  layer.save(path);
  nn::Linear loaded(2, 2, {.bias = false});
  loaded.weight = weight_of(0);
  loaded.load(path);
  std::filesystem::remove(path);
  EXPECT_EQ(loaded.weight.to_vector<float>(), std::vector<float>(4, 3.0f));
  EXPECT_EQ(loaded.forward(ones({1, 2})).to_vector<float>(), (std::vector<float>{6, 6}));
  EXPECT_TRUE(same_bits(nn::clone(layer, 2, 2, nn::LinearOptions{.bias = false})->weight, layer.weight));
}

struct TiedNet : nn::Module {
  nn::Linear in{2, 2, {.bias = false}}, out{2, 2, {.bias = false}};
  TiedNet() {
    add("in", in);
    add("out", out);
    out.weight = in.weight;
  }
  Tensor forward(const Tensor& x) const { return out.forward(in.forward(x)); }
};

TEST(AssignedParameter, tied_layers_train_one_tensor_that_is_listed_once) {
  TiedNet net;
  ASSERT_EQ(net.parameters().size(), 1u);
  EXPECT_TRUE(net.parameters()[0].is_same(net.out.weight));
  EXPECT_EQ(net.state_dict().size(), 2u);
  net.in.weight.detach().fill_(1);
  optim::SGD sgd(net.parameters(), {.lr = 0.25});
  sum(net.forward(ones({1, 2}))).backward();
  sgd.step();  // each element: 2 from each layer
  EXPECT_EQ(net.in.weight.to_vector<float>(), std::vector<float>(4, 0.0f));
  EXPECT_TRUE(net.out.weight.is_same(net.in.weight));
  net.to(kFloat64);
  EXPECT_EQ(net.out.weight.dtype(), kFloat64);
  EXPECT_TRUE(net.out.weight.is_same(net.in.weight));
  EXPECT_TRUE(has(error_of<ValueError>([&] {
                    net.load_state_dict({{"in.weight", ones({2, 2})}, {"out.weight", zeros({2, 2})}});
                  }),
                  "are one tensor here"));
}

TEST(AssignedParameter, a_bias_may_be_removed_and_given) {
  nn::Linear layer(2, 2);
  layer.bias = Tensor();
  EXPECT_EQ(layer.parameters().size(), 1u);
  EXPECT_EQ(layer.state_dict().size(), 1u);
  layer.zero_grad();
  layer.to(kFloat64);
  layer.bias = zeros({2}, {.dtype = kFloat64}).requires_grad_();
  EXPECT_EQ(layer.named_parameters()[1].first, "bias");
  nn::LSTMCell cell(2, 2, {.bias = false});
  EXPECT_EQ(cell.parameters().size(), 2u);
  cell.bias_ih = zeros({8}).requires_grad_();
  EXPECT_EQ(cell.named_parameters()[2].first, "bias_ih");
}

TEST(AssignedParameter, a_moved_module_lists_its_new_members) {
  std::vector<nn::Linear> layers;
  for (int i = 0; i < 5; ++i) layers.emplace_back(2, 2);
  for (nn::Linear& layer : layers) {
    EXPECT_TRUE(layer.parameters()[0].is_same(layer.weight));
    layer.weight = weight_of(2);
    EXPECT_TRUE(layer.parameters()[0].is_same(layer.weight));
  }
  const Tensor weight = layers[0].weight;
  const nn::Linear moved = std::move(layers[0]);
  EXPECT_TRUE(moved.parameters()[0].is_same(weight));
  EXPECT_TRUE(layers[0].parameters().empty());   // NOLINT(bugprone-use-after-move)
  const nn::Module base = std::move(layers[1]);  // the members are gone with the layer
  EXPECT_EQ(base.parameters().size(), 2u);
}

struct Scale : nn::Module {
  Tensor scale, seen;
  Scale() {
    add("scale", &Scale::scale, ones({2}));
    add_buffer("seen", &Scale::seen, zeros({}));
  }
};
struct Wider : Scale {
  Tensor more;
  Wider() { add("more", &Wider::more, Tensor()); }
};

TEST(AssignedParameter, a_users_module_registers_its_members) {
  Wider module;
  EXPECT_TRUE(module.scale.requires_grad());
  EXPECT_FALSE(module.seen.requires_grad());
  module.seen = ones({});
  module.more = full({3}, 2.0).requires_grad_();
  EXPECT_TRUE(module.named_buffers()[0].second.is_same(module.seen));
  ASSERT_EQ(module.parameters().size(), 2u);
  EXPECT_TRUE(module.parameters()[1].is_same(module.more));
  struct Twice : nn::Module {
    Tensor a;
    Twice() {
      add("a", &Twice::a, ones({1}));
      add("a", &Twice::a, zeros({1}));
    }
  };
  EXPECT_TRUE(has(error_of<ValueError>([] { Twice(); }), "the name 'a' is registered twice"));
  struct Foreign : nn::Module {
    Foreign() { add("scale", &Scale::scale, ones({1})); }
  };
  EXPECT_TRUE(has(error_of<ValueError>([] { Foreign(); }), "the member of 'scale' belongs to another class"));
}

}  // namespace
}  // namespace weft
