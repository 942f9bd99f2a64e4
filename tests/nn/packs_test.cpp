// Kept packs of weights: a product sees every write since the last one, by whichever path, and has the bits
// of a product that packs its weight anew.
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <weft/autograd/tape/gradcheck.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/packs.h>
#include <weft/weft.h>

#include "../support/errors.h"

namespace weft::pack_tests {
namespace {

using test::error_of;
using test::has;

constexpr int64_t kRows = 56, kIn = 64, kOut = 72;  // more rows than any product in place takes

/// Begins without packs, with the engine that can keep them, and restores engine and limit.
class Packs : public ::testing::Test {
 protected:
  Packs() { drop_packs(), kernels::set_gemm_engine(kernels::GemmEngine::kTile); }
  ~Packs() override { set_pack_limit(limit_), kernels::set_gemm_engine(engine_); }

 private:
  const int64_t limit_ = pack_limit();
  const kernels::GemmEngine engine_ = kernels::gemm_engine();
};

Tensor weight() { return randn({kOut, kIn}); }
Tensor input(int64_t rows = kRows) { return randn({rows, kIn}); }

/// The product with a copy of w, which has no pack.
Tensor packed_anew(const Tensor& x, const Tensor& w) {
  const NoGrad quiet;
  return linear(x, w.clone());
}

/// Makes as many products as it takes to use a kept pack.
void warm(const Tensor& x, const Tensor& w) {
  const NoGrad quiet;
  for (int i = 0; i < 3; ++i) linear(x, w);
}
bool keeps(const Tensor& x, const Tensor& w) {
  warm(x, w);
  const int64_t before = pack_stats().reused;
  const NoGrad quiet;
  linear(x, w);
  return pack_stats().reused > before;
}

void expect_current(const Tensor& x, const Tensor& w, const std::string& after) {
  const Tensor want = packed_anew(x, w);
  const NoGrad quiet;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(linear(x, w).equal(want)) << after << ", product " << i;
}

TEST_F(Packs, the_second_product_keeps_a_pack_and_later_ones_use_it) {
  const Tensor x = input(), w = weight();
  const PackStats before = pack_stats();
  const Tensor first = linear(x, w);
  EXPECT_EQ(pack_stats().made, before.made);
  const Tensor second = linear(x, w);
  EXPECT_EQ(pack_stats().made, before.made + 1);
  EXPECT_GE(pack_stats().bytes - before.bytes, w.numel() * 4);
  const Tensor third = linear(x, w), fourth = linear(input(), w);
  EXPECT_EQ(pack_stats().reused, before.reused + 2);
  EXPECT_TRUE(second.equal(first));
  EXPECT_TRUE(third.equal(first));
  drop_packs();
  EXPECT_EQ(pack_stats().bytes, 0);
  EXPECT_EQ(pack_stats().packs, 0);
  EXPECT_TRUE(linear(x, w).equal(first));
}

TEST_F(Packs, a_product_sees_every_write_to_its_weight) {
  using Write = std::function<void(Tensor&)>;
  const Tensor other = weight();
  const std::vector<std::pair<std::string, Write>> writes = {
      {"mul_", [](Tensor& w) { w.mul_(1.5); }},
      {"zero_", [](Tensor& w) { w.zero_(); }},
      {"copy_", [&](Tensor& w) { w.copy_(other); }},
      {"+=", [&](Tensor& w) { w += other; }},
      {"uniform_", [](Tensor& w) { w.uniform_(-1, 1); }},
      {"clamp_", [](Tensor& w) { w.clamp_(-0.5, 0.5); }},
      {"masked_fill_", [](Tensor& w) { w.masked_fill_(w.detach().gt(0), 3); }},
      {"index_put_",
       [](Tensor& w) {
         w.index_put_({1, 2}, 9);
       }},
      {"scatter_",
       [](Tensor& w) {
         w.scatter_(0, zeros({1, kIn}, {.dtype = kInt64}), 7);
       }},
      {"a view", [](Tensor& w) { w[3] = 2; }},
      {"a view of columns", [](Tensor& w) { w.t().narrow(0, 5, 3).fill_(1); }},
      {"an alias", [](Tensor& w) { w.detach().add_(1); }},
      {"init", [](Tensor& w) { nn::init::normal_(w, 0, 2); }},
      {"set_data", [&](Tensor& w) { set_data(w, other); }},
      {"data", [](Tensor& w) { w.data<float>()[7] = 5; }},
      {"raw", [](Tensor& w) { static_cast<float*>(w.raw())[7] = 5; }},
      {"accessor", [](Tensor& w) { w.accessor<float, 2>()[2][3] = 5; }},
  };
  const NoGrad quiet;
  for (const auto& [name, write] : writes) {
    const Tensor x = input();
    Tensor w = weight();
    ASSERT_TRUE(keeps(x, w)) << name;
    write(w);
    expect_current(x, w, name);
    if (name == "data" || name == "raw" || name == "accessor") continue;
    write(w);
    expect_current(x, w, name + " again");
  }
}

TEST_F(Packs, a_product_sees_steps_of_optimizers) {
  const auto check = [](const char* name, auto&& make) {
    const Tensor x = input(), w = weight().requires_grad_();
    auto optimizer = make(std::vector<Tensor>{w});
    for (int i = 0; i < 3; ++i) {
      for (int micro = 0; micro < 3; ++micro) linear(x, w).square().mean().backward();
      expect_current(x, w, name);
      optimizer->step();
      expect_current(x, w, name);
      optimizer->zero_grad();
    }
  };
  using List = std::vector<Tensor>;
  check("SGD", [](List p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1}); });
  check("Adam", [](List p) { return std::make_unique<optim::Adam>(p, optim::AdamOptions{.lr = 0.1}); });
}

