// Parameters of a half type with float32 masters: each step equals that of a float32 run whose parameters are
// rounded. Also saved states, writes from elsewhere, clipping, loss scaling, and the refusals.
#include <unistd.h>

#include <filesystem>
#include <limits>

#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft::optim {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

constexpr DType kHalves[] = {kBFloat16, kFloat16};

Tensor entry(const StateDict& state, const std::string& name) {
  for (const auto& [key, tensor] : state)
    if (key == name) return tensor;
  ADD_FAILURE() << "no entry " << name;
  return {};
}

/// A parameter of a half type, and its twin in float32 that takes the same gradients.
struct Pair {
  Tensor half, wide;
  Generator draws;
  Pair(DType type, int64_t n, uint64_t seed) : draws(seed) {
    half = randn({n}, {}, &draws).to(type).requires_grad_();
    wide = half.detach().to(kFloat32).requires_grad_();
  }
  void new_gradients(double scale = 1) {
    half.set_grad((randn(half.sizes(), {}, &draws) * scale).to(half.dtype()));
    wide.set_grad(half.grad().to(kFloat32));
  }
  ::testing::AssertionResult agree() const {
    return same_bits(half.detach(), wide.detach().to(half.dtype()));
  }
};

template <class Opt> void expect_rounded_float32(typename Opt::Options options) {
  for (const DType type : kHalves) {
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<Tensor> halves, wides;
    for (const int64_t n : {1, 7, 515, 70001}) {
      pairs.push_back(std::make_unique<Pair>(type, n, static_cast<uint64_t>(n)));
      halves.push_back(pairs.back()->half), wides.push_back(pairs.back()->wide);
    }
    Opt b(wides, options);
    options.master_weights = true;
    Opt a(halves, options);
    for (int step = 0; step < 4; ++step) {
      for (const auto& p : pairs) p->new_gradients();
      a.step(), b.step();
      for (const auto& p : pairs) ASSERT_TRUE(p->agree()) << a.name() << " " << type << " step " << step;
    }
    EXPECT_EQ(a.kernel_calls(), 4);
    const StateDict left = a.state_dict(), right = b.state_dict();
    EXPECT_EQ(left.size(), right.size() + halves.size());
    for (const auto& [name, tensor] : right) EXPECT_TRUE(same_bits(entry(left, name), tensor)) << name;
    for (size_t i = 0; i < wides.size(); ++i)
      EXPECT_TRUE(same_bits(entry(left, std::to_string(i) + ".master_param"), wides[i].detach()));
  }
}

