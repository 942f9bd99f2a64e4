// Initialisers refuse the same tensors as the in-place methods, before they draw or write.
#include <weft/weft.h>

#include "../support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
namespace init = nn::init;

TEST(Init, numbers_that_the_type_does_not_hold_are_refused) {
  const Tensor whole = zeros({2}, {.dtype = kInt64}), half = zeros({2}, {.dtype = kFloat16});
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::constant_(whole, 2.5); }), "constant_: the number 2.5"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::constant_(half, 1e6); }), "constant_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::uniform_(half, 0, 1e6); }), "uniform_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::normal_(half, 1e6, 1); }), "normal_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::uniform_(whole); }), "uniform_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::normal_(whole); }), "normal_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { init::orthogonal_(whole.reshape({1, 2})); }), "orthogonal_"));
  EXPECT_EQ(init::constant_(whole, 3).to_vector<int>(), (std::vector<int>{3, 3}));
  EXPECT_EQ(init::zeros_(whole).to_vector<int>(), (std::vector<int>{0, 0}));
  EXPECT_TRUE(has(error_of<ValueError>([] { init::zeros_(Tensor()); }), "constant_"));
}

TEST(Init, memory_that_is_only_read_or_shown_twice_is_refused) {
  const float numbers[] = {1, 2, 3, 4};
  for (const auto& t : {from_blob(numbers, {2, 2}), ones({2, 1}).expand({2, 2})}) {
    const auto refused = [&](const char* name, auto&& f) {
      const bool twice = t.strides()[1] == 0;
      EXPECT_TRUE(has(twice ? error_of<ShapeError>(f) : error_of<ValueError>(f), name));
    };
    refused("constant_", [&] { init::zeros_(t); });
    refused("constant_", [&] { init::ones_(t); });
    refused("uniform_", [&] { init::kaiming_uniform_(t); });
    refused("uniform_", [&] { init::xavier_uniform_(t); });
    refused("normal_", [&] { init::kaiming_normal_(t); });
    refused("normal_", [&] { init::xavier_normal_(t); });
    refused("orthogonal_", [&] { init::orthogonal_(t); });
    EXPECT_EQ(t.to_vector<float>()[0], 1);
  }
  EXPECT_EQ(numbers[3], 4);
}

TEST(Init, parameters_may_be_written) {
  const nn::Linear layer(2, 2);
  init::ones_(layer.weight);
  EXPECT_EQ(layer.weight.sum().item<double>(), 4);
  EXPECT_TRUE(layer.weight.is_leaf());
}

}  // namespace
}  // namespace weft