TEST_F(Packs, a_product_sees_a_loaded_state) {
  const Tensor x = input();
  nn::Linear layer(kIn, kOut), other(kIn, kOut);
  ASSERT_TRUE(keeps(x, layer.weight));
  layer.load_state_dict(other.state_dict());
  expect_current(x, layer.weight, "load_state_dict");
  EXPECT_TRUE(layer.weight.equal(other.weight));
}

TEST_F(Packs, memory_of_the_program_keeps_none) {
  const Tensor x = input();
  const auto sees_writes = [&](const char* name, const Tensor& w, float* at) {
    EXPECT_FALSE(keeps(x, w)) << name;
    at[11] += 3;
    expect_current(x, w, name);
    at[12] += 3;
    expect_current(x, w, name);
  };
  const Tensor before = weight();
  sees_writes("a pointer from before", before, before.data<float>());
  const Tensor between = weight();
  ASSERT_TRUE(keeps(x, between));
  float* const pointer = between.data<float>();
  sees_writes("a pointer from between", between, pointer);

  std::vector<float> memory(kOut * kIn, 0.5f);
  sees_writes("from_blob", from_blob(memory.data(), {kOut, kIn}), memory.data());
  const float* const reading = memory.data();
  sees_writes("from_blob of a const pointer", from_blob(reading, {kOut, kIn}), memory.data());

  constexpr size_t bytes = kOut * kIn * sizeof(float);
  void* const segment = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(segment, MAP_FAILED);
  {
    const Tensor shared(
        Ref<TensorBody>::adopt(new TensorBody(Storage::take_over(
                                                  kCpu, segment, bytes, [](void*) {}, nullptr),
                                              0, {kOut, kIn}, {kIn, 1}, kFloat32)));
    sees_writes("a shared segment", shared, static_cast<float*>(segment));
  }
  munmap(segment, bytes);
}

TEST_F(Packs, addresses_to_read_end_no_packs) {
  const Tensor x = input(), w = weight();
  static_cast<void>(w.data<const float>());
  static_cast<void>(w.const_raw());
  static_cast<void>(w.accessor<const float, 2>());
  static_cast<void>(w.to_vector<float>());
  EXPECT_TRUE(keeps(x, w));
}