TEST(MasterWeights, every_rule_steps_as_in_float32_and_rounds_once) {
#define WEFT_ROUNDED(Name, ...) expect_rounded_float32<Name>({.lr = 0.01});
  WEFT_OPTIMIZER_RULES(WEFT_ROUNDED)
#undef WEFT_ROUNDED
  expect_rounded_float32<SGD>({.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  expect_rounded_float32<AdamW>({.lr = 0.01, .amsgrad = true});
}

TEST(MasterWeights, a_thousand_updates_that_a_half_type_loses_add_up) {
  for (const DType type : kHalves) {
    const Tensor p = ones({5}, {.dtype = type}).requires_grad_(), g = ones({5}, {.dtype = type});
    Tensor lost = ones({5}, {.dtype = type});
    SGD sgd({p}, {.lr = 1e-5, .master_weights = true});
    p.set_grad(g);
    for (int step = 0; step < 1000; ++step) {
      sgd.step();
      lost.sub_(g * 1e-5);
    }
    EXPECT_TRUE(equal(lost, ones({5}, {.dtype = type}))) << "else the test shows nothing";
    const Tensor master = entry(sgd.state_dict(), "0.master_param");
    EXPECT_NEAR(master.min().item<float>(), 0.99, 1e-4);
    EXPECT_TRUE(same_bits(p.detach(), master.to(type)));
    EXPECT_LT(p.max().item<float>(), 0.995) << type;
  }
}

TEST(MasterWeights, float32_and_float64_parameters_are_stepped_as_without_them) {
  for (const DType type : {kFloat32, kFloat64}) {
    const Tensor p = ones({3}, {.dtype = type}).requires_grad_();
    Adam adam({p}, {.lr = 0.1, .master_weights = true});
    p.set_grad(ones({3}, {.dtype = type}));
    adam.step();
    for (const auto& [name, tensor] : adam.state_dict()) EXPECT_FALSE(has(name, "master")) << name;
  }
}

TEST(MasterWeights, a_value_from_elsewhere_is_the_masters_new_value) {
  Pair p(kBFloat16, 600, 1);
  Adam a({p.half}, {.lr = 1e-3, .master_weights = true}), b({p.wide}, {.lr = 1e-3});
  for (int step = 0; step < 3; ++step) {
    p.new_gradients();
    a.step(), b.step();
  }
  {
    const NoGrad guard;  // one of them is written, and the others keep the bits that bfloat16 lacks
    Tensor(p.half).select(0, 7).fill_(3);
    Tensor(p.wide).select(0, 7).fill_(3);
  }
  p.new_gradients();
  a.step(), b.step();
  EXPECT_TRUE(p.agree());
  EXPECT_TRUE(same_bits(entry(a.state_dict(), "0.master_param"), p.wide.detach()));
}

TEST(MasterWeights, a_module_that_is_moved_to_a_half_type_trains_on) {
  nn::Linear layer(6, 4);
  Adam adam(layer.parameters(), {.lr = 0.01, .master_weights = true});
  const auto learn = [&] {
    layer.zero_grad();
    layer.forward(full({2, 6}, 0.5, layer.weight.dtype())).square().sum().backward();
    adam.step();
  };
  learn();
  layer.to(kBFloat16);
  learn();
  const Tensor master = entry(adam.state_dict(), "0.master_param");
  EXPECT_EQ(master.dtype(), kFloat32);
  EXPECT_EQ(entry(adam.state_dict(), "0.exp_avg").dtype(), kFloat32);
  EXPECT_TRUE(same_bits(layer.weight.detach(), master.to(kBFloat16)));
  layer.to(kFloat32);
  learn();
  for (const auto& [name, tensor] : adam.state_dict()) EXPECT_FALSE(has(name, "master")) << name;
}

TEST(MasterWeights, a_parameter_that_a_graph_holds_gets_a_fresh_block) {
  const Tensor w = tensor({1., 2., 3.}, {.dtype = kBFloat16}).requires_grad_();
  mark_concurrent(w);
  const Tensor y = (w * w).sum();
  const void* const before = w.raw();
  SGD sgd({w}, {.lr = 1, .master_weights = true});
  sgd.step(std::vector<Tensor>{ones({3}, {.dtype = kBFloat16})});
  EXPECT_NE(w.raw(), before);
  EXPECT_EQ(w.detach().to_vector<double>(), (std::vector<double>{0, 1, 2}));
  y.backward();
  EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{2, 4, 6}));
}

// ---- saved states

struct HalfRun {
  nn::Linear layer{9, 5};
  std::unique_ptr<AdamW> adam;
  Generator draws{7};
  HalfRun() {
    layer.to(kBFloat16);
    adam = std::make_unique<AdamW>(layer.parameters(), AdamWOptions{.lr = 1e-4, .master_weights = true});
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      layer.zero_grad();
      layer.forward(randn({3, 9}, {}, &draws).to(kBFloat16)).square().sum().backward();
      adam->step();
    }
  }
  std::vector<CheckpointPart> parts() { return {{"model", layer}, {"adam", *adam}, {"draws", draws}}; }
};

