// Optimizer steps of the CUDA backend against the CPU's, over lists of tensors of odd sizes: clipped, skipped
// and by a rule written as a user would. Also the error of a rule without a CUDA form. list_test.cpp has the
// other work on lists.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/kernels/cuda/step_cuda.h>
#include <weft/kernels/step_cpu.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>
#include "simt/compare.h"
#include "support/errors.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

constexpr int64_t kSizes[] = {1, 3, 0, 257, 1024, 1025, 4099, 16, 31, 2048};

/// Uses everything that a vector offers.
struct Everything {
  static constexpr int kState = 1;
  double rate = 0.5;
  template <class V> WEFT_HD void operator()(V& p, const V& g, V* state) const {
    V a = max(g, V(-0.5)) + min(p, V(0.5)), b = abs(g - 1) / 2;
    a *= 3;
    b += 1;
    a /= b;
    const auto inside = (g < 0.5) & (g > -0.5);
    const auto outside = ~inside | (p >= 0.9) | (p <= -0.9) | (p == g);
    state[0] = select(outside, -a, b);
    p = select(g <= p, p + rate * state[0], p) - sqrt(abs(g));
  }
};
struct Unknown {
  static constexpr int kState = 0;
  template <class V> void operator()(V& p, const V& g, V*) const { p -= g; }
};
struct Twice : Unknown {};
WEFT_STEP_CUDA(Everything)
WEFT_STEP_CUDA_AS("Twice", Everything)
WEFT_STEP_CUDA_AS("Twice", Everything)

/// A list of parameters with their gradients and states on both sides. `shift` puts all of the memory off the
/// borders of packs.
struct List {
  std::vector<std::unique_ptr<Operand>> memory;  // per tensor: parameter, fresh block, gradient, states
  std::vector<StepTensor> host, on_device;
  int each;

  List(DType dtype, int states, bool fresh, int64_t shift) : each(3 + states) {
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      StepTensor h, d;
      for (int k = 0; k < each; ++k) {
        memory.push_back(std::make_unique<Operand>(dtype, Shape{kSizes[i]}, Shape{1}, shift));
        // no variance near 0
        memory.back()->random(k < 3    ? -1
                              : k == 3 ? 0.5
                                       : 0,
                              k == 5 ? 0.3 : 1, static_cast<uint32_t>(7 * i) + static_cast<uint32_t>(k));
        const View a = memory.back()->host(), b = memory.back()->on_device();
        if (k == 0) h.param = a.data, d.param = b.data;
        if (k == 1 && fresh && i % 2 == 0) h.out = a.data, d.out = b.data;
        if (k == 2) h.grad = a.data, d.grad = b.data;
        if (k > 2) h.state[k - 3] = a.data, d.state[k - 3] = b.data;
      }
      h.numel = d.numel = kSizes[i];
      host.push_back(h), on_device.push_back(d);
    }
  }
  /// The functors of all tensors, `bytes` apart.
  void set_functors(const std::byte* at, size_t bytes) {
    for (size_t i = 0; i < host.size(); ++i) host[i].hyper = on_device[i].hyper = at + i * bytes;
  }
};

/// Two steps on both sides; make(place, i) constructs the functor of tensor i.
template <class Make> void compare_steps(const StepKernel& kernel, size_t functor_bytes, const Make& make) {
  const size_t bytes = (functor_bytes + 63) / 64 * 64;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> functors(std::size(kSizes) * bytes / 64);
  std::byte* const at = functors.front().bytes;
  for (size_t i = 0; i < std::size(kSizes); ++i) make(at + i * bytes, i);
  for (const DType t : {kFloat32, kFloat64})
    for (const bool fresh : {false, true})
      for (const int64_t shift : {0, 1}) {
        List list(t, kernel.state_count, fresh, shift);
        list.set_functors(at, bytes);
        Context c;
        for (int step = 0; step < 2; ++step) {
          backend(kCpu).step(c, kernel, t, list.host);
          const int64_t before = simt::launches();
          backend(device().device()).step(c, kernel, t, list.on_device);
          EXPECT_EQ(simt::launches() - before, 1) << kernel.name;
        }
        for (size_t i = 0; i < list.memory.size(); ++i)
          expect_same(*list.memory[i], t == kFloat64 ? 1e-13 : 2e-6,
                      str(kernel.name, " of ", t, " fresh ", fresh, " shift ", shift, ", tensor ",
                          i / static_cast<size_t>(list.each), " part ", i % static_cast<size_t>(list.each)));
      }
}