TEST_F(Packs, a_view_and_its_base_have_packs_of_their_own) {
  const Tensor x = input(), base = randn({2 * kOut, kIn}), low = base.narrow(0, 0, kOut),
               high = base.narrow(0, kOut, kOut);
  for (const Tensor& w : {low, high, base}) EXPECT_TRUE(keeps(x, w));
  for (const Tensor& w : {low, high, base}) expect_current(x, w, "before");
  const NoGrad quiet;
  Tensor(base).mul_(2);
  for (const Tensor& w : {high, base, low}) expect_current(x, w, "after");
}

TEST_F(Packs, new_memory_at_an_old_address_has_no_old_pack) {
  const Tensor x = input();
  const int64_t before = pack_stats().packs;
  for (int i = 0; i < 20; ++i) {
    const Tensor w = weight();
    ASSERT_TRUE(keeps(x, w));
    EXPECT_EQ(pack_stats().packs, before + 1);
    expect_current(x, w, "new");
  }
  EXPECT_EQ(pack_stats().packs, before);
}

TEST_F(Packs, matmul_keeps_packs_of_leaves_and_backward_of_what_linear_keeps) {
  const Tensor x = input(), leaf = randn({kIn, kOut}).requires_grad_();
  const PackStats start = pack_stats();
  for (int i = 0; i < 3; ++i) matmul(x, leaf).sum().backward();
  EXPECT_EQ(pack_stats().made, start.made + 1);
  EXPECT_GT(pack_stats().reused, start.reused);

  const Tensor w = weight().requires_grad_(), g = randn({kRows, kOut});
  std::vector<Tensor> grads;
  const PackStats before = pack_stats();
  for (int i = 0; i < 4; ++i) {
    Tensor in = x.detach().requires_grad_();
    linear(in, w).backward(g);
    grads.push_back(in.grad());
  }
  EXPECT_GE(pack_stats().made, before.made + 2);  // of w and of its transpose
  for (const Tensor& grad : grads) EXPECT_TRUE(grad.equal(grads[0]));
}

TEST_F(Packs, the_bits_are_the_same_with_and_without_packs) {
  const auto all = [] {
    manual_seed(3);
    std::vector<Tensor> out;
    for (const DType dtype : {kFloat32, kFloat64})
      for (const int64_t batch : {1, 3, 9, 13, 30}) {
        const nn::Linear layer(400, 70, {.dtype = dtype});
        const nn::LSTM lstm(64, 70, {.dtype = dtype});
        const nn::GRU gru(64, 70, {.dtype = dtype});
        const Tensor a = randn({batch, 400}, {.dtype = dtype}), x = randn({2, batch, 64}, {.dtype = dtype});
        for (int i = 0; i < 4; ++i) {
          Tensor in = x.detach().requires_grad_();
          const Tensor y = layer.forward(a);
          (y.square().sum() + lstm.forward(in).y.square().sum() + gru.forward(in).y.square().sum())
              .backward();
          out.push_back(y.detach());
          out.push_back(in.grad());
        }
        for (const nn::Module* m : std::initializer_list<const nn::Module*>{&layer, &lstm, &gru})
          for (const Tensor& p : m->parameters()) out.push_back(p.grad());
      }
    return out;
  };
  const PackStats before = pack_stats();
  const std::vector<Tensor> kept = all();
  EXPECT_GT(pack_stats().reused, before.reused + 50);
  set_pack_limit(0);
  const std::vector<Tensor> anew = all();
  ASSERT_EQ(kept.size(), anew.size());
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(anew[i])) << i;
}

TEST_F(Packs, another_instruction_set_has_packs_of_its_own) {
  const Tensor x = input(), w = weight();
  const std::string own = cpu_isa();
  for (const char* const name : {"baseline", "avx2", "avx512", "baseline"}) {
    try {
      set_cpu_isa(name);
    } catch (const ValueError&) {
      continue;
    }
    expect_current(x, w, name);
  }
  set_cpu_isa(own.c_str());
}