TEST(MasterWeights, a_checkpoint_carries_the_masters_bit_for_bit) {
  const auto path = std::filesystem::temp_directory_path() / str("weft-masters-", getpid(), ".safetensors");
  HalfRun through, resumed;
  through.steps(3);
  save_checkpoint(path, through.parts());
  const Tensor saved = entry(through.adam->state_dict(), "0.master_param").clone();
  EXPECT_FALSE(equal(saved, saved.to(kBFloat16).to(kFloat32))) << "else the test shows nothing";
  through.steps(4);
  resumed.steps(1);
  load_checkpoint(path, resumed.parts());
  std::filesystem::remove(path);
  EXPECT_TRUE(same_bits(entry(resumed.adam->state_dict(), "0.master_param"), saved));
  resumed.steps(4);
  const StateDict left = through.adam->state_dict(), right = resumed.adam->state_dict();
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) EXPECT_TRUE(same_bits(entry(right, name), tensor)) << name;
  EXPECT_TRUE(same_bits(resumed.layer.weight, through.layer.weight));
}

TEST(MasterWeights, a_state_without_the_masters_and_one_with_masters_of_float32_are_refused) {
  HalfRun run;
  run.steps(2);
  StateDict state = run.adam->state_dict();
  std::erase_if(state, [](const auto& one) { return one.first == "0.master_param"; });
  EXPECT_TRUE(has(error_of<ValueError>([&] { run.adam->load_state_dict(state); }),
                  "parameter 0 has taken 2 steps, and 2 of its 3 tensors"));
  nn::Linear wide(9, 5);
  AdamW other(wide.parameters(), {.master_weights = true});
  EXPECT_TRUE(has(error_of<ValueError>([&] { other.load_state_dict(run.adam->state_dict()); }),
                  "no state called '0.master_param'"));
  state = run.adam->state_dict();
  for (auto& [name, tensor] : state)
    if (name == "1.master_param") tensor = ones({4});
  EXPECT_TRUE(has(error_of<ShapeError>([&] { run.adam->load_state_dict(state); }), "1.master_param is [4]"));
}

/// Saves a layer that was moved to a half type after a step, and resumes it.
void expect_saved_between_steps(AdamOptions before) {
  const auto path = std::filesystem::temp_directory_path() / str("weft-moved-", getpid(), ".safetensors");
  const AdamOptions after{.lr = 1e-4, .master_weights = true};
  nn::Linear layer(6, 4), other(6, 4);
  Adam adam(layer.parameters(), before);
  const auto learn = [](const nn::Linear& l, Adam& by) {
    l.zero_grad();
    l.forward(full({2, 6}, 0.5, l.weight.dtype())).square().sum().backward();
    by.step();
  };
  learn(layer, adam);
  layer.to(kBFloat16);
  adam.set_options(0, after);
  save_checkpoint(path, {{"model", layer}, {"adam", adam}});
  EXPECT_TRUE(same_bits(entry(adam.state_dict(), "0.master_param"), layer.weight.detach().to(kFloat32)));
  other.to(kBFloat16);
  Adam resumed(other.parameters(), after);
  load_checkpoint(path, {{"model", other}, {"adam", resumed}});
  std::filesystem::remove(path);
  adam.load_state_dict(adam.state_dict());
  for (int step = 0; step < 3; ++step) learn(layer, adam), learn(other, resumed);
  for (const auto& [name, tensor] : adam.state_dict())
    EXPECT_TRUE(same_bits(entry(resumed.state_dict(), name), tensor)) << name;
}

TEST(MasterWeights, a_parameter_of_a_half_type_has_a_master_in_a_state_before_its_first_step) {
  expect_saved_between_steps({.lr = 0.01, .master_weights = true});
  expect_saved_between_steps({.lr = 0.01});
}

// ---- clipping, loss scaling, recorded steps

