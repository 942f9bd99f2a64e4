// compile() at its edges: tensors that change under a program, errors in a replay, arguments that are leaves
// or alias each other. Also results that are views of each other, the options and groups of optimizers, and
// the scopes and gradients that need a run of the function.
#include <gtest/gtest.h>

#include <algorithm>
#include <any>
#include <cmath>
#include <optional>
#include <thread>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/row_grad.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/optim/optim.h>
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

Tensor ids(std::initializer_list<int64_t> v) { return tensor(v, {.dtype = kInt64}); }

// ---- captured tensors that change

TEST(CompileGuards, a_check_in_which_f_drops_a_captured_tensor_reads_no_freed_memory) {
  const auto body = [](int call, Tensor& w, Tensor& total, const Tensor& x) {
    if (call == 2) w = row({5, 6});  // the call that checks the first replay
    total.add_(x * w);
  };
  Tensor w = row({1, 2}), total = row({0, 0}), v = row({1, 2}), sum = row({0, 0});
  int calls = 0;
  auto f = compile([&](const Tensor& x) { body(calls++, w, total, x); });
  for (int i = 0; i < 6; ++i) {
    f(row({1, 1.0 * i}));
    body(i, v, sum, row({1, 1.0 * i}));
    EXPECT_EQ(values(total), values(sum)) << i;
  }
}

TEST(CompileGuards, an_alias_of_a_captured_tensor_that_requires_grad_from_now_on_is_seen) {
  const Tensor owner = test::leaf({1, 2});
  Tensor w = owner.detach();
  auto f = compile([&](const Tensor& x) { return (x * w).sum(); });
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(f(row({1, 1})).requires_grad());
  EXPECT_EQ(f.reason(), "");
  w.requires_grad_();
  EXPECT_TRUE(f(row({1, 1})).requires_grad());
}

TEST(CompileGuards, what_another_thread_writes_to_a_captured_tensor_is_not_taken_for_a_constant) {
  Tensor buffer = row({0, 0});
  auto f = compile([&](const Tensor& x) {
    std::thread([&] { buffer.copy_(x * 2); }).join();
    return buffer + x;
  });
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values(f(row({1.0 * i, 1}))), (Numbers{3.0 * i, 3}));
  EXPECT_TRUE(has(f.reason(), "something else writes to"));
  auto g = compile([&](const Tensor& y, const Tensor& x) {
    std::thread([&] { Tensor(y).copy_(x * 2); }).join();
    return y + x;
  });
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values(g(buffer, row({1.0 * i, 1}))), (Numbers{3.0 * i, 3}));
  EXPECT_TRUE(has(g.reason(), "something else writes to"));
}

TEST(CompileGuards, memory_that_is_both_captured_and_an_argument_by_two_blobs_is_told_apart) {
  double data[2] = {1, 2}, other[2] = {10, 20};
  const Tensor w = from_blob(data, {2}, {.dtype = kFloat64});
  auto f = compile([&](const Tensor& x) { return x + w; });
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(values(f(from_blob(data, {2}, {.dtype = kFloat64}))), (Numbers{2, 4}));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(values(f(from_blob(other, {2}, {.dtype = kFloat64}))), (Numbers{11, 22}));
}

TEST(CompileGuards, an_argument_in_memory_that_a_captured_one_had_is_told_apart) {
  for (const int64_t n : {2, 1000}) {  // in the allocation of the header, and in one of its own
    const auto filled = [n](double v) { return full({n}, v, {.dtype = kFloat64}); };
    Tensor w = filled(1);
    auto f = compile([&](const Tensor& x) { return (x + w).sum(); });
    for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(w)), (Numbers{2.0 * n}));
    EXPECT_EQ(f.reason(), "");
    const void* const at = w.raw();
    w = filled(10);  // the old one is gone, so its memory may be used again
    std::vector<Tensor> all;
    for (int i = 0; i < 100 && (all.empty() || all.back().raw() != at); ++i) all.push_back(filled(5));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(all.back())), (Numbers{15.0 * n}));
  }
}

TEST(CompileGuards, an_argument_whose_alias_requires_grad_from_now_on_may_still_be_captured) {
  const Tensor owner = test::leaf({1, 2}), x = owner.detach(), w = owner.detach();
  Tensor alias = owner.detach();
  auto f = compile([&](const Tensor& y) { return y + w; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(x)), (Numbers{2, 4}));
  alias.requires_grad_();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(x)), (Numbers{2, 4}));
  EXPECT_EQ(f.reason(), "");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({5, 6}))), (Numbers{6, 8}));
}

