// Clipping of gradients: against PyTorch's values, without waiting, and folded into the step.
#include <cmath>

#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using namespace optim;
using testing::close;
using testing::Golden;
using testing::same_bits;

TEST(Clip, matches_pytorch) {
  const Golden all("clip");
  for (const std::string& name : all.names()) {
    if (name.size() < 9 || name.compare(name.size() - 9, 9, "out.total") != 0) continue;
    const std::string label = name.substr(0, name.size() - 10);
    const Golden g = all.at(label);
    std::vector<Tensor> params;
    for (int i = 0; g.has("in.g" + std::to_string(i)); ++i) {
      Tensor p = zeros_like(g["in.g" + std::to_string(i)]).requires_grad_();
      p.set_grad(g["in.g" + std::to_string(i)].clone());
      params.push_back(p);
    }
    const std::string about = all.metadata("case." + label);
    const auto option = [&](const std::string& key, double fallback) {
      const size_t at = about.find(key + "=");
      if (at == std::string::npos) return fallback;
      const std::string text = about.substr(at + key.size() + 1);
      return text.compare(0, 3, "inf") == 0 ? static_cast<double>(INFINITY) : std::stod(text);
    };
    const double total =
        clip_grad_norm(params, option("max_norm", 0.25), option("norm_type", option("p", 2)));
    EXPECT_NEAR(total, g["out.total"].item<double>(), 1e-5 * total) << label << ": " << about;
    for (size_t i = 0; i < params.size(); ++i)
      EXPECT_TRUE(close(params[i].grad(), g["out.g" + std::to_string(i)])) << label;
  }
}

TEST(Clip, the_norm_of_three_and_four_is_five) {
  Tensor p = zeros({2}).requires_grad_(), q = zeros({3}).requires_grad_();
  p.set_grad(tensor({3., 4.}));
  EXPECT_EQ(clip_grad_norm(std::vector<Tensor>{p, q}, 0.25), 5);
  EXPECT_TRUE(close(p.grad(), tensor({0.14999997, 0.19999996}), 0, 1e-7));
  EXPECT_FALSE(q.grad().defined());
  p.set_grad(tensor({INFINITY, 1.}));
  EXPECT_THROW(clip_grad_norm(std::vector<Tensor>{p}, 1, 2, true), ValueError);
  EXPECT_THROW(clip_grad_norm(std::vector<Tensor>{p}, -1), ValueError);
  p.set_grad(tensor({3., -4.}));
  clip_grad_value(std::vector<Tensor>{p, q}, 3.5);
  EXPECT_TRUE(close(p.grad(), tensor({3., -3.5}), 0, 0));
}

TEST(Clip, the_norm_that_does_not_wait_is_the_same_number) {
  Tensor p = zeros({2}).requires_grad_(), q = zeros({2, 2}).requires_grad_();
  p.set_grad(tensor({3., 4.}));
  EXPECT_EQ(clip_grad_norm_async(std::vector<Tensor>{p, q}, 10).item<double>(), 5);
  EXPECT_TRUE(close(p.grad(), tensor({3., 4.}), 0, 0));
  q.set_grad(tensor({0., 0., 0., 12.}).reshape({2, 2}).transpose(0, 1));  // not contiguous
  EXPECT_EQ(clip_grad_norm_async(std::vector<Tensor>{p, q}, 1.3).item<double>(), 13);
  EXPECT_TRUE(close(q.grad(), tensor({0., 0., 0., 1.2}).reshape({2, 2}), 0, 1e-6));
  EXPECT_EQ(clip_grad_norm_async(std::vector<Tensor>{zeros({2}).requires_grad_()}, 1).item<double>(), 0);
  EXPECT_THROW(clip_grad_norm_async(std::vector<Tensor>{p}, 1, 0), ValueError);
}

template <class Opt> void clipped_steps_agree(const typename Opt::Options& options, DType dtype) {
  Generator dice(11);
  std::vector<Tensor> one, two;
  for (const int64_t size : {1, 37, 70000}) {
    one.push_back(randn({size}, {.dtype = dtype}, &dice).requires_grad_());
    two.push_back(one.back().detach().clone().requires_grad_());
  }
  one.push_back(ones({3}, {.dtype = dtype}).requires_grad_());  // without a gradient
  two.push_back(ones({3}, {.dtype = dtype}).requires_grad_());
  Opt folded(one, options), apart(two, options);
  for (const double most : {1e6, 0.25, 0.5}) {
    for (size_t i = 0; i < 3; ++i) {
      one[i].set_grad(randn(one[i].sizes(), {.dtype = dtype}, &dice));
      two[i].set_grad(one[i].grad().clone());
    }
    const Tensor before = one[1].grad().clone();
    const Tensor norm = folded.step_clipped(most);
    EXPECT_EQ(norm.item<double>(), clip_grad_norm(two, most));
    apart.step();
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(same_bits(one[i], two[i])) << Opt(one, options).name() << " " << i << " at most " << most;
    EXPECT_TRUE(same_bits(one[1].grad(), before));
  }
}

TEST(Clip, a_step_that_clips_gives_the_bits_of_a_clip_and_a_step) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    clipped_steps_agree<SGD>({.lr = 0.1}, dtype);
    clipped_steps_agree<SGD>({.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-2, .nesterov = true}, dtype);
    clipped_steps_agree<Adam>({.lr = 0.1, .weight_decay = 1e-2}, dtype);
  }
}

TEST(Clip, a_step_that_clips_refuses_before_it_changes) {
  Tensor p = ones({2}).requires_grad_();
  SGD sgd({p}, {.lr = 1});
  sgd.step_clipped(1);  // no gradient
  p.set_grad(tensor({3., 4.}));
  EXPECT_THROW(sgd.step_clipped(-1), ValueError);
  EXPECT_THROW(sgd.step_clipped(1, 0), ValueError);
  EXPECT_THROW(sgd.step(std::vector<Tensor>{p.grad()}, Tensor(), ones({2}, {.dtype = kFloat64})), ValueError);
  EXPECT_THROW(sgd.step(std::vector<Tensor>{p.grad()}, Tensor(), ones({})), ValueError);
  EXPECT_TRUE(close(p, tensor({1., 1.}), 0, 0));
  EXPECT_EQ(sgd.step_clipped(2.5).item<double>(), 5);
  EXPECT_TRUE(close(p, tensor({-0.5, -1.}), 0, 1e-6));
}

}  // namespace
}  // namespace weft
