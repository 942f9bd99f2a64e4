// ModuleList and ModuleDict: dotted names, typed access, and refusals.
#include <weft/weft.h>

#include <memory>
#include <sstream>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

struct Block : nn::Module {
  nn::Linear linear{3, 3};
  nn::Dropout drop{0.5};
  Block() {
    add("linear", linear);
    add("drop", drop);
  }
  Tensor forward(const Tensor& x) { return x + drop.forward(tanh(linear.forward(x))); }
};

struct Tower : nn::Module {
  nn::ModuleList blocks;
  nn::ModuleDict heads;
  explicit Tower(int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) blocks.append<Block>();
    heads.insert<nn::Linear>("value", 3, 1);
    heads.insert<nn::Linear>("policy", 3, 2, nn::LinearOptions{.bias = false});
    add("blocks", blocks);
    add("heads", heads);
  }
  Tensor forward(Tensor x, const std::string& head) {
    for (Block& block : blocks.each<Block>()) x = block.forward(x);
    return heads.at<nn::Linear>(head).forward(x);
  }
};

std::vector<std::string> names_of(const nn::StateDict& state) {
  std::vector<std::string> out;
  for (const auto& entry : state) out.push_back(entry.first);
  return out;
}

TEST(Containers, name_their_modules_by_number_and_by_key) {
  Tower tower(2);
  EXPECT_EQ(names_of(tower.state_dict()),
            (std::vector<std::string>{"blocks.0.linear.weight", "blocks.0.linear.bias",
                                      "blocks.1.linear.weight", "blocks.1.linear.bias", "heads.value.weight",
                                      "heads.value.bias", "heads.policy.weight"}));
  EXPECT_EQ(tower.to_string().substr(0, 42), "Module(\n  (blocks): ModuleList(\n    (0): M")
      << tower.to_string();
}

TEST(Containers, modules_compute_in_order_and_get_gradients) {
  Tower tower(3);
  tower.eval();
  EXPECT_FALSE(tower.blocks.at<Block>(2).drop.is_training());
  const Tensor x = randn({5, 3});
  Tensor y = x;
  for (size_t i = 0; i < 3; ++i) {
    const nn::Linear& l = tower.blocks.at<Block>(i).linear;
    y = y + tanh(linear(y, l.weight, l.bias));
  }
  const nn::Linear& head = tower.heads.at<nn::Linear>("policy");
  EXPECT_TRUE(same_bits(tower.forward(x, "policy"), linear(y, head.weight, Tensor())));
  tower.forward(x, "policy").sum().backward();
  EXPECT_TRUE(tower.blocks.at<Block>(0).linear.weight.grad().defined());
  EXPECT_FALSE(tower.heads.at<nn::Linear>("value").weight.grad().defined());
}

TEST(Containers, state_travels_and_streams_are_keyed_by_the_dotted_name) {
  Tower a(2), b(2);
  b.load_state_dict(a.state_dict());
  a.seed(7);
  b.seed(7);
  const Tensor x = randn({5, 3});
  EXPECT_TRUE(same_bits(a.forward(x, "value"), b.forward(x, "value")));
  EXPECT_THROW(Tower(3).load_state_dict(a.state_dict()), ValueError);
}

TEST(Containers, take_modules_of_several_kinds_and_made_elsewhere) {
  nn::ModuleList list;
  EXPECT_TRUE(list.empty());
  nn::Linear& made = list.append(std::make_unique<nn::Linear>(2, 3));
  list.append<nn::ReLU>();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(&list.at<nn::Linear>(0), &made);
  EXPECT_EQ(list[1].name(), "ReLU");
  EXPECT_EQ(&list.each<nn::Module>()[0].get(), &made);
  nn::ModuleDict dict;
  dict.insert("relu", std::make_unique<nn::ReLU>());
  dict.insert<nn::Tanh>("tanh");
  EXPECT_EQ(dict.keys(), (std::vector<std::string>{"relu", "tanh"}));
  EXPECT_TRUE(dict.contains("tanh") && !dict.contains("gelu"));
}

TEST(Containers, are_walked_over_and_lists_count_from_the_end) {
  nn::ModuleList list;
  nn::Sequential net;
  nn::ModuleDict dict;
  EXPECT_TRUE(list.begin() == list.end() && dict.begin() == dict.end());
  list.append<nn::ReLU>(), list.append<nn::Tanh>();
  net.append<nn::ReLU>(), net.append<nn::Tanh>();
  dict.insert<nn::ReLU>("a"), dict.insert<nn::Tanh>("b");
  std::string names;
  for (nn::Module& module : list) names += module.name() + " ";
  for (const nn::Module& module : net) names += module.name() + " ";
  for (const auto& [key, module] : dict) names += str(key, "=", module.name(), " ");
  EXPECT_EQ(names, "ReLU Tanh ReLU Tanh a=ReLU b=Tanh ");
  EXPECT_EQ(&list[-1], &list[1]);
  EXPECT_EQ(&list.at<nn::ReLU>(-2), &list[0]);
  EXPECT_EQ(error_of<IndexError>([&] { list[-3]; }), "ModuleList: index -3 is outside [-2, 2)");
}