TEST(CompileGuards, memory_of_temporaries_that_is_used_again_counts_as_other_memory) {
  auto f = compile([](const Tensor& x) { return x * 2; });
  for (int i = 0; i < 6; ++i) f(row({1.0 * i, 2}));
  const Tensor x = row({1, 2}), y = row({3, 4});
  EXPECT_EQ(values(f(x)), (Numbers{2, 4}));
  EXPECT_EQ(values(f(y)), (Numbers{6, 8}));
  EXPECT_EQ(f.stats().recordings, 2);
}

TEST(CompileGuards, casts_that_an_outer_autocast_keeps_are_not_captured) {
  const Tensor w = ones({2, 2}).requires_grad_(), x = ones({2, 2});
  const auto body = [&](const Tensor& y) {
    const Autocast mixed(kBFloat16);
    const Tensor loss = matmul(y, w).sum();
    return std::pair(loss.detach(), grad({loss}, {w})[0]);
  };
  auto f = compile(body);
  const Autocast outer(kBFloat16);
  matmul(x, w);  // keeps a cast of w
  const NoAutocast off;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(values(f(x).first), values(body(x).first));
    w.detach().mul_(2);
  }
  EXPECT_TRUE(has(f.reason(), "Autocast"));
}

// ---- scopes and gradients without a replay

TEST(CompileGuards, saved_tensor_hooks_outside_of_f_get_its_tensors) {
  const Tensor w = test::leaf({2, 3});
  auto f = compile([&](const Tensor& x) { return grad({(x * w).sum()}, {w})[0]; });
  for (int i = 0; i < 4; ++i) f(row({1.0 * i, 2}));
  EXPECT_EQ(f.reason(), "");
  int packed = 0;
  {
    const SavedTensorHooks hooks(
        [&](const Tensor& x) -> std::any {
          ++packed;
          return x * 2;
        },
        [](const std::any& kept) { return std::any_cast<const Tensor&>(kept); });
    EXPECT_EQ(values(f(row({5, 7}))), (Numbers{10, 14}));
    EXPECT_TRUE(has(f.reason(), "SavedTensorHooks"));
  }
  EXPECT_GT(packed, 0);
  EXPECT_EQ(values(f(row({5, 7}))), (Numbers{5, 7}));
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, a_detect_anomaly_outside_of_f_finds_its_nan) {
  const Tensor w = test::leaf({0, 4});
  auto f = compile([&](const Tensor& x) { return grad({(x * sqrt(w)).sum()}, {w})[0]; });
  for (int i = 0; i < 4; ++i) f(row({0, 1.0 * i}));
  EXPECT_EQ(f.reason(), "");
  EXPECT_TRUE(std::isnan(values(f(row({0, 1})))[0]));
  {
    const DetectAnomaly on;
    EXPECT_TRUE(has(error_of<AutogradError>([&] { f(row({0, 1})); }), "NaN"));
    EXPECT_TRUE(has(f.reason(), "DetectAnomaly"));
  }
  f(row({0, 1}));
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, row_wise_gradients_are_made_and_stepped_by_f) {
  const Tensor table = ones({4, 2}, {.dtype = kFloat64}).requires_grad_();
  const auto made = [&](const Tensor& at) {
    table.zero_grad();
    embedding(table, at, -1, true).sum().backward();
  };
  auto makes = compile(made);
  for (int i = 0; i < 6; ++i) {
    makes(ids({i % 4, 1}));
    const RowGrad rows = table.row_grad();
    ASSERT_TRUE(rows.defined());
    EXPECT_EQ(rows.rows.to_vector<int64_t>().back(), std::max(i % 4, 1));
  }
  EXPECT_TRUE(has(makes.reason(), "row-wise gradient")) << makes.reason();

  optim::SparseAdam adam({table}, {.lr = 0.1});
  auto steps = compile([&](const Tensor& at) {
    made(at);
    adam.step();
    table.zero_grad();
  });
  for (int i = 0; i < 6; ++i) {
    const Numbers before = values(table);
    steps(ids({i % 4}));
    const Numbers after = values(table);
    for (size_t k = 0; k < 4; ++k) EXPECT_EQ(after[2 * k] != before[2 * k], k == static_cast<size_t>(i % 4));
  }
  EXPECT_EQ(adam.steps(0), 6);
  EXPECT_TRUE(has(steps.reason(), "row-wise gradient")) << steps.reason();
}