TEST(MasterWeights, a_clipped_step_multiplies_in_float32) {
  Pair p(kBFloat16, 1000, 3);
  Adam a({p.half}, {.lr = 0.01, .master_weights = true}), b({p.wide}, {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    p.new_gradients(10);
    const Tensor before = p.half.grad().clone();
    const double norm = a.step_clipped(0.3).item<double>();
    EXPECT_NEAR(norm, b.step_clipped(0.3).item<double>(), 1e-12 * norm);
    EXPECT_TRUE(p.agree()) << step;
    EXPECT_TRUE(same_bits(p.half.grad(), before));
  }
}

TEST(MasterWeights, clip_grad_norm_scales_gradients_of_a_half_type_in_place) {
  Pair p(kBFloat16, 1000, 4);
  p.new_gradients(10);
  clip_grad_norm(std::vector<Tensor>{p.half}, 0.5);
  p.wide.set_grad(p.half.grad().to(kFloat32));
  Adam a({p.half}, {.lr = 0.01, .master_weights = true}), b({p.wide}, {.lr = 0.01});
  a.step(), b.step();
  EXPECT_TRUE(p.agree());
}

/// Gradients of 1e-9, which float16 holds only while they are scaled.
Tensor small_loss(const Tensor& p, double factor = 1) { return (p.to(kFloat32) * (1e-9 * factor)).sum(); }

TEST(MasterWeights, a_scaled_loss_keeps_gradients_that_float16_loses) {
  const Tensor p = ones({70}, {.dtype = kFloat16}).requires_grad_();
  SGD sgd({p}, {.lr = 1e7, .master_weights = true});
  GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    scaler.scale(small_loss(p)).backward();
    scaler.step(sgd);
    EXPECT_FALSE(scaler.found_nonfinite());
    scaler.update();
  }
  EXPECT_NEAR(entry(sgd.state_dict(), "0.master_param").mean().item<float>(), 0.97, 1e-4);
  EXPECT_EQ(sgd.steps(0), 3);
}

TEST(MasterWeights, an_overflow_skips_the_step_and_leaves_the_masters) {
  for (const bool clipped : {false, true}) {
    const Tensor p = ones({70}, {.dtype = kFloat16}).requires_grad_();
    SGD sgd({p}, {.lr = 1e7, .master_weights = true});
    GradScaler scaler({.init_scale = 1024});
    const auto step = [&](double factor) {
      sgd.zero_grad();
      scaler.scale(small_loss(p, factor)).backward();
      if (clipped) scaler.step_clipped(sgd, 1);
      else scaler.step(sgd);
      const bool found = scaler.found_nonfinite();
      scaler.update();
      return found;
    };
    EXPECT_FALSE(step(100));
    const Tensor kept = p.detach().clone();
    const Tensor master = entry(sgd.state_dict(), "0.master_param").clone();
    EXPECT_TRUE(step(std::numeric_limits<double>::infinity()));
    EXPECT_EQ(scaler.scale(), 512);
    EXPECT_EQ(sgd.steps(0), 1);
    EXPECT_TRUE(same_bits(p.detach(), kept));
    EXPECT_TRUE(same_bits(entry(sgd.state_dict(), "0.master_param"), master));
    EXPECT_FALSE(step(100));
    EXPECT_EQ(sgd.steps(0), 2);
    EXPECT_FALSE(same_bits(p.detach(), kept));
  }
}

TEST(MasterWeights, a_scaled_and_clipped_step_is_that_of_the_unscaled_gradients) {
  Pair p(kFloat16, 500, 6);
  SGD a({p.half}, {.lr = 0.1, .master_weights = true}), b({p.wide}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 256}), off({.enabled = false});
  for (const double max_norm : {0.5, 1e6}) {
    p.new_gradients();
    p.wide.set_grad(p.half.grad().to(kFloat32) / 256);
    const double norm = scaler.step_clipped(a, max_norm).item<double>();
    EXPECT_NEAR(norm, off.step_clipped(b, max_norm).item<double>(), 1e-9 * norm);
    const Tensor master = entry(a.state_dict(), "0.master_param");
    EXPECT_TRUE(testing::close(master, p.wide.detach(), 1e-6, 1e-7));
    scaler.update();
  }
  scaler.unscale(a.parameters());
  EXPECT_TRUE(has(error_of<ValueError>([&] { scaler.step_clipped(a, 1); }), "that are not unscaled"));
  EXPECT_THROW(GradScaler().step_clipped(b, -1), ValueError);
}

