// Rules whose rows without a gradient catch up in closed form. Every reader of the weight and of the state
// sees the numbers of the dense step. While nobody reads, a step costs its look-ups.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <thread>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/tensor/inner/arrears.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft::optim {
namespace {

using test::error_of;
using test::has;
using testing::close;
using testing::same_bits;

constexpr int64_t kTableRows = 29, kTableWidth = 3;

struct CatchUp {
  CatchUp(bool sparse, SGDOptions options, DType dtype = kFloat64)
      : generator(3),
        table(kTableRows, kTableWidth, {.dtype = dtype, .generator = &generator, .sparse = sparse}),
        sgd(std::make_unique<SGD>(table.parameters(), options)) {}
  Tensor look_up(int64_t t) const {
    return table.forward(from_vector<int64_t>({t % kTableRows, (5 * t + 2) % 17, t % kTableRows}, {3}));
  }
  /// A step, whose look-ups see current rows.
  Tensor learn(int64_t t) {
    sgd->zero_grad();
    const Tensor y = look_up(t);
    Generator draws(40 + static_cast<uint64_t>(t));
    (y * randn(y.sizes(), {.dtype = y.dtype()}, &draws)).sum().backward();
    sgd->step();
    return y.detach();
  }
  const Tensor& weight() const { return table.weight; }
  bool is_behind() const { return weft::detail::arrears_of(*table.weight.body().storage) != nullptr; }
  Generator generator;
  nn::Embedding table;
  std::unique_ptr<SGD> sgd;
};

std::vector<SGDOptions> caught_up_options() {
  return {{.lr = 0.1, .weight_decay = 0.05},
          {.lr = 0.1, .momentum = 0.9},
          {.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0.05},
          {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true},
          {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .maximize = true},
          {.lr = 0.1, .momentum = 1}};
}

TEST(CatchUp, has_the_dense_numbers_after_many_missed_steps) {
  for (const SGDOptions& options : caught_up_options()) {
    CatchUp sparse(true, options), dense(false, options);
    for (int64_t t = 0; t < 60; ++t) {
      const Tensor y = sparse.learn(t);  // current although its rows were behind
      ASSERT_TRUE(close(y, dense.learn(t), 1e-12, 1e-13)) << t;
      ASSERT_TRUE(sparse.is_behind()) << t;
    }
    EXPECT_TRUE(close(sparse.weight(), dense.weight(), 1e-12, 1e-13));
    EXPECT_FALSE(sparse.is_behind());
    const StateDict left = sparse.sgd->state_dict(), right = dense.sgd->state_dict();
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i)
      EXPECT_TRUE(close(left[i].second, right[i].second, 1e-12, 1e-13)) << left[i].first;
  }
}

TEST(CatchUp, in_float32_stays_within_a_rounding_for_each_missed_step) {
  for (const SGDOptions& options : caught_up_options()) {
    CatchUp sparse(true, options, kFloat32), dense(false, options, kFloat32);
    constexpr int kSteps = 60;
    for (int64_t t = 0; t < kSteps; ++t) sparse.learn(t), dense.learn(t);
    const double largest = dense.weight().abs().max().item<double>();
    EXPECT_LE((sparse.weight() - dense.weight()).abs().max().item<double>(),
              kSteps * std::ldexp(1.0, -23) * std::max(1.0, largest));
  }
}

TEST(CatchUp, follows_rates_and_options_that_change_between_the_steps) {
  CatchUp sparse(true, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.02}),
      dense(false, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.02});
  for (int64_t t = 0; t < 40; ++t) {
    sparse.learn(t), dense.learn(t);
    for (CatchUp* one : {&sparse, &dense}) {
      one->sgd->set_lr(0.1 / static_cast<double>(t + 1));
      if (t == 20)
        one->sgd->set_options(0, {.lr = 0.01, .momentum = 0.5, .weight_decay = 0.1, .nesterov = false});
    }
  }
  EXPECT_TRUE(close(sparse.weight(), dense.weight(), 1e-12, 1e-13));
}

TEST(CatchUp, settles_a_table_whose_rate_has_changed_a_thousand_times) {
  CatchUp sparse(true, {.lr = 0.01, .weight_decay = 0.02}), dense(false, {.lr = 0.01, .weight_decay = 0.02});
  for (int64_t t = 0; t < 1100; ++t) {
    sparse.learn(t % 5), dense.learn(t % 5);  // few rows, the others stay behind
    for (CatchUp* one : {&sparse, &dense}) one->sgd->set_lr(0.01 + 1e-6 * static_cast<double>(t));
  }
  EXPECT_TRUE(close(sparse.weight(), dense.weight(), 1e-11, 1e-12));
}