// ---- arguments

TEST(CompileGuards, a_part_of_an_argument_that_f_captures_is_told_from_the_same_part_of_another) {
  const Tensor all = row({1, 2, 3, 4}), captured = all.slice(0, 1, 2);
  auto f = compile([&](const Tensor& x) { return x * captured; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(all.slice(0, 0, 2))), (Numbers{2, 4}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(all.slice(0, 2, 4))), (Numbers{6, 8}));
  auto rows = compile([](const Tensor& x) { return x + 1; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(rows(all.slice(0, i, i + 1))), (Numbers{2.0 + i}));
  EXPECT_EQ(rows.reason(), "");
}

TEST(CompileGuards, a_leaf_that_is_an_argument_gets_its_own_gradient) {
  const Tensor x = test::leaf({1, 2});
  auto f = compile([](const Tensor& leaf) {
    leaf.zero_grad();
    square(leaf).sum().backward();
  });
  for (int i = 0; i < 5; ++i) f(x);
  EXPECT_EQ(f.reason(), "");
  EXPECT_EQ(values(x.grad()), (Numbers{2, 4}));
  x.zero_grad();
  const Tensor alias = x.detach().requires_grad_();  // the same memory
  f(alias);
  ASSERT_TRUE(alias.grad().defined());
  EXPECT_EQ(values(alias.grad()), (Numbers{2, 4}));
  EXPECT_FALSE(x.grad().defined());
}

TEST(CompileGuards, arguments_of_other_types_are_recorded_for_themselves) {
  struct Pick {
    Tensor operator()(const Tensor& x, bool) const { return x + 1; }
    Tensor operator()(const Tensor& x, int64_t) const { return x * 5; }
    Tensor operator()(const std::vector<Tensor>& xs) const { return xs[0] - 1; }
  };
  auto f = compile(Pick());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(values(f(row({3}), true)), (Numbers{4}));
    EXPECT_EQ(values(f(row({3}), int64_t{1})), (Numbers{15}));
    EXPECT_EQ(values(f(std::vector{row({3})})), (Numbers{2}));
  }
  EXPECT_EQ(f.stats().replays, 3);
}

TEST(CompileGuards, an_argument_given_twice_is_told_from_two_aliases) {
  auto f = compile([](const Tensor&, const Tensor& y) { return y; });
  const Tensor x = row({1}), alias = x.detach();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(f(x, x).is_same(x));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(f(x, alias).is_same(alias));
}

