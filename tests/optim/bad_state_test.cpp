// States that an optimizer or a module must refuse: each error names the entry, and nothing changes.
#include <weft/weft.h>

#include "../support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

/// Adam of one weight after two steps, its state with one change, and the error of loading that.
class BadState : public ::testing::Test {
 protected:
  BadState() {
    for (int i = 0; i < 2; ++i) adam.step(std::vector<Tensor>{ones({2})});
    state = adam.state_dict();
  }
  void set(const std::string& name, Tensor value) {
    for (auto& [key, tensor] : state)
      if (key == name) tensor = value;
  }
  void drop(const std::string& name) {
    std::erase_if(state, [&](const auto& entry) { return entry.first == name; });
  }
  template <class E> std::string refused() {
    const std::string text = error_of<E>([&] { adam.load_state_dict(state); });
    EXPECT_EQ(adam.steps(0), 2);
    return text;
  }

  const Tensor w = ones({2}).requires_grad_();
  optim::Adam adam{{w}};
  optim::StateDict state;
};

TEST_F(BadState, steps_below_0) {
  set("0.step", tensor(std::vector<int64_t>{-1}));
  EXPECT_TRUE(has(refused<ValueError>(), "0.step is -1, below 0"));
}

TEST_F(BadState, nothing_at_all) {
  state.clear();
  EXPECT_TRUE(has(refused<ValueError>(), "no entry 'rule.Adam'"));
}

TEST_F(BadState, tensors_without_their_steps) {
  drop("0.step");
  EXPECT_TRUE(has(refused<ValueError>(), "parameter 0 has tensors in the state, and no step"));
}

TEST_F(BadState, an_entry_twice) {
  drop("0.exp_avg_sq");
  state.emplace_back("0.exp_avg", ones({2}));
  EXPECT_TRUE(has(refused<ValueError>(), "0.exp_avg twice"));
}

TEST_F(BadState, the_rates_of_fewer_groups) {
  drop("group0.lr");
  EXPECT_TRUE(has(refused<ValueError>(), "the rates of 0 groups, this optimizer has 1"));
}

TEST_F(BadState, values_beyond_the_type_of_the_parameter) {
  set("0.exp_avg_sq", full({2}, 1e300, {.dtype = kFloat64}));
  EXPECT_TRUE(has(refused<DTypeError>(), "0.exp_avg_sq has values that float32"));
  set("0.exp_avg_sq", full({2}, INFINITY, {.dtype = kFloat64}));
  adam.load_state_dict(state);  // an infinity is one in every type
}

TEST_F(BadState, an_undefined_tensor) {
  set("0.exp_avg", Tensor());
  EXPECT_TRUE(has(refused<ValueError>(), "0.exp_avg is an undefined tensor"));
}

TEST(BadModuleState, is_refused_by_the_name_of_the_entry) {
  nn::Linear layer(1, 1);
  const Tensor one = ones({1, 1}), bias = ones({1});
  EXPECT_TRUE(has(error_of<ValueError>([&] {
                    layer.load_state_dict({{"weight", one}, {"weight", one * 2}, {"bias", bias}});
                  }),
                  "the state has weight twice"));
  EXPECT_TRUE(has(error_of<ValueError>([&] {
                    layer.load_state_dict({{"bias", Tensor()}}, false);
                  }),
                  "bias is an undefined tensor"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] {
                    layer.load_state_dict({{"weight", full({1, 1}, 1e300, kFloat64)}, {"bias", bias}});
                  }),
                  "weight is float32 here, which does not hold the state's float64 values"));
}

struct Holder : nn::Module {
  void hold(const std::string& name, Module& child) { add(name, child); }
};

TEST(BadModuleState, a_module_is_not_registered_below_itself) {
  Holder a, b;
  EXPECT_TRUE(has(error_of<ValueError>([&] { a.hold("self", a); }), "'self' is this module, or contains it"));
  a.hold("b", b);
  EXPECT_THROW(b.hold("a", a), ValueError);
  EXPECT_EQ(a.parameters().size(), 0u);
}

TEST(Numbers, of_a_bernoulli_draw_are_probabilities) {
  const Tensor x = ones({3, 2});
  EXPECT_TRUE(equal(x.bernoulli(0.0), zeros({3, 2})));
  EXPECT_TRUE(equal(zeros({3, 2}).bernoulli(1.0), x));
  EXPECT_EQ(ones({4}, {.dtype = kInt64}).bernoulli(0.5).dtype(), kInt64);
  EXPECT_TRUE(has(error_of<ValueError>([] { Tensor().backward(); }), "backward"));
  EXPECT_EQ(x.amax().item<float>(), 1);
}

}  // namespace
}  // namespace weft