TEST(Containers, refuse_by_key_and_kind_and_change_nothing) {
  nn::ModuleList list;
  list.append<nn::ReLU>();
  EXPECT_EQ(error_of<IndexError>([&] { list.at<nn::ReLU>(1); }), "ModuleList: index 1 is outside [-1, 1)");
  EXPECT_EQ(error_of<ValueError>([&] { list.each<nn::Linear>(); }),
            "module '0' is a ReLU, not of the type that was asked for");
  EXPECT_THROW(list.append(std::unique_ptr<nn::Module>()), ValueError);
  EXPECT_EQ(list.size(), 1u);
  nn::ModuleDict dict;
  dict.insert<nn::ReLU>("relu");
  EXPECT_TRUE(has(error_of<IndexError>([&] { dict["gelu"]; }), "no module 'gelu'; there are: relu"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { dict.at<nn::Tanh>("relu"); }), "module 'relu' is a ReLU"));
  for (const std::string key : {"relu", "", "a.b"})
    EXPECT_THROW(dict.insert<nn::Tanh>(key), ValueError) << key;
  EXPECT_THROW(dict.insert("none", std::unique_ptr<nn::Module>()), ValueError);
  EXPECT_EQ(dict.keys(), std::vector<std::string>{"relu"});
  EXPECT_EQ(dict.named_modules().size(), 2u);
}

struct Stack : nn::Module {
  std::vector<nn::Linear> layers;
  explicit Stack(int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) {
      layers.emplace_back(3, 3);
      add(str("l", i), layers.back());
    }
  }
  Tensor forward(Tensor x) const {
    for (const nn::Linear& layer : layers) x = layer.forward(x);
    return x;
  }
};

TEST(Containers, a_vector_of_layers_grows_and_keeps_its_names) {
  Stack stack(5);
  EXPECT_EQ(names_of(stack.state_dict()),
            (std::vector<std::string>{"l0.weight", "l0.bias", "l1.weight", "l1.bias", "l2.weight", "l2.bias",
                                      "l3.weight", "l3.bias", "l4.weight", "l4.bias"}));
  const auto modules = stack.named_modules();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(modules[i + 1].second, &stack.layers[i]);
  stack.eval();
  EXPECT_FALSE(stack.layers[0].is_training());
  stack.forward(randn({2, 3})).sum().backward();
  for (const Tensor& p : stack.parameters()) EXPECT_TRUE(p.grad().defined());
}

TEST(Containers, a_moved_model_is_the_same_model) {
  std::vector<Stack> models;
  for (int64_t depth = 1; depth <= 4; ++depth) models.emplace_back(depth);  // grows twice, with models inside
  for (size_t i = 0; i < models.size(); ++i) {
    EXPECT_EQ(models[i].parameters().size(), 2 * (i + 1));
    EXPECT_EQ(models[i].named_modules().back().second, &models[i].layers.back());
  }
  Stack from(2);
  const Tensor x = randn({2, 3}), y = from.forward(x);
  from.seed(3);
  const uint64_t seed = from.layers[1].generator().seed();
  Stack to = std::move(from);
  EXPECT_TRUE(same_bits(to.forward(x), y));
  EXPECT_EQ(to.layers[1].generator().seed(), seed);
  EXPECT_EQ(from.parameters().size(), 0u);
  EXPECT_EQ(from.named_modules().size(), 1u);
}

TEST(Containers, a_moved_list_and_sequential_keep_their_modules) {
  nn::Sequential net;
  net.append<nn::Linear>(3, 2);
  const Tensor x = randn({1, 3}), y = net.forward(x);
  nn::Sequential moved = std::move(net);
  moved.append<nn::ReLU>();
  EXPECT_TRUE(same_bits(moved.forward(x), relu(y)));
  nn::ModuleList list;
  list.append<nn::Linear>(3, 2);
  nn::ModuleList other = std::move(list);
  other.append<nn::Linear>(2, 1);
  EXPECT_EQ(names_of(other.state_dict()),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
}

TEST(Containers, a_child_that_is_gone_is_not_listed) {
  struct Owner : nn::Module {
    std::unique_ptr<nn::Linear> head;
    Owner() { renew(3); }
    void renew(int64_t in) {
      head.reset();
      add("head", *(head = std::make_unique<nn::Linear>(in, 1)));
    }
  } owner;
  owner.head.reset();
  EXPECT_EQ(owner.parameters().size(), 0u);
  owner.renew(5);
  EXPECT_EQ(owner.parameters()[0].sizes(), (Shape{1, 5}));
  nn::Linear shared(2, 2);
  {
    struct Borrower : nn::Module {
      explicit Borrower(nn::Linear& layer) { add("once", layer), add("twice", layer); }
    } borrower(shared);
    EXPECT_EQ(names_of(borrower.state_dict()).size(), 4u);
  }
  nn::Linear elsewhere = std::move(shared);  // asks no parent that is gone
  EXPECT_EQ(elsewhere.parameters().size(), 2u);
}

TEST(Containers, modules_go_into_streams) {
  nn::Sequential net;
  net.append<nn::Linear>(3, 2);
  std::ostringstream out;
  out << net << " " << nn::ReLU();
  EXPECT_EQ(out.str(), "Sequential(\n  (0): Linear(in=3, out=2)\n) ReLU");
}

}  // namespace
}  // namespace weft