/// Tensor i has the options make(i) and takes its step number 1 + i.
template <class Rule, class Make> void compare_rule(const Make& make) {
  const optim::Variant v = optim::detail::rule_variant<Rule>(make(0));
  compare_steps(v.kernel, v.functor_bytes, [&](void* place, size_t i) {
    optim::detail::rule_construct<Rule>(place, make(i), static_cast<int64_t>(1 + i));
  });
}

double part(size_t i) { return 0.01 * static_cast<double>(i + 1); }
double decay(size_t i) { return i % 2 == 0 ? 0.0 : part(i); }
bool sometimes(size_t i) { return i % 3 == 0; }

TEST(SimtStep, every_rule_of_the_table_agrees_with_the_cpu_by_default) {
#define WEFT_COMPARE(Name, ...) \
  compare_rule<optim::Name##Rule>([](size_t i) { return optim::Name##Options{.lr = part(i)}; });
  WEFT_OPTIMIZER_RULES(WEFT_COMPARE)
#undef WEFT_COMPARE
}

TEST(SimtStep, every_rule_agrees_with_the_cpu_in_one_launch) {
  using namespace optim;
  compare_rule<SGDRule>(
      [](size_t i) { return SGDOptions{.lr = part(i), .weight_decay = decay(i), .maximize = sometimes(i)}; });
  compare_rule<SGDRule>([](size_t i) {
    return SGDOptions{.lr = part(i),
                      .momentum = 0.9,
                      .dampening = 0.2,
                      .weight_decay = decay(i),
                      .nesterov = i % 2 == 0,
                      .maximize = sometimes(i)};
  });
  for (const WeightDecay type : {WeightDecay::kGrad, WeightDecay::kDirect}) {
    compare_rule<QHMRule>([&](size_t i) {
      return QHMOptions{.lr = part(i), .momentum = 0.9, .weight_decay = decay(i), .weight_decay_type = type};
    });
    compare_rule<QHAdamRule>([&](size_t i) {
      return QHAdamOptions{.lr = part(i),
                           .beta2 = 0.99,
                           .nu1 = 0.7,
                           .nu2 = 0.8,
                           .weight_decay = decay(i),
                           .weight_decay_type = type};
    });
  }
  for (const bool amsgrad : {false, true}) {
    compare_rule<AdamRule>([&](size_t i) {
      return AdamOptions{.lr = part(i),
                         .beta2 = 0.99,
                         .weight_decay = decay(i),
                         .amsgrad = amsgrad,
                         .maximize = sometimes(i)};
    });
    compare_rule<AdamWRule>([&](size_t i) {
      return AdamWOptions{.lr = part(i),
                          .beta2 = 0.99,
                          .weight_decay = decay(i),
                          .amsgrad = amsgrad,
                          .maximize = sometimes(i)};
    });
  }
  compare_rule<RMSpropRule>([](size_t i) {
    return RMSpropOptions{.lr = part(i),
                          .alpha = 0.9,
                          .eps = 1e-3,
                          .weight_decay = decay(i),
                          .momentum = 0.5,
                          .centered = i % 2 == 0,
                          .maximize = sometimes(i)};
  });
  compare_rule<AdagradRule>([](size_t i) {
    return AdagradOptions{
        .lr = part(i), .lr_decay = 0.1, .weight_decay = decay(i), .eps = 1e-8, .maximize = sometimes(i)};
  });
  compare_rule<AdadeltaRule>([](size_t i) {
    return AdadeltaOptions{.lr = part(i), .eps = 1e-3, .weight_decay = decay(i), .maximize = sometimes(i)};
  });
  compare_rule<AdamaxRule>([](size_t i) {
    return AdamaxOptions{
        .lr = part(i), .beta2 = 0.99, .eps = 1e-3, .weight_decay = decay(i), .maximize = sometimes(i)};
  });
  compare_rule<SparseAdamRule>([](size_t i) {
    return SparseAdamOptions{.lr = part(i), .beta2 = 0.99, .eps = 1e-3, .maximize = sometimes(i)};
  });
  compare_rule<RpropRule>([](size_t i) {
    return RpropOptions{.lr = part(i), .step_min = 0.1, .step_max = 0.9, .maximize = sometimes(i)};
  });
}

