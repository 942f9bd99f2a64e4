// The seam of fused steps with rules written as a user would write them, and sums of powers and scaling over
// lists of tensors.
#include "arrays.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <weft/kernels/step_cpu.h>

namespace weft::test {
namespace {

struct Plain {
  static constexpr int kState = 0;
  double lr = 0.1;
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
struct Momentum {
  static constexpr int kState = 1;
  double lr = 0.1, m = 0.9;
  template <class V> void operator()(V& p, const V& g, V* state) const {
    state[0] = m * state[0] + g;
    p -= lr * state[0];
  }
};
struct Moments {
  static constexpr int kState = 2;
  double lr = 0.01, b1 = 0.9, b2 = 0.99, eps = 1e-8;
  template <class V> void operator()(V& p, const V& g, V* state) const {
    state[0] = b1 * state[0] + (1 - b1) * g;
    state[1] = b2 * state[1] + (1 - b2) * g * g;
    p = p - lr * state[0] / (sqrt(state[1]) + eps);
  }
};
/// Moments, whose numbers were rounded before.
struct RoundedMoments {
  static constexpr int kState = 2;
  Hyper lr = 0.01, b1 = 0.9, enters1 = 1 - 0.9, b2 = 0.99, enters2 = 1 - 0.99, eps = 1e-8;
  template <class V> void operator()(V& p, const V& g, V* state) const {
    state[0] = b1 * state[0] + enters1 * g;
    state[1] = b2 * state[1] + enters2 * g * g;
    p = p - lr * state[0] / (sqrt(state[1]) + eps);
  }
};
/// Uses everything that a vector offers.
struct Everything {
  static constexpr int kState = 1;
  template <class V> void operator()(V& p, const V& g, V* state) const {
    V a = max(g, V(-0.5)) + min(p, V(0.5)), b = abs(g - 1) / 2;
    a *= 3;
    b += 1;
    a /= b;
    const auto inside = (g < 0.5) & (g > -0.5);
    const auto outside = ~inside | (p >= 0.9) | (p <= -0.9) | (p == g);
    state[0] = select(outside, -a, b);
    p = select(g <= p, p + state[0], p);
  }
};
double everything_state(double p, double g) {
  const double a = 3 * (std::max(g, -0.5) + std::min(p, 0.5)) / (std::abs(g - 1) / 2 + 1),
               b = std::abs(g - 1) / 2 + 1;
  const bool outside = !(g < 0.5 && g > -0.5) || p >= 0.9 || p <= -0.9 || p == g;
  return outside ? -a : b;
}

/// Runs `steps` updates of one tensor with guard zones, against the same rule in double.
template <class T, class F>
void check(const char* name, const F& rule, int64_t count, bool fresh_block, auto&& reference) {
  SCOPED_TRACE(str(name, " ", dtype_of<T>, " ", count, " elements, fresh block ", fresh_block));
  Array<T> p({count}), out({count}), g({count}), s0({count}), s1({count});
  p.random(1), g.random(2), s0.fill(0), s1.fill(0);
  const std::vector<char> before = p.bytes(), gradient = g.bytes();
  std::vector<double> want(static_cast<size_t>(count)), state0(static_cast<size_t>(count)),
      state1(static_cast<size_t>(count));
  for (size_t i = 0; i < want.size(); ++i) want[i] = p.at(static_cast<int64_t>(i));
  const StepKernel kernel = make_step_kernel<F>(name);
  EXPECT_EQ(kernel.state_count, F::kState);
  Context c;
  for (int step = 0; step < 3; ++step) {
    StepTensor t;
    t.param = p.data(), t.grad = g.data(), t.state[0] = s0.data(), t.state[1] = s1.data(), t.numel = count,
    t.hyper = &rule;
    if (fresh_block) t.out = out.data();
    cpu().step(c, kernel, dtype_of<T>, {&t, 1});
    for (size_t i = 0; i < want.size(); ++i)
      reference(want[i], g.at(static_cast<int64_t>(i)), state0[i], state1[i]);
    if (fresh_block) {
      EXPECT_TRUE(p.bytes() == before);
      break;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_NEAR((fresh_block ? out : p).at(i), want[at], tolerance<T>(10)) << i;
    ASSERT_NEAR(s0.at(i), state0[at], tolerance<T>(10)) << i;
    ASSERT_NEAR(s1.at(i), state1[at], tolerance<T>(10)) << i;
  }
  EXPECT_TRUE(g.bytes() == gradient) << "the gradient changed";
}

template <class T> void check_all(int64_t count, bool fresh_block) {
  check<T>("plain", Plain{}, count, fresh_block, [](double& p, double g, double&, double&) { p -= 0.1 * g; });
  check<T>("momentum", Momentum{}, count, fresh_block,
           [](double& p, double g, double& m, double&) { p -= 0.1 * (m = 0.9 * m + g); });
  check<T>("moments", Moments{}, count, fresh_block, [](double& p, double g, double& m, double& v) {
    m = 0.9 * m + (1 - 0.9) * g;
    v = 0.99 * v + (1 - 0.99) * g * g;
    p -= 0.01 * m / (std::sqrt(v) + 1e-8);
  });
}

TEST(Step, a_rule_gives_the_same_as_a_plain_loop_under_every_instruction_set) {
  each_isa([] {
    for (int64_t count : {0, 1, 3, 7, 8, 15, 16, 17, 31, 67, 1009, 70001})
      for (bool fresh_block : {false, true}) {
        check_all<float>(count, fresh_block);
        check_all<double>(count, fresh_block);
      }
  });
}

TEST(Step, every_function_of_a_vector_works) {
  each_isa([] {
    const auto reference = [](double& p, double g, double& s, double&) {
      s = everything_state(p, g);
      if (g <= p) p += s;
    };
    check<double>("everything", Everything{}, 211, true, reference);
    check<float>("everything", Everything{}, 211, true, reference);
  });
}

template <class F, class T> std::vector<char> bits_of_a_step(const F& rule) {
  Array<T> p({1009}), g({1009}), s0({1009}), s1({1009});
  p.random(1), g.random(2), s0.random(3), s1.fill(0.5);
  StepTensor t;
  t.param = p.data(), t.grad = g.data(), t.state[0] = s0.data(), t.state[1] = s1.data(), t.numel = 1009,
  t.hyper = &rule;
  Context c;
  cpu().step(c, make_step_kernel<F>("moments"), dtype_of<T>, {&t, 1});
  return join({p.bytes(), s0.bytes(), s1.bytes()});
}

TEST(Step, a_number_that_was_rounded_before_gives_the_bits_of_a_double) {
  each_isa([] {
    EXPECT_TRUE((bits_of_a_step<Moments, float>({}) == bits_of_a_step<RoundedMoments, float>({})));
    EXPECT_TRUE((bits_of_a_step<Moments, double>({}) == bits_of_a_step<RoundedMoments, double>({})));
  });
  EXPECT_EQ(Hyper(0.1).as<float>(), 0.1f);
  EXPECT_EQ(Hyper(0.1).as<double>(), 0.1);
}

/// Three steps of Moments over a master, against the same over float32.
template <class H> void check_master(int64_t count, bool fresh_block) {
  const auto n = static_cast<size_t>(count);
  std::vector<H> p(n), out(n), g(n);
  for (size_t i = 0; i < n; ++i)
    p[i] = H(static_cast<float>(std::sin(static_cast<double>(i)))),
    g[i] = H(static_cast<float>(std::cos(static_cast<double>(3 * i))));
  std::vector<float> wide(p.begin(), p.end()), gradient(g.begin(), g.end()), s0(n), s1(n), t0(n), t1(n);
  std::vector<float> master(n);  // not yet the parameter's values
  const Moments rule;
  const StepKernel kernel = make_step_kernel<Moments>("moments");
  Context c;
  for (int step = 0; step < 3; ++step) {
    StepTensor half, full;
    half.param = p.data(), half.grad = g.data(), half.master = master.data(), half.hyper = &rule;
    half.state[0] = s0.data(), half.state[1] = s1.data(), half.numel = count;
    if (fresh_block) half.out = out.data();
    full.param = wide.data(), full.grad = gradient.data(), full.hyper = &rule;
    full.state[0] = t0.data(), full.state[1] = t1.data(), full.numel = count;
    cpu().step(c, kernel, dtype_of<H>, {&half, 1});
    cpu().step(c, kernel, kFloat32, {&full, 1});
    if (fresh_block) p.swap(out);
    EXPECT_TRUE(master == wide && s0 == t0 && s1 == t1);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(p[i].bits, H(wide[i]).bits) << i;
  }
}

TEST(Step, a_parameter_of_a_half_type_gets_the_rounded_values_of_its_master) {
  each_isa([] {
    for (int64_t count : {0, 1, 7, 8, 511, 512, 513, 70001})
      for (bool fresh_block : {false, true}) {
        check_master<BFloat16>(count, fresh_block);
        check_master<Half>(count, fresh_block);
      }
  });
}

struct Abs {
  static constexpr int kState = 0;
  template <class V> void operator()(V& p, const V& g, V*) const { p = abs(g) + sqrt(abs(g)); }
};

TEST(Step, special_values_pass_through_abs_max_and_sqrt) {
  each_isa([] {
    float p[5] = {}, g[5] = {-0.0f, -4, std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(), 9};
    const Abs rule;
    StepTensor t;
    t.param = p, t.grad = g, t.numel = 5, t.hyper = &rule;
    Context c;
    cpu().step(c, make_step_kernel<Abs>("abs"), kFloat32, {&t, 1});
    EXPECT_EQ(p[0], 0.0f);
    EXPECT_FALSE(std::signbit(p[0]));
    EXPECT_EQ(p[1], 6.0f);
    EXPECT_TRUE(std::isinf(p[2]) && std::isinf(p[3]));
    EXPECT_EQ(p[4], 12.0f);
  });
}

struct Counter {
  static constexpr int kState = 0;
  double value = 0;
  template <class V> void operator()(V& p, const V&, V*) const { p += value; }
};

TEST(Step, one_call_takes_many_tensors_each_with_its_own_hyper_parameters) {
  each_isa([] {
    const std::vector<int64_t> sizes = {3, 0, 70001, 1, 65536, 17, 131072, 0, 5};
    std::vector<std::unique_ptr<Array<float>>> params;
    std::vector<Counter> rules(sizes.size());
    std::vector<StepTensor> list(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      params.push_back(std::make_unique<Array<float>>(Shape{sizes[i]}));
      params[i]->fill(0);
      rules[i].value = static_cast<double>(i + 1);
      list[i].param = params[i]->data(), list[i].grad = params[i]->data(), list[i].numel = sizes[i],
      list[i].hyper = &rules[i];
    }
    Context c;
    cpu().step(c, make_step_kernel<Counter>("counter"), kFloat32, list);
    for (size_t i = 0; i < sizes.size(); ++i)
      for (int64_t k = 0; k < sizes[i]; ++k)
        ASSERT_EQ((*params[i])[k], static_cast<float>(i + 1)) << i << " " << k;
    cpu().step(c, make_step_kernel<Counter>("counter"), kFloat32, {});
  });
}

TEST(Step, has_the_same_bits_for_any_thread_count) {
  each_isa([] {
    expect_same_bits_for_any_thread_count([] {
      Array<float> p({300007}), g({300007}), m({300007}), v({300007});
      p.random(1), g.random(2), m.fill(0), v.fill(0);
      const Moments rule;
      StepTensor t;
      t.param = p.data(), t.grad = g.data(), t.state[0] = m.data(), t.state[1] = v.data(),
      t.numel = p.numel(), t.hyper = &rule;
      Context c;
      cpu().step(c, make_step_kernel<Moments>("moments"), kFloat32, {&t, 1});
      View views[2] = {p.view(), g.view()};
      double sums[2];
      cpu().powers(c, 2, views, sums);
      cpu().scale(c, 0.3, views);
      std::vector<char> raw(sizeof sums);
      std::memcpy(raw.data(), sums, sizeof sums);
      return join({p.bytes(), m.bytes(), v.bytes(), g.bytes(), raw});
    });
  });
}

template <class T> void check_powers() {
  SCOPED_TRACE(to_string(dtype_of<T>));
  std::vector<std::unique_ptr<Array<T>>> arrays;
  std::vector<View> views;
  for (int64_t size : {0, 1, 5, 33, 131, 140001}) {
    arrays.push_back(std::make_unique<Array<T>>(Shape{size}));
    arrays.back()->random(static_cast<uint64_t>(size) + 1);
    views.push_back(arrays.back()->view());
  }
  const double inf = std::numeric_limits<double>::infinity();
  for (double p : {0.0, 1.0, 2.0, 3.0, 0.5, inf}) {
    std::vector<double> out(views.size(), -1);
    Context c;
    cpu().powers(c, p, views, out.data());
    for (size_t i = 0; i < views.size(); ++i) {
      double want = 0;
      for (int64_t k = 0; k < arrays[i]->numel(); ++k) {
        const double a = std::abs(arrays[i]->at(k));
        want = p == inf ? std::max(want, a) : want + (p == 0 ? (a != 0 ? 1 : 0) : std::pow(a, p));
      }
      EXPECT_NEAR(out[i], want, 1e-12 * (1 + want)) << "p " << p << " tensor " << i;
    }
  }
}

TEST(Step, powers_are_summed_in_double_for_every_floating_type) {
  each_isa([] {
    check_powers<float>();
    check_powers<double>();
    check_powers<Half>();
    check_powers<BFloat16>();
  });
}

TEST(Step, the_largest_magnitude_is_nan_when_one_element_is) {
  each_isa([] {
    Array<float> x({140001});
    x.random(1);
    x[70001] = std::numeric_limits<float>::quiet_NaN();
    const View view = x.view();
    double out[2] = {};
    Context c;
    cpu().powers(c, std::numeric_limits<double>::infinity(), {&view, 1}, out);
    EXPECT_TRUE(std::isnan(out[0]));
    cpu().powers(c, 2, {&view, 1}, out + 1);
    EXPECT_TRUE(std::isnan(out[1]));
  });
}

TEST(Step, scale_multiplies_every_element_of_every_tensor) {
  each_isa([] {
    Array<float> a({37}), b({70001});
    Array<Half> h({19});
    a.fill(3), b.fill(-2), h.fill(4);
    const View views[3] = {a.view(), b.view(), h.view()};
    Context c;
    cpu().scale(c, 0.25, views);
    for (int64_t i = 0; i < 37; ++i) EXPECT_EQ(a.at(i), 0.75);
    for (int64_t i = 0; i < 70001; ++i) ASSERT_EQ(b.at(i), -0.5);
    for (int64_t i = 0; i < 19; ++i) EXPECT_EQ(h.at(i), 1);
  });
}

}  // namespace
}  // namespace weft::test
