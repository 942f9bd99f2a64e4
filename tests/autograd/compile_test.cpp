// compile(): the effects that a replay repeats, those that it leaves out, the guards, and the reasons for
// ordinary runs.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <tuple>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/checkpoint.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/tensor/factories.h>

#include "../support/errors.h"
#include "../support/leaf.h"

namespace weft::compile_tests {
namespace {

using test::error_of;
using test::has;
using test::row;
using test::values;
using Numbers = std::vector<double>;

TEST(Compile, the_third_call_is_a_replay_and_runs_no_line_of_f) {
  int runs = 0;
  auto f = compile([&](const Tensor& x) { return ++runs, (x * 2 + 1).tanh(); });
  for (const double v : {1.0, 2.0, 3.0, 4.0}) {
    const Tensor x = row({v, -v});
    EXPECT_EQ(values(f(x)), values((x * 2 + 1).tanh()));
  }
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(f.reason(), "");
  EXPECT_EQ(f.stats().recordings, 2);
  EXPECT_EQ(f.stats().replays, 2);
  EXPECT_EQ(f.stats().eager, 0);
}

TEST(Compile, a_result_is_a_fresh_tensor_at_each_call) {
  auto f = compile([](const Tensor& x) { return x.exp().sum(); });
  std::vector<Tensor> all;
  for (int i = 0; i < 5; ++i) all.push_back(f(full({3}, i, {.dtype = kFloat64})));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(values(all[static_cast<size_t>(i)]), values(full({3}, i, {.dtype = kFloat64}).exp().sum()));
}

TEST(Compile, takes_and_gives_lists_tuples_and_numbers) {
  auto f = compile([](const std::vector<Tensor>& xs, double by, bool twice) {
    const Tensor y = xs[0] * by + xs[1];
    return std::tuple(twice ? y * 2 : y, xs[0].sum());
  });
  for (int i = 0; i < 6; ++i)
    for (const bool twice : {false, true}) {
      const auto [y, s] = f(std::vector{row({1, 2}), row({3.0 + i, 4})}, 10.0, twice);
      EXPECT_EQ(values(y), twice ? (Numbers{26.0 + 2 * i, 48}) : (Numbers{13.0 + i, 24}));
      EXPECT_EQ(values(s), (Numbers{3}));
    }
  EXPECT_EQ(f.stats().recordings, 4);
  EXPECT_EQ(f.stats().replays, 8);
  EXPECT_EQ(f.stats().eager, 0);
}

TEST(Compile, results_may_be_arguments_views_of_them_and_parts_of_one_tensor) {
  auto f = compile([](const Tensor& x) {
    const std::vector<Tensor> halves = (x * 3).chunk(2);
    return std::vector{x, x.slice(0, 1, 3), halves[0], halves[1], Tensor()};
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor x = row({1.0 + i, 2, 3, 4});
    const std::vector<Tensor> got = f(x);
    EXPECT_TRUE(got[0].is_same(x));
    EXPECT_TRUE(got[1].shares_storage(x));
    EXPECT_EQ(values(got[1]), (Numbers{2, 3}));
    EXPECT_EQ(values(got[2]), (Numbers{3.0 + 3 * i, 6}));
    EXPECT_EQ(values(got[3]), (Numbers{9, 12}));
    EXPECT_TRUE(got[2].shares_storage(got[3]));
    EXPECT_FALSE(got[4].defined());
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, other_sizes_dtypes_strides_and_modes_are_recorded_for_themselves) {
  auto f = compile([](const Tensor& x) { return (x * x).detach(); });
  const auto thrice = [&](const Tensor& x) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(f(x).equal((x * x).detach()));
    EXPECT_EQ(f.reason(), "");
  };
  thrice(row({1, 2}));
  thrice(row({1, 2, 3}));
  thrice(ones({2}));
  thrice(row({1, 2, 3, 4}).view({2, 2}));
  thrice(row({1, 2, 3, 4}).view({2, 2}).t());
  {
    const NoGrad quiet;
    thrice(row({1, 2}));
  }
  thrice(row({1, 2}).requires_grad_());
  EXPECT_EQ(f.stats().recordings, 14);
  thrice(row({5, 6}));
  EXPECT_EQ(f.stats().recordings, 15);  // the first two had the same tensor, which f might also capture
  thrice(row({7, 8}));
  EXPECT_EQ(f.stats().recordings, 15);
  auto one = compile([](const Tensor& x) { return x * 2; }, {.max_programs = 1});
  for (int i = 0; i < 3; ++i) one(row({1}));
  EXPECT_EQ(values(one(row({1, 2}))), (Numbers{2, 4}));
  EXPECT_TRUE(has(one.reason(), "1 other signatures"));
}

TEST(Compile, captured_tensors_are_read_at_each_replay) {
  Tensor w = row({1, 2});
  auto f = compile([&](const Tensor& x) { return x * w; });
  for (int i = 0; i < 3; ++i) f(row({1, 1}));
  w.mul_(10);
  EXPECT_EQ(values(f(row({1, 1}))), (Numbers{10, 20}));
  EXPECT_EQ(f.reason(), "");
  w = row({7, 8});  // the old tensor is gone, so this is seen
  EXPECT_EQ(values(f(row({1, 1}))), (Numbers{7, 8}));
  EXPECT_EQ(f.reason(), "the first of two recordings");
  f(row({1, 1}));
  EXPECT_EQ(values(f(row({1, 2}))), (Numbers{7, 16}));
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, a_captured_tensor_that_requires_grad_from_now_on_is_seen) {
  Tensor w = row({1, 2});
  auto f = compile([&](const Tensor& x) { return (x * w).sum(); });
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(f(row({1, 1})).requires_grad());
  w.requires_grad_();
  EXPECT_TRUE(f(row({1, 1})).requires_grad());
  w.requires_grad_(false);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(f(row({1, 1})).requires_grad());
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, a_tensor_that_is_both_argument_and_captured_is_told_apart) {
  const Tensor w = row({1, 2});
  auto f = compile([&](const Tensor& x) { return x + w; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(values(f(w)), (Numbers{2, 4}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({5, 5}))), (Numbers{6, 7}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(w)), (Numbers{2, 4}));
}

TEST(Compile, writes_to_arguments_and_captured_tensors_are_repeated_with_their_versions) {
  Tensor total = row({0, 0});
  auto f = compile([&](const Tensor& x) {
    total.add_(x);
    return total.sum();
  });
  Numbers sums;
  for (int i = 1; i <= 5; ++i) sums.push_back(f(row({1.0 * i, 1})).item<double>());
  EXPECT_EQ(sums, (Numbers{2, 5, 9, 14, 20}));
  EXPECT_EQ(values(total), (Numbers{15, 5}));
  EXPECT_EQ(total.version(), 5u);
  EXPECT_EQ(f.reason(), "");
  auto twice = compile([](const Tensor& x) { Tensor(x).mul_(2); });
  Tensor x = row({1});
  for (int i = 0; i < 6; ++i) twice(x);
  EXPECT_EQ(values(x), (Numbers{64}));
  EXPECT_EQ(twice.reason(), "");
}

TEST(Compile, a_number_that_was_not_declared_is_refused_by_the_name_of_its_op) {
  double rate = 1;
  auto f = compile([&](const Tensor& x) { return (x + 1) * rate; });
  for (int i = 0; i < 4; ++i) {
    rate = i;
    EXPECT_EQ(values(f(row({1}))), (Numbers{2.0 * i}));
  }
  EXPECT_TRUE(has(f.reason(), "mul: a number of this call differs"));
  EXPECT_EQ(f.stats().replays, 0);
  auto host = compile([&](const Tensor& x) { return x + row({rate}); });
  for (int i = 0; i < 4; ++i) {
    rate = i;
    EXPECT_EQ(values(host(row({1}))), (Numbers{1.0 + i}));
  }
  EXPECT_TRUE(has(host.reason(), "add: a tensor of numbers given by the host differs"));
  auto declared = compile([](const Tensor& x, double by) { return x * by; });
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(values(declared(row({3}), 1.0 + i / 3)), (Numbers{3.0 + 3 * (i / 3)}));
  EXPECT_EQ(declared.stats().replays, 2);
}

TEST(Compile, values_read_on_the_host_are_refused) {
  const auto reason_of = [](auto body) {
    auto f = compile(body);
    for (int i = 0; i < 6; ++i) {
      const Tensor x = row({1.0 + i, 2});
      EXPECT_EQ(values(f(x)), values(body(x)));
    }
    EXPECT_EQ(f.stats().replays, 0);
    EXPECT_LE(f.stats().recordings, 4);
    return f.reason();
  };
  EXPECT_TRUE(has(reason_of([](const Tensor& x) { return x * x.sum().item<double>(); }), "on the host"));
  EXPECT_TRUE(has(reason_of([](const Tensor& x) { return x[x > 1.5]; }), "on the host"));
  EXPECT_TRUE(has(reason_of([](const Tensor& x) { return x * *x.data<double>(); }), "address of elements"));
  EXPECT_TRUE(has(reason_of([](const Tensor& x) {
                    const auto all = x.accessor<double, 1>();
                    return x * all[0];
                  }),
                  "address of elements"));
  EXPECT_TRUE(has(reason_of([](const Tensor& x) {
                    const Tensor y = empty({2}, {.dtype = kFloat64});
                    std::memcpy(y.raw(), x.raw(), 16);
                    return y * 2;
                  }),
                  "no operation has written"));
  EXPECT_TRUE(has(reason_of([](const Tensor& x) {
                    const Tensor y = x * 1;
                    *static_cast<double*>(y.raw()) += 1;
                    return y;
                  }),
                  "a replay gives other values"));
}

TEST(Compile, a_tensor_that_f_keeps_is_refused) {
  Tensor last;
  auto f = compile([&](const Tensor& x) {
    last = x * 2;
    return last + 1;
  });
  for (int i = 0; i < 6; ++i) {
    f(row({1.0 * i}));
    EXPECT_EQ(values(last), (Numbers{2.0 * i}));
  }
  EXPECT_TRUE(has(f.reason(), "outlives the call"));
  EXPECT_EQ(f.stats().replays, 0);
}

TEST(Compile, a_cache_that_the_first_call_fills_is_captured_by_the_next) {
  Tensor mask;
  auto f = compile([&](const Tensor& x) {
    if (!mask.defined()) mask = full({2}, 3, {.dtype = kFloat64});
    return x * mask;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values(f(row({1.0 * i, 2}))), (Numbers{3.0 * i, 6}));
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, results_with_a_graph_come_from_ordinary_runs) {
  const Tensor w = test::leaf({2, 3});
  auto f = compile([&](const Tensor& x) { return (x * w).sum(); });
  for (int i = 0; i < 6; ++i) {
    w.zero_grad();
    f(row({5, 7})).backward();
    EXPECT_EQ(values(w.grad()), (Numbers{5, 7}));
  }
  EXPECT_TRUE(has(f.reason(), "requires grad"));
  const NoGrad quiet;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f(row({5, 7})).item<double>(), 31);
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, gradients_that_f_gives_as_results_are_replayed) {
  const Tensor w = test::leaf({2, 3});
  auto f = compile([&](const Tensor& x) {
    const Tensor loss = (x * w).tanh().sum();
    return std::pair(loss.detach(), grad({loss}, {w})[0]);
  });
  for (int i = 0; i < 5; ++i) {
    const Tensor x = row({0.1 * i, 0.2});
    const Tensor loss = (x * w).tanh().sum();
    const auto [got, g] = f(x);
    EXPECT_EQ(values(got), values(loss));
    EXPECT_EQ(values(g), values(grad({loss}, {w})[0]));
    w.detach().mul_(0.9);
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, replays_draw_from_the_default_generator_as_f_would) {
  const auto body = [](const Tensor& x) { return dropout(x + rand({8}, {.dtype = kFloat64}), 0.5); };
  auto f = compile(body);
  const Tensor x = ones({8}, {.dtype = kFloat64});
  manual_seed(3);
  std::vector<Numbers> wanted, got;
  for (int i = 0; i < 5; ++i) wanted.push_back(values(body(x)));
  manual_seed(3);
  for (int i = 0; i < 5; ++i) got.push_back(values(f(x)));
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(f.reason(), "");
  auto seeds = compile([&](const Tensor& y) { return manual_seed(1), dropout(y, 0.5); });
  const Numbers first = values(seeds(x));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values(seeds(x)), first);
  EXPECT_TRUE(has(seeds.reason(), "seeds a generator"));
}

TEST(Compile, replays_draw_from_each_generator_as_f_would) {
  Generator first(1), second(2);
  const auto body = [&](const Tensor& x) {
    return dropout(dropout(x, 0.5, true, &first) + rand({64}, {.dtype = kFloat64}), 0.5, true, &second);
  };
  auto f = compile(body);
  const Tensor x = ones({64}, {.dtype = kFloat64});
  const auto five = [&](auto& run) {
    manual_seed(3), first.manual_seed(1), second.manual_seed(2);
    std::vector<Numbers> out;
    for (int i = 0; i < 5; ++i) out.push_back(values(run(x)));
    return std::tuple(out, first.offset(), second.offset());
  };
  EXPECT_EQ(five(f), five(body));
  EXPECT_EQ(f.reason(), "");
  const int64_t before = f.stats().replays;
  EXPECT_EQ(five(f), five(body));
  EXPECT_EQ(f.stats().replays, before + 5);
}

TEST(Compile, a_recording_whose_generator_is_gone_is_made_anew) {
  std::optional<Generator> own(1);
  auto f = compile([&](const Tensor& y) { return dropout(y, 0.5, true, &*own); });
  const Tensor x = ones({64});
  for (int i = 0; i < 3; ++i) f(x);
  EXPECT_EQ(f.reason(), "");
  own.emplace(1);  // another one in its place
  f(x);
  EXPECT_TRUE(has(f.reason(), "recordings")) << f.reason();
  for (int i = 0; i < 3; ++i) f(x);
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, draws_of_no_elements_are_replayed) {
  Generator own(1);
  auto f = compile([&](const Tensor& y) { return dropout(dropout(y, 0.5, true, &own), 0.5, true, &own); });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(f(zeros({0, 3})).sizes(), Shape({0, 3}));
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, generators_of_one_state_are_refused) {
  Generator one(1), two(1);
  auto f =
      compile([&](const Tensor& y) { return dropout(y, 0.5, true, &one) + dropout(y, 0.5, true, &two); });
  for (int i = 0; i < 6; ++i) f(ones({8}));
  EXPECT_TRUE(has(f.reason(), "two generators of one state")) << f.reason();
}

TEST(Compile, check_every_finds_a_number_that_changed_after_the_recordings) {
  double rate = 2;
  auto f = compile([&](const Tensor& x) { return x * rate; }, {.check_every = 3});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({1}))), (Numbers{2}));
  rate = 3;
  EXPECT_TRUE(
      has(error_of<ValueError>([&] { f(row({1})); }), "compile: a replay differs from f in result 0"));
  EXPECT_EQ(values(f(row({1}))), (Numbers{3}));
  EXPECT_TRUE(has(f.reason(), "differs from f"));
  Tensor total = row({0});
  auto sums = compile([&](const Tensor& x) { total.add_(x + dropout(x, 0.5)); }, {.check_every = 1});
  manual_seed(5);
  for (int i = 0; i < 6; ++i) sums(row({1}));
  const Numbers checked = values(total);
  EXPECT_EQ(sums.stats().replays, 4);
  total.zero_();
  manual_seed(5);
  for (int i = 0; i < 6; ++i) total.add_(row({1}) + dropout(row({1}), 0.5));
  EXPECT_EQ(checked, values(total));
  EXPECT_THROW(compile([](const Tensor& x) { return x; }, {.check_every = -1}), ValueError);
}

TEST(Compile, states_of_the_thread_around_f_make_an_ordinary_run) {
  const Tensor w = randn({4, 4});
  auto f = compile([&](const Tensor& x) { return matmul(x, w).detach(); });
  const Tensor x = randn({4, 4});
  for (int i = 0; i < 3; ++i) f(x);
  {
    const Autocast mixed(kBFloat16);
    EXPECT_EQ(f(x).dtype(), kBFloat16);
    EXPECT_TRUE(has(f.reason(), "Autocast"));
  }
  EXPECT_EQ(f(x).dtype(), kFloat32);
  EXPECT_EQ(f.reason(), "");
  auto inside = compile([&](const Tensor& y) {
    const Autocast mixed(kBFloat16);
    return matmul(y, w).detach();
  });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(inside(x).equal(matmul(x.to(kBFloat16), w.to(kBFloat16))));
  EXPECT_EQ(inside.reason(), "");
}

TEST(Compile, parameters_that_several_threads_use_are_refused) {
  Tensor w = test::leaf({1, 2});
  mark_concurrent(w);
  auto f = compile([&](const Tensor& x) { return (x * w).detach(); });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values(f(row({2, 2}))), (Numbers{2, 4}));
  EXPECT_TRUE(has(f.reason(), "concurrent"));
  EXPECT_EQ(f.stats().replays, 0);
}