TEST(CatchUp, shows_no_reader_an_old_row) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05};
  const std::string path =
      (std::filesystem::temp_directory_path() / str("weft_catch_up_", ::getpid(), ".safetensors")).string();
  const std::vector<std::pair<const char*, std::function<Tensor(CatchUp&)>>> readers{
      {"an operation", [](CatchUp& c) { return c.weight() * 1; }},
      {"a copy", [](CatchUp& c) { return c.weight().detach().clone(); }},
      {"an alias", [](CatchUp& c) { return c.weight().detach(); }},
      {"a view", [](CatchUp& c) { return c.weight().detach().narrow(0, 2, 20).narrow(1, 0, 2); }},
      {"numbers",
       [](CatchUp& c) {
         return from_vector(c.weight().to_vector<double>(), {kTableRows, 3});
       }},
      {"an address",
       [](CatchUp& c) {
         const double* p = c.weight().data<const double>();
         return from_vector(std::vector<double>(p, p + c.weight().numel()), {kTableRows, 3});
       }},
      {"an element", [](CatchUp& c) { return c.weight().detach()[11][1]; }},
      {"an unrelated look-up",
       [](CatchUp& c) { return index_select(c.weight().detach(), 0, arange(kTableRows)); }},
      {"all rows", [](CatchUp& c) { return c.table.forward(arange(kTableRows)).detach(); }},
      {"a product",
       [](CatchUp& c) {
         return linear(ones({2, 3}, {.dtype = kFloat64}), c.weight()).detach();
       }},
      {"a saved module",
       [&](CatchUp& c) {
         c.table.save(path);
         nn::Embedding other(kTableRows, kTableWidth, {.dtype = kFloat64});
         other.load(path);
         return other.weight.detach();
       }},
      {"a state", [](CatchUp& c) { return c.sgd->state_dict()[2].second.clone(); }},
      {"a dense gradient",
       [](CatchUp& c) {
         c.weight().set_grad(ones(c.weight().sizes(), {.dtype = kFloat64}));
         c.sgd->step();
         return c.weight().detach().clone();
       }},
      {"a dead optimizer",
       [](CatchUp& c) {
         c.sgd.reset();
         return c.weight().detach().clone();
       }},
      {"a moved table",
       [](CatchUp& c) {
         c.table.to(kFloat32);
         return c.weight().detach().clone();
       }},
      {"a write", [](CatchUp& c) {
         NoGrad guard;
         c.table.weight.mul_(2);
         return c.weight().detach().clone();
       }}};
  for (const auto& [name, read] : readers) {
    CatchUp sparse(true, options), dense(false, options);
    for (int64_t t = 0; t < 9; ++t) sparse.learn(t), dense.learn(t);
    ASSERT_TRUE(sparse.is_behind());
    const Tensor seen = read(sparse), expected = read(dense);
    const double loose = seen.dtype() == kFloat32 ? 1e-6 : 1e-12;
    EXPECT_TRUE(close(seen, expected, loose, loose)) << name;
    if (!sparse.sgd) continue;
    for (int64_t t = 9; t < 12 && seen.dtype() == kFloat64; ++t) sparse.learn(t), dense.learn(t);
    EXPECT_TRUE(close(sparse.weight(), dense.weight(), loose, loose)) << "after " << name;
  }
  std::filesystem::remove(path);
}

TEST(CatchUp, of_a_saved_run_goes_on_bit_for_bit) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05};
  CatchUp whole(true, options, kFloat32), second(true, {.lr = 0.7, .momentum = 0.9}, kFloat32);
  for (int64_t t = 0; t < 7; ++t) whole.learn(t);
  second.sgd = std::make_unique<SGD>(second.table.parameters(), options);
  second.table.load_state_dict(whole.table.state_dict());
  second.sgd->load_state_dict(whole.sgd->state_dict());
  for (int64_t t = 7; t < 20; ++t) whole.learn(t), second.learn(t);
  EXPECT_TRUE(same_bits(whole.weight(), second.weight()));
}

TEST(CatchUp, counts_no_skipped_step) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05};
  CatchUp sparse(true, options), dense(false, options);
  for (int64_t t = 0; t < 12; ++t)
    for (CatchUp* one : {&sparse, &dense}) {
      one->sgd->zero_grad();
      one->look_up(t).sum().backward();
      GradScaler scaler({.init_scale = 1});
      if (t % 4 == 1)
        one->weight().row_grad().defined() ? void(one->weight().row_grad().values.fill_(INFINITY))
                                           : void(one->weight().grad().fill_(INFINITY));
      scaler.step(*one->sgd);
    }
  EXPECT_EQ(sparse.sgd->steps(0), 9);
  EXPECT_TRUE(close(sparse.weight(), dense.weight(), 1e-12, 1e-13));
}

TEST(CatchUp, of_two_optimizers_in_turns_has_the_dense_numbers) {
  CatchUp sparse(true, {.lr = 0.1, .momentum = 0.9}), dense(false, {.lr = 0.1, .momentum = 0.9});
  SGD a(sparse.table.parameters(), {.lr = 0.2, .weight_decay = 0.1}),
      b(dense.table.parameters(), {.lr = 0.2, .weight_decay = 0.1});
  for (int64_t t = 0; t < 12; ++t) {
    sparse.learn(t), dense.learn(t);
    if (t % 3 == 0) a.step(), b.step();
  }
  EXPECT_TRUE(close(sparse.weight(), dense.weight(), 1e-12, 1e-13));
}

TEST(CatchUp, serves_readers_on_several_threads_at_once) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05};
  CatchUp sparse(true, options), dense(false, options);
  for (int64_t t = 0; t < 9; ++t) sparse.learn(t), dense.learn(t);
  std::vector<Tensor> seen(6);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i)
    threads.emplace_back([&, i] {
      NoGrad guard;
      seen[i] = i % 2 == 0 ? sparse.table.forward(arange(kTableRows)) : sparse.weight() * 1;
    });
  for (std::thread& t : threads) t.join();
  for (const Tensor& x : seen) EXPECT_TRUE(close(x, dense.weight(), 1e-12, 1e-13));
}

TEST(CatchUp, is_refused_where_readers_cannot_wait) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9};
  CatchUp shared(true, options);
  mark_concurrent(shared.weight());
  EXPECT_TRUE(has(error_of<ValueError>([&] { shared.learn(0); }), "that several threads use"));
  std::vector<float> memory(12, 1.f);
  const Tensor w = from_blob(memory.data(), {4, 3}).requires_grad_();
  SGD sgd({w}, options);
  embedding(w, arange(2), -1, true).sum().backward();
  EXPECT_TRUE(has(error_of<ValueError>([&] { sgd.step(); }), "in memory of from_blob()"));
  EXPECT_EQ(memory, std::vector<float>(12, 1.f));
}

}  // namespace
}  // namespace weft::optim