TEST_F(Packs, recurrent_layers_see_writes_between_steps_of_time) {
  nn::LSTMCell cell(64, 64);
  const NoGrad quiet;
  const Tensor x = input(), h = randn({kRows, 64}), c = randn({kRows, 64});
  const auto expect_same = [&] {
    const auto fresh = nn::clone(cell, 64, 64);
    const nn::CellState want = fresh->forward(x, h, c);
    for (int i = 0; i < 4; ++i) {
      const nn::CellState got = cell.forward(x, h, c);
      EXPECT_TRUE(got.h.equal(want.h) && got.c.equal(want.c)) << i;
    }
  };
  const PackStats before = pack_stats();
  expect_same();
  EXPECT_GT(pack_stats().reused, before.reused);
  Tensor(cell.weight_hh).mul_(0.5);
  expect_same();
  Tensor(cell.weight_ih)[5] = 1;
  expect_same();
}

TEST_F(Packs, replays_of_compile_see_new_values) {
  Tensor x = input(), w = weight();
  auto f = compile([&](const Tensor& in) { return linear(in, w); });
  const NoGrad quiet;
  for (int i = 0; i < 11; ++i) {
    if (i % 4 == 3) w.mul_(1.25);
    EXPECT_TRUE(f(x).equal(packed_anew(x, w))) << i;
  }
  EXPECT_GT(f.stats().replays, 4);
  const int64_t before = pack_stats().reused;
  f(x);
  EXPECT_GT(pack_stats().reused, before);
  EXPECT_EQ(f.reason(), "");
}

TEST_F(Packs, a_replay_that_writes_between_two_products_uses_no_pack_from_before) {
  const Tensor x = input();
  Tensor w = weight(), plain = w.clone();
  const auto body = [&x](Tensor& v) {
    const Tensor first = linear(x, v), again = linear(x, v);
    v.mul_(1.125);
    return std::vector<Tensor>{first, again, linear(x, v), linear(x, v)};
  };
  auto f = compile([&] { return body(w); });
  const NoGrad quiet;
  set_pack_limit(0);
  std::vector<std::vector<Tensor>> want;
  for (int i = 0; i < 8; ++i) want.push_back(body(plain));
  set_pack_limit(1 << 24);
  for (size_t i = 0; i < 8; ++i) {
    const std::vector<Tensor> got = f();
    for (size_t k = 0; k < got.size(); ++k) EXPECT_TRUE(got[k].equal(want[i][k])) << i << ' ' << k;
    expect_current(x, w, "a replay");
  }
  EXPECT_GT(f.stats().replays, 2);
}

TEST_F(Packs, a_replayed_training_step_trains_as_without_packs) {
  const auto train = [](bool replayed) {
    manual_seed(5);
    const Tensor x = input();
    Tensor w = weight().requires_grad_();
    optim::SGD sgd({w}, {.lr = 0.01});
    const auto step = [&] {
      sgd.zero_grad();
      const Tensor loss = linear(x, w).square().mean() + linear(x, w).mean();
      loss.backward();
      sgd.step();
      return loss.detach();
    };
    auto f = compile(step);
    for (int i = 0; i < 8; ++i) {
      replayed ? f() : step();
      expect_current(x, w, "a step");
    }
    return w.detach();
  };
  const Tensor a = train(true), b = train(false);
  set_pack_limit(0);
  const Tensor c = train(false);
  EXPECT_TRUE(a.equal(b));
  EXPECT_TRUE(b.equal(c));
}

TEST_F(Packs, micro_batches_between_two_steps_share_packs) {
  const Tensor w = weight().requires_grad_(), x = input();
  optim::SGD sgd({w}, {.lr = 0.01});
  int64_t made = 0;
  for (int step = 0; step < 4; ++step) {
    const PackStats before = pack_stats();
    for (int micro = 0; micro < 4; ++micro) linear(x, w).square().mean().backward();
    sgd.step();
    sgd.zero_grad();
    const PackStats after = pack_stats();
    EXPECT_EQ(after.made - before.made, 1) << step;
    EXPECT_GE(after.reused - before.reused, step == 0 ? 2 : 3) << step;  // then from the first product on
    made = after.packs;
  }
  EXPECT_EQ(made, 1);
}