TEST(Compile, other_threads_are_not_recorded) {
  auto f = compile([](const Tensor& x) {
    Tensor there;
    std::thread([&] { there = (row({1, 2, 3}) * 5).exp(); }).join();
    return x * 2;
  });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({1.0 * i}))), (Numbers{2.0 * i}));
  EXPECT_EQ(f.reason(), "");
  auto shared = compile([](const Tensor& x) { return (x * 2 + 1).tanh(); });
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Tensor x = row({0.1 * t, 0.01 * i});
        if (values(shared(x)) != values((x * 2 + 1).tanh())) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Compile, an_error_of_f_ends_a_recording_and_a_replay_names_the_op) {
  auto f = compile([](const Tensor& x, const Tensor& at) { return x.index_select(0, at); });
  const Tensor good = tensor({0, 1}, {.dtype = kInt64}), bad = tensor({0, 9}, {.dtype = kInt64});
  EXPECT_TRUE(has(error_of<IndexError>([&] { f(row({1, 2}), bad); }), "index_select: "));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({1, 2}), good)), (Numbers{1, 2}));
  EXPECT_EQ(f.reason(), "");
  EXPECT_TRUE(has(error_of<IndexError>([&] { f(row({1, 2}), bad); }), "index_select: "));
  EXPECT_EQ(values(f(row({3, 4}), good)), (Numbers{3, 4}));
  EXPECT_EQ(f.reason(), "");
}

TEST(Compile, calls_nest_and_a_checkpoint_runs_f) {
  auto inner = compile([](const Tensor& x) { return x.exp(); });
  auto outer = compile([&](const Tensor& x) { return inner(x) * 2; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(outer(row({1}))), values(row({1}).exp() * 2));
  EXPECT_EQ(outer.reason(), "");
  EXPECT_EQ(inner.stats().recordings, 0);
  const Tensor x = test::leaf({1, 2});
  auto g = compile([&](const Tensor& y) {
    const Tensor z = checkpoint([](const auto& in) { return std::vector{in[0].exp()}; }, {y})[0];
    return grad({z.sum()}, {y})[0];
  });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(g(x)), values(x.detach().exp()));
}

}  // namespace
}  // namespace weft::compile_tests