TEST(CompileGuards, a_write_counts_once_for_arguments_over_one_storage) {
  auto f = compile([](const Tensor& x, const Tensor& part) {
    Tensor(part).mul_(2);
    return x.sum();
  });
  const Tensor x = row({1, 1});
  for (uint32_t i = 1; i < 6; ++i) {
    f(x, x.slice(0, 0, 1));
    EXPECT_EQ(x.version(), i);
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, empty_tensors_are_replayed) {
  const Tensor none = zeros({0, 3}, {.dtype = kFloat64});
  auto f = compile([&](const Tensor& x) {
    const Tensor w = ones({3, 2}, {.dtype = kFloat64});
    return std::tuple(cat({x, none}), matmul(x, w), x.sum(), x.slice(0, 0, 0));
  });
  for (int i = 0; i < 4; ++i) {
    const auto [joined, product, sum, part] = f(zeros({0, 3}, {.dtype = kFloat64}));
    EXPECT_EQ(joined.sizes(), (Shape{0, 3}));
    EXPECT_EQ(product.sizes(), (Shape{0, 2}));
    EXPECT_EQ(sum.item<double>(), 0);
    EXPECT_EQ(part.sizes(), (Shape{0, 3}));
  }
  EXPECT_EQ(f.reason(), "");
}

// ---- results

TEST(CompileGuards, results_that_are_views_of_each_other_share_later_histories) {
  const auto body = [](const Tensor& x) {
    const Tensor y = x * 2;
    const std::vector<Tensor> halves = (x * 3).chunk(2);
    return std::vector{y.slice(0, 0, 1), y, y, halves[0], halves[1], x.slice(0, 0, 1), x.detach()};
  };
  auto f = compile(body);
  const Tensor w = test::leaf({10});
  for (int i = 0; i < 4; ++i) {
    const Tensor a = row({1, 2}), b = row({1, 2});
    std::vector<Tensor> got = f(a), wanted = body(b);
    EXPECT_TRUE(got[1].is_same(got[2]));
    const auto write = [&](std::vector<Tensor>& all, const Tensor& x) {
      all[0].mul_(w);
      all[3].mul_(w);
      all[4].mul_(w);
      all[5].mul_(w);
      return (all[1].sum() + all[3].sum() + all[4].sum() + x.sum()).requires_grad();
    };
    EXPECT_TRUE(write(wanted, b));
    ASSERT_TRUE(write(got, a)) << i;
    const auto gradient = [&](const std::vector<Tensor>& all, const Tensor& x) {
      return values(grad({all[1].sum() + all[3].sum() + all[4].sum() + x.sum()}, {w})[0]);
    };
    EXPECT_EQ(gradient(got, a), gradient(wanted, b));
    EXPECT_FALSE(got[6].requires_grad());
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, what_the_user_does_to_results_and_arguments_does_not_reach_the_next_call) {
  auto f = compile([](const Tensor& x) { return std::pair(x + 1, ones({2}, {.dtype = kFloat64})); });
  Tensor x = row({1, 2});
  for (int i = 0; i < 5; ++i) {
    auto [y, constant] = f(x);
    EXPECT_EQ(values(y), (Numbers{2, 3}));
    EXPECT_EQ(values(constant), (Numbers{1, 1}));
    y.zero_();
    constant.zero_();
  }
  EXPECT_EQ(f.reason(), "");
}

// ---- errors

TEST(CompileGuards, an_error_in_a_replay_leaves_steps_draws_and_gradients_as_one_of_f_does) {
  struct Training {
    Tensor table = ones({3, 2}, {.dtype = kFloat64}).requires_grad_();
    optim::Adam adam{{table}, {.lr = 0.1}};
    Generator& random = default_generator();
    void operator()(const Tensor& at) {
      adam.zero_grad();
      const Tensor x = dropout(table.index_select(0, at), 0.5);
      dropout(x, 0.5).sum().backward();
      adam.step();
    }
  };
  Training plain, recorded;
  auto f = compile([&](const Tensor& at) { recorded(at); });
  const auto both = [&](const Tensor& at, bool fails) {
    const uint64_t start = default_generator().offset();
    if (fails) EXPECT_THROW(plain(at), IndexError);
    else plain(at);
    const uint64_t drawn = default_generator().offset();
    default_generator().set_offset(start);
    if (fails) EXPECT_TRUE(has(error_of<IndexError>([&] { f(at); }), "index_select: "));
    else f(at);
    EXPECT_EQ(default_generator().offset(), drawn);
    EXPECT_EQ(recorded.adam.steps(0), plain.adam.steps(0));
    EXPECT_EQ(values(recorded.table), values(plain.table));
    EXPECT_EQ(recorded.table.version(), plain.table.version());
    ASSERT_EQ(recorded.table.grad().defined(), plain.table.grad().defined());
  };
  for (int i = 0; i < 6; ++i) both(ids({0, i % 3}), false);
  EXPECT_EQ(f.reason(), "");
  both(ids({0, 9}), true);
  both(ids({0, 1}), false);
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, an_error_of_f_in_a_recording_leaves_the_thread_as_it_was) {
  bool fails = true;
  auto f = compile([&](const Tensor& x) {
    const Tensor y = x * 2;
    if (fails) throw std::runtime_error("in the middle");
    return y;
  });
  for (int i = 0; i < 3; ++i) EXPECT_THROW(f(row({1})), std::runtime_error);
  fails = false;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(f(row({1.0 * i}))), (Numbers{2.0 * i}));
  EXPECT_EQ(f.reason(), "");
  EXPECT_EQ(values(row({1}) * 3), (Numbers{3}));
}

TEST(CompileGuards, f_may_call_itself) {
  std::optional<Compiled<std::function<Tensor(const Tensor&, int)>>> f;
  f.emplace([&](const Tensor& x, int depth) { return depth == 0 ? x : (*f)(x * 2, depth - 1); },
            CompileOptions());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values((*f)(row({1.0 + i}), 3)), (Numbers{8.0 + 8 * i}));
  EXPECT_EQ(f->reason(), "");
}