TEST(SimtStep, a_rule_of_the_user_has_everything_that_a_vector_offers) {
  compare_steps(make_step_kernel<Everything>("Everything"), sizeof(Everything),
                [](void* place, size_t i) { new (place) Everything{part(i)}; });
}

/// The report of the device on a kernel.
std::string step_error(const StepKernel& kernel) {
  Operand p(kFloat32, {3}), g(kFloat32, {3});
  const Unknown rule{};
  StepTensor t;
  t.param = p.on_device().data, t.grad = g.on_device().data, t.numel = 3, t.hyper = &rule;
  Context c;
  return test::error_of<DeviceError>([&] { backend(device().device()).step(c, kernel, kFloat32, {&t, 1}); });
}

TEST(SimtStep, a_rule_without_a_cuda_form_is_told_the_macro) {
  EXPECT_TRUE(test::has(step_error(make_step_kernel<Unknown>("Unknown")), "WEFT_STEP_CUDA(Unknown)"));
  EXPECT_TRUE(test::has(step_error(make_step_kernel<Unknown>("Everything")), "state tensors"));
  EXPECT_TRUE(test::has(step_error(make_step_kernel<Twice>("Twice")), "2 rules of the name Twice"));
}

struct UnknownRule {
  struct Options {
    double lr = 1;
  };
  static constexpr const char* kName = "UnknownRule";
  static constexpr int kState = 1;
  double lr;
  UnknownRule(const Options& o, int64_t) : lr(o.lr) {}
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};

TEST(SimtStep, an_optimizer_without_a_cuda_form_is_left_as_it_was) {
  const Device gpu(DeviceType::kCuda, 0);
  Tensor p = ones({5}).to(gpu).requires_grad_();
  p.set_grad(ones({5}).to(gpu));
  optim::Fused<UnknownRule> opt({p});
  EXPECT_THROW(opt.step(), DeviceError);
  EXPECT_EQ(opt.steps(0), 0);
  EXPECT_EQ(p.detach().to(kCpu).to_vector<double>(), std::vector<double>(5, 1));
}

/// Parameters of odd sizes with gradients, on a device.
std::vector<Tensor> sine_parameters(Device where, DType dtype) {
  std::vector<Tensor> params;
  for (const int64_t n : {3, 130, 1, 4099}) {
    std::vector<double> values, grads;
    for (int64_t k = 0; k < n; ++k)
      values.push_back(std::sin(static_cast<double>(k + n))),
          grads.push_back(std::cos(static_cast<double>(3 * k + n)));
    Tensor p = from_vector(values, {n}).to(dtype).to(where).requires_grad_();
    p.set_grad(from_vector(grads, {n}).to(dtype).to(where));
    params.push_back(p);
  }
  return params;
}

void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double relative) {
  for (size_t i = 0; i < got.size(); ++i) {
    const auto a = got[i].detach().to(kCpu).to_vector<double>(), b = want[i].detach().to_vector<double>();
    for (size_t k = 0; k < a.size(); ++k)
      ASSERT_NEAR(a[k], b[k], relative * (1 + std::abs(b[k]))) << "parameter " << i << " element " << k;
  }
}