TEST(MasterWeights, a_compiled_step_is_replayed) {
  struct Training {
    Tensor w = tensor({0.5, -0.25, 0.75}, {.dtype = kBFloat16}).requires_grad_();
    Adam adam{{w}, {.lr = 1e-3, .master_weights = true}};
    Tensor operator()(const Tensor& x) {
      adam.zero_grad();
      const Tensor loss = square(x * w).sum();
      loss.backward();
      adam.step();
      return loss.detach();
    }
  };
  Training plain, recorded;
  auto f = compile([&](const Tensor& x) { return recorded(x); });
  for (int i = 0; i < 7; ++i) {
    const Tensor x = full({2, 3}, 0.25 * (i % 3 + 1), kBFloat16);
    EXPECT_TRUE(same_bits(f(x), plain(x))) << i;
    EXPECT_TRUE(same_bits(recorded.w.detach(), plain.w.detach())) << i;
    EXPECT_TRUE(same_bits(entry(recorded.adam.state_dict(), "0.master_param"),
                          entry(plain.adam.state_dict(), "0.master_param")));
  }
  EXPECT_EQ(f.reason(), "");
  EXPECT_GE(f.stats().replays, 3);
}

// ---- row-wise gradients

struct Table {
  nn::Embedding table;
  explicit Table(bool sparse) : table(23, 5, {.sparse = sparse}) {
    table.to(kBFloat16);
    Generator draws(3);
    const NoGrad guard;
    table.weight.copy_(randn({23, 5}, {}, &draws).to(kBFloat16));
  }
  void learn(int64_t t) {
    table.zero_grad();
    const Tensor ids = from_vector<int64_t>({t % 23, (3 * t + 1) % 23, (3 * t + 2) % 23, t % 23}, {4});
    Generator draws(100 + static_cast<uint64_t>(t));
    table.forward(ids).backward(randn({4, 5}, {}, &draws).to(kBFloat16));
  }
};

TEST(MasterWeights, rows_have_the_bits_of_a_dense_step) {
  Table sparse(true), dense(false);
  Adagrad a(sparse.table.parameters(), {.lr = 0.1, .master_weights = true}),
      b(dense.table.parameters(), {.lr = 0.1, .master_weights = true});
  for (int64_t t = 0; t < 12; ++t) {
    sparse.learn(t), dense.learn(t);
    ASSERT_TRUE(sparse.table.weight.row_grad().defined());
    a.step(), b.step();
    ASSERT_TRUE(same_bits(sparse.table.weight, dense.table.weight)) << t;
  }
  EXPECT_TRUE(same_bits(entry(a.state_dict(), "0.master_param"), entry(b.state_dict(), "0.master_param")));
}

TEST(MasterWeights, rows_that_would_stay_behind_are_refused) {
  Table sparse(true);
  SGD sgd(sparse.table.parameters(), {.lr = 0.1, .momentum = 0.9, .master_weights = true});
  sparse.learn(1);
  const Tensor before = sparse.table.weight.detach().clone();
  EXPECT_TRUE(has(error_of<ValueError>([&] { sgd.step(); }), "which a parameter of a half type does not"));
  EXPECT_TRUE(same_bits(sparse.table.weight, before));
}

TEST(MasterWeights, without_the_option_a_half_type_is_refused_by_its_name) {
  const Tensor p = ones({3}, {.dtype = kBFloat16}).requires_grad_();
  EXPECT_TRUE(has(error_of<DTypeError>([&] { SGD({p}, {.lr = 0.1}); }),
                  "SGD: parameter 0 is bfloat16; a step takes float32 and float64, and half types with the "
                  "option master_weights"));
  SGD sgd({p}, {.lr = 0.1, .master_weights = true});
  sgd.set_options(0, {.lr = 0.1});
  p.set_grad(ones({3}, {.dtype = kBFloat16}));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { sgd.step(); }), "option master_weights"));
  EXPECT_EQ(p.detach().to_vector<double>(), std::vector<double>(3, 1));
}

}  // namespace
}  // namespace weft::optim