TEST(CompileGuards, gradients_of_gradients_and_hooks_inside_f_are_replayed) {
  const Tensor w = test::leaf({0.5, 2});
  int hooks = 0;
  const auto body = [&](const Tensor& x) {
    const Tensor y = (x * w).pow(3);
    const HookHandle handle = y.register_hook([&](const Tensor& g) { return ++hooks, g * 2; });
    const Tensor first = grad({y.sum()}, {w}, {}, {.create_graph = true})[0];
    const Tensor again = grad({square(first).sum()}, {w}, {}, {.retain_graph = true})[0];
    return std::pair(again, grad({first.sum()}, {w})[0]);
  };
  auto f = compile(body);
  for (int i = 0; i < 5; ++i) {
    const Tensor x = row({1.0 + i, 2});
    const auto [again, second] = f(x);
    const auto [wanted, other] = body(x);
    EXPECT_EQ(values(again), values(wanted));
    EXPECT_EQ(values(second), values(other));
  }
  EXPECT_EQ(f.reason(), "");
}

// ---- optimizers

TEST(CompileGuards, a_replayed_step_counts_one_write) {
  Tensor w = test::leaf({1, 2});
  optim::SGD sgd({w}, {.lr = 0.1});
  auto f = compile([&](const Tensor& x) {
    sgd.zero_grad();
    (x * w).sum().backward();
    sgd.step();
  });
  for (uint32_t i = 1; i < 6; ++i) {
    f(row({1, 1}));
    EXPECT_EQ(w.version(), i);
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, a_group_that_joins_an_optimizer_is_stepped) {
  struct Training {
    Tensor w = test::leaf({1}), v = test::leaf({1});
    optim::SGD sgd{{w}, {.lr = 0.5}};
    void operator()(const Tensor& x) {
      w.zero_grad();
      v.zero_grad();
      (x * w * v).sum().backward();
      sgd.step();
    }
  };
  Training plain, recorded;
  auto f = compile([&](const Tensor& x) { recorded(x); });
  for (int i = 0; i < 10; ++i) {
    if (i == 5) plain.sgd.add_group({{plain.v}, {.lr = 0.25}});
    if (i == 5) recorded.sgd.add_group({{recorded.v}, {.lr = 0.25}});
    plain(row({0.1}));
    f(row({0.1}));
    EXPECT_EQ(values(recorded.w), values(plain.w)) << i;
    EXPECT_EQ(values(recorded.v), values(plain.v)) << i;
  }
  EXPECT_EQ(f.reason(), "");
}

TEST(CompileGuards, a_rate_that_f_sets_itself_is_refused) {
  Tensor w = test::leaf({8});
  optim::SGD sgd({w}, {.lr = 1});
  auto f = compile([&](const Tensor& x) {
    sgd.zero_grad();
    (x * w).sum().backward();
    sgd.step();
    sgd.set_lr(sgd.lr() / 2);
  });
  for (int i = 0; i < 6; ++i) f(row({1}));
  EXPECT_EQ(sgd.lr(), 1.0 / 64);
  EXPECT_EQ(values(w), (Numbers{8 - 2 + 1.0 / 32}));
  EXPECT_TRUE(has(f.reason(), "changes the options of an optimizer"));
}

TEST(CompileGuards, an_optimizer_that_is_gone_is_not_stepped) {
  Tensor w = test::leaf({8});
  auto sgd = std::make_unique<optim::SGD>(std::vector{w}, optim::SGDOptions{.lr = 1});
  auto f = compile([&](const Tensor& x) {
    sgd->zero_grad();
    (x * w).sum().backward();
    sgd->step();
  });
  for (int i = 0; i < 4; ++i) f(row({1}));
  EXPECT_EQ(f.reason(), "");
  sgd = std::make_unique<optim::SGD>(std::vector{w}, optim::SGDOptions{.lr = 0.5});
  for (int i = 0; i < 4; ++i) f(row({1}));
  EXPECT_EQ(values(w), (Numbers{2}));
  EXPECT_EQ(f.reason(), "");
  EXPECT_EQ(sgd->steps(0), 4);
}

}  // namespace
}  // namespace weft::compile_tests