TEST(SimtStep, training_with_clipping_follows_the_cpu) {
  for (const DType t : {kFloat32, kFloat64}) {
    const std::vector<Tensor> here = sine_parameters(kCpu, t),
                              there = sine_parameters(Device(DeviceType::kCuda, 0), t);
    optim::Adam a(here, {.lr = 0.01, .weight_decay = 0.1}), b(there, {.lr = 0.01, .weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      optim::clip_grad_norm(here, 0.5);
      const Tensor norm = optim::clip_grad_norm_async(there, 0.5);
      EXPECT_FALSE(norm.device().is_cpu());
      a.step();
      const int64_t before = simt::launches();
      b.step();
      if (step > 0) {
        EXPECT_EQ(simt::launches() - before, 1);
      }  // the first one makes the state
    }
    expect_close(there, here, t == kFloat64 ? 1e-12 : 2e-6);
  }
}

TEST(SimtStep, gradients_in_any_order_in_memory_are_clipped_without_waiting) {
  const Tensor values = arange(0, 15, 1, {.dtype = kFloat32}).view({3, 5}) - 4;
  const auto make = [&](Device where, bool turned) {
    Tensor p = zeros({5, 3}).to(where).requires_grad_(), q = zeros({2}).to(where).requires_grad_();
    p.set_grad(turned ? values.clone().to(where).t() : values.t().contiguous().to(where));
    q.set_grad(ones({2}).to(where));
    return std::vector<Tensor>{p, q};
  };
  const std::vector<Tensor> here = make(kCpu, false);
  const double total = optim::clip_grad_norm(here, 0.5);
  for (const Device where : {Device(kCpu), Device(DeviceType::kCuda, 0)}) {
    const std::vector<Tensor> there = make(where, true);
    ASSERT_FALSE(there[0].grad().is_contiguous());
    const Tensor norm = optim::clip_grad_norm_async(there, 0.5);
    EXPECT_EQ(norm.device(), where);
    EXPECT_NEAR(norm.item<double>(), total, 1e-12 * total);
    expect_close({there[0].grad(), there[1].grad()}, {here[0].grad(), here[1].grad()}, 2e-6);
  }
}

TEST(SimtStep, a_concurrent_parameter_that_a_graph_holds_gets_a_fresh_block) {
  const Device gpu(DeviceType::kCuda, 0);
  Tensor w = tensor({1., 2., 3.}).to(gpu).requires_grad_();
  mark_concurrent(w);
  const Tensor y = (w * w).sum();
  const void* const before = w.raw();
  optim::SGD sgd({w}, {.lr = 1});
  sgd.step(std::vector<Tensor>{tensor({1., 1., 1.}).to(gpu)});
  EXPECT_NE(w.raw(), before);
  EXPECT_EQ(w.detach().to(kCpu).to_vector<double>(), (std::vector<double>{0, 1, 2}));
  y.backward();
  EXPECT_EQ(w.grad().to(kCpu).to_vector<double>(), (std::vector<double>{2, 4, 6}));
}

TEST(SimtStep, a_skipped_step_changes_nothing_and_fills_fresh_blocks) {
  const Device gpu(DeviceType::kCuda, 0);
  Tensor w = tensor({1., 2., 3.}).to(gpu).requires_grad_(), v = tensor({4.}).to(gpu).requires_grad_();
  mark_concurrent(w);
  const Tensor y = (w * w).sum();  // holds w's block
  optim::Adam adam({w, v}, {.lr = 1});
  const std::vector<Tensor> grads{tensor({1., 1., 1.}).to(gpu), tensor({1.}).to(gpu)};
  EXPECT_THROW(adam.step(grads, ones({2}, {.dtype = kFloat64})), ValueError);
  adam.step(grads, scalar_tensor(1.0, {.dtype = kFloat64, .device = gpu}));
  EXPECT_EQ(adam.steps(0), 0);
  EXPECT_EQ(w.detach().to(kCpu).to_vector<double>(), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(v.detach().to(kCpu).to_vector<double>(), (std::vector<double>{4}));
  adam.step(grads, scalar_tensor(0.0, {.dtype = kFloat64}));  // on another device
  EXPECT_EQ(adam.steps(0), 1);
  EXPECT_EQ(adam.steps(1), 1);
  EXPECT_NEAR(v.item<double>(), 3, 1e-6);  // a first step of Adam goes by the rate
  y.backward();
  EXPECT_EQ(w.grad().to(kCpu).to_vector<double>(), (std::vector<double>{2, 4, 6}));
}

TEST(SimtStep, a_step_that_clips_gives_the_bits_of_a_clip_and_a_step) {
  const Device gpu(DeviceType::kCuda, 0);
  Generator dice(5);
  std::vector<Tensor> one, two;
  for (const int64_t size : {3, 5000}) {
    const Tensor value = randn({size}, {}, &dice), grad = randn({size}, {}, &dice);
    for (std::vector<Tensor>* list : {&one, &two}) {
      list->push_back(value.to(gpu).clone().requires_grad_());
      list->back().set_grad(grad.to(gpu).clone());
    }
  }
  const optim::AdamOptions options{.lr = 0.1, .weight_decay = 0.01};
  optim::Adam folded(one, options), apart(two, options);
  for (const double most : {0.25, 1e6}) {
    const Tensor norm = folded.step_clipped(most);
    EXPECT_EQ(norm.device(), gpu);
    EXPECT_EQ(norm.item<double>(), optim::clip_grad_norm_async(two, most).item<double>());
    apart.step();
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_EQ(one[i].detach().to(kCpu).to_vector<float>(), two[i].detach().to(kCpu).to_vector<float>());
    for (size_t i = 0; i < one.size(); ++i) two[i].set_grad(one[i].grad().clone());
  }
}

}  // namespace
}  // namespace weft::cuda