TEST_F(Packs, a_weight_used_once_between_writes_keeps_none) {
  const Tensor w = weight().requires_grad_(), x = input();
  optim::SGD sgd({w}, {.lr = 0.01});
  const PackStats before = pack_stats();
  for (int step = 0; step < 5; ++step) {
    linear(x, w).square().mean().backward();
    sgd.step();
    sgd.zero_grad();
  }
  EXPECT_EQ(pack_stats().made, before.made);
}

TEST_F(Packs, gradcheck_moves_elements_of_a_weight) {
  const Tensor x = randn({kRows, 32}, {.dtype = kFloat64});
  const Tensor w = randn({64, 32}, {.dtype = kFloat64, .requires_grad = true});
  const auto f = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{(linear(x, in[0]) + linear(x, in[0])).narrow(1, 0, 2)};
  };
  const GradcheckResult result = gradcheck(f, {w});
  EXPECT_TRUE(result.ok) << result.message;
}

TEST_F(Packs, the_limit_holds) {
  EXPECT_GT(pack_limit(), 0);
  const std::string text = error_of<ValueError>([] { set_pack_limit(-1); });
  EXPECT_TRUE(has(text, "set_pack_limit")) << text;
  const Tensor x = input(), w = weight(), other = weight();
  set_pack_limit(0);
  EXPECT_EQ(pack_limit(), 0);
  EXPECT_FALSE(keeps(x, w));
  EXPECT_EQ(pack_stats().bytes, 0);
  set_pack_limit(kOut * kIn * 4 * 3 / 2);  // one of them
  EXPECT_TRUE(keeps(x, w));
  EXPECT_FALSE(keeps(x, other));
  EXPECT_LE(pack_stats().bytes, pack_limit());
  expect_current(x, w, "the limit");
  expect_current(x, other, "the limit");
  for (int i = 0; i < 5000; ++i) warm(x, other);  // w is idle
  EXPECT_TRUE(keeps(x, other));
  EXPECT_LE(pack_stats().bytes, pack_limit());
  set_pack_limit(10);
  EXPECT_EQ(pack_stats().packs, 0);
  expect_current(x, other, "a lower limit");
}

TEST_F(Packs, an_allocation_without_memory_drops_them) {
  const Tensor x = input(), w = weight();
  ASSERT_TRUE(keeps(x, w));
  ASSERT_GT(pack_stats().packs, 0);
  EXPECT_THROW(empty({(int64_t{1} << 46) - 64}, {.dtype = kUInt8}), OutOfMemoryError);
  EXPECT_EQ(pack_stats().packs, 0);
  EXPECT_EQ(pack_stats().bytes, 0);
  expect_current(x, w, "no memory");
}

TEST_F(Packs, a_parameter_marked_concurrent_keeps_none) {
  const Tensor x = input(), w = weight().requires_grad_();
  ASSERT_TRUE(keeps(x, w));
  mark_concurrent(w);
  EXPECT_FALSE(keeps(x, w));
  optim::SGD sgd({w}, {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    const Tensor y = linear(x, w);  // holds the block
    y.sum().backward();
    sgd.step();
    const NoGrad quiet;
    EXPECT_TRUE(linear(x, w).equal(linear(x, snapshot(w).detach().clone())));
  }
}

TEST(PackThreads, threads_share_a_weight) {
  drop_packs();
  std::atomic<int> wrong{0};
  Tensor w = weight();
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const NoGrad quiet;
        const ThreadScope one(1);
        const Tensor x = input(30 + t), want = packed_anew(x, w);
        for (int i = 0; i < 20; ++i) {
          if (!linear(x, w).equal(want)) ++wrong;
          if (t == 0 && i % 7 == 6) drop_packs();
        }
      });
    for (std::thread& t : threads) t.join();
    const NoGrad quiet;
    w.mul_(0.75);
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST(PackThreads, weights_of_several_threads_come_and_go) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const NoGrad quiet;
      const ThreadScope one(1);
      const Tensor x = input();
      for (int i = 0; i < 20; ++i) {
        Tensor w = weight();
        const Tensor want = packed_anew(x, w);
        for (int k = 0; k < 3; ++k)
          if (!linear(x, w).equal(want)) ++wrong;
        w.add_(1);
        if (!linear(x, w).equal(packed_anew(x, w))) ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace weft::pack_tests
