// Gradients that may not be written: clipping and unscaling refuse them before they change any.
#include <weft/weft.h>

#include "../support/errors.h"

namespace weft::optim {
namespace {

using test::error_of;
using test::has;

TEST(WrittenGradients, those_in_memory_that_is_only_read_are_refused_and_none_is_changed) {
  const float g[] = {30, 40};
  const auto given = [&](bool half) {
    const Tensor p = ones({2}, {.requires_grad = true}), q = ones({2}, {.requires_grad = true});
    p.set_grad(full({2}, 5));
    q.set_grad(half ? ones({1}).expand({2}) : from_blob(g, {2}));
    return std::vector<Tensor>{p, q};
  };
  const auto refused = [&](const char* name, auto&& f) {
    for (const bool twice : {false, true}) {
      const std::vector<Tensor> params = given(twice);
      const auto call = [&] { f(params); };
      EXPECT_TRUE(has(twice ? error_of<ShapeError>(call) : error_of<ValueError>(call), name));
      EXPECT_EQ(params[0].grad().to_vector<float>(), (std::vector<float>{5, 5}));
    }
    EXPECT_EQ(g[0], 30);
    EXPECT_EQ(g[1], 40);
  };
  refused("clip_grad_norm", [](const std::vector<Tensor>& p) { clip_grad_norm(p, 1); });
  refused("clip_grad_norm", [](const std::vector<Tensor>& p) { clip_grad_norm(p, 1, 2, true); });
  refused("clip_grad_norm", [](const std::vector<Tensor>& p) { clip_grad_norm_async(p, 1); });
  refused("clip_grad_value", [](const std::vector<Tensor>& p) { clip_grad_value(p, 1); });
  refused("unscale", [](const std::vector<Tensor>& p) {
    GradScaler scaler;
    scaler.unscale(p);
  });
}

}  // namespace
}  // namespace weft::optim
