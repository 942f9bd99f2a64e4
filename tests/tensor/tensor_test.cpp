// Tensors without gradients: bodies, storages, factories, reading, printing.
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/inner/free_list.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/io/npy.h>

#include "support/errors.h"

namespace weft {
namespace {

TEST(Tensor, undefined_tensor_throws_on_use) {
  const Tensor x;
  EXPECT_FALSE(x.defined());
  EXPECT_THROW(x.sizes(), ValueError);
  EXPECT_THROW(x.item<float>(), ValueError);
  const Tensor parameter = ones({2}).requires_grad_();
  const std::string text = test::error_of<ValueError>([&] { parameter.grad().sizes(); });
  EXPECT_TRUE(test::has(text, "call backward() first"));
}

TEST(Tensor, an_error_of_an_undefined_tensor_names_the_call) {
  Tensor x;
  const Tensor y = ones({2});
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"dim", [&] { x.dim(); }},
      {"sizes", [&] { x.sizes(); }},
      {"shape", [&] { x.shape(); }},
      {"strides", [&] { x.strides(); }},
      {"size", [&] { x.size(0); }},
      {"numel", [&] { x.numel(); }},
      {"dtype", [&] { x.dtype(); }},
      {"device", [&] { x.device(); }},
      {"storage_offset", [&] { x.storage_offset(); }},
      {"is_contiguous", [&] { x.is_contiguous(); }},
      {"is_floating_point", [&] { x.is_floating_point(); }},
      {"is_pinned", [&] { x.is_pinned(); }},
      {"shares_storage", [&] { y.shares_storage(x); }},
      {"version", [&] { x.version(); }},
      {"data", [&] { x.data<float>(); }},
      {"accessor", [&] { x.accessor<float, 1>(); }},
      {"item", [&] { x.item<float>(); }},
      {"to_vector", [&] { x.to_vector<float>(); }},
      {"requires_grad", [&] { x.requires_grad(); }},
      {"requires_grad_", [&] { x.requires_grad_(); }},
      {"grad", [&] { x.grad(); }},
      {"row_grad", [&] { x.row_grad(); }},
      {"set_grad", [&] { x.set_grad(y); }},
      {"zero_grad", [&] { x.zero_grad(); }},
      {"retain_grad", [&] { x.retain_grad(); }},
      {"detach", [&] { x.detach(); }},
      {"detach_", [&] { x.detach_(); }},
      {"t", [&] { x.t(); }},
      {"expand_as", [&] { y.expand_as(x); }},
      {"pin_memory", [&] { x.pin_memory(); }},
      {"register_hook", [&] { x.register_hook([](const Tensor& g) { return g; }); }},
      {"grad", [&] { grad({y.clone().requires_grad_().sum()}, {x}); }},
      {"save_npy", [&] { save_npy("/never/written.npy", x); }},
  };
  for (const auto& [name, call] : calls) {
    const std::string text = test::error_of<ValueError>(call);
    EXPECT_TRUE(text.starts_with(name + ": ")) << name << ": " << text;
    EXPECT_TRUE(test::has(text, " is undefined: it was never assigned, or it is a grad()")) << name;
  }
}

TEST(Tensor, empty_has_row_major_strides) {
  const Tensor x = empty({2, 3, 5}, {.dtype = kFloat64});
  EXPECT_EQ(x.sizes(), Shape({2, 3, 5}));
  EXPECT_EQ(x.strides(), Shape({15, 5, 1}));
  EXPECT_EQ(x.numel(), 30);
  EXPECT_EQ(x.dtype(), kFloat64);
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw()) % 64, 0u);
}

TEST(Tensor, empty_rejects_negative_and_huge_sizes) {
  EXPECT_THROW(empty({2, -3}), ShapeError);
  EXPECT_THROW(empty({int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
  EXPECT_THROW(empty({int64_t{1} << 61}, {.dtype = kFloat64}), ShapeError);
}

TEST(Tensor, zero_sized_tensors_work) {
  const Tensor x = zeros({0, 7});
  EXPECT_EQ(x.numel(), 0);
  EXPECT_TRUE(x.to_vector<float>().empty());
  EXPECT_EQ(to_string(x), "tensor([], sizes=[0, 7], float32)");
}

TEST(Tensor, copies_share_the_body_and_views_share_storage) {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  const Tensor y = x;
  EXPECT_TRUE(x.is_same(y));
  const Tensor column = alias(x, {2}, {3}, 1);
  EXPECT_TRUE(column.shares_storage(x));
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_EQ(column.to_vector<int>(), (std::vector<int>{2, 5}));
}

TEST(Tensor, alias_checks_bounds) {
  const Tensor x = zeros({2, 3});
  EXPECT_THROW(alias(x, {2, 4}, {3, 1}, 0), IndexError);
  EXPECT_THROW(alias(x, {1}, {1}, 6), IndexError);
  EXPECT_THROW(alias(x, {2}, {-1}, 0), IndexError);
  EXPECT_THROW(alias(x, {2, 1}, {1}, 0), ShapeError);
  EXPECT_EQ(alias(x, {3}, {-1}, 2).numel(), 3);
  EXPECT_EQ(alias(x, {0}, {1}, 6).numel(), 0);
}

TEST(Tensor, data_checks_the_type) {
  const Tensor x = ones({3});
  EXPECT_EQ(x.data<float>()[2], 1.0f);
  EXPECT_THROW(x.data<double>(), DTypeError);
}

TEST(Tensor, item_takes_one_element) {
  EXPECT_EQ(tensor({7}).item<int>(), 7);
  EXPECT_EQ(scalar_tensor(2.5).item<double>(), 2.5);
  EXPECT_EQ(full({}, true, {.dtype = kBool}).item<bool>(), true);
  EXPECT_EQ(full({1, 1}, 3, {.dtype = kFloat16}).item<float>(), 3.0f);
  EXPECT_THROW(tensor({1, 2}).item<float>(), ShapeError);
}

TEST(Tensor, large_integers_survive_item_and_vector) {
  const int64_t big = (int64_t{1} << 60) + 1;
  const Tensor x = from_vector(std::vector<int64_t>{big, -big}, {2});
  EXPECT_EQ(x.to_vector<int64_t>()[1], -big);
  EXPECT_EQ(alias(x, {}, {}, 0).item<int64_t>(), big);
}

TEST(Tensor, every_dtype_round_trips_through_vectors) {
  for (const DType t : {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
    const Tensor x = tensor({0, 1, 1}, {.dtype = t});
    EXPECT_EQ(x.dtype(), t);
    EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{0, 1, 1})) << to_string(t);
  }
  EXPECT_EQ(from_vector(std::vector<bool>{true, false}, {2}).dtype(), kBool);
}

TEST(Factories, full_and_like_take_sizes_and_type) {
  const Tensor x = full({2, 3}, 7, {.dtype = kInt32});
  EXPECT_EQ(x.to_vector<int>(), std::vector<int>(6, 7));
  EXPECT_EQ(ones_like(x).dtype(), kInt32);
  EXPECT_EQ(zeros_like(x).sizes(), x.sizes());
  EXPECT_EQ(full_like(x, 5).to_vector<int>(), std::vector<int>(6, 5));
}

TEST(Factories, arange_counts_up_and_down) {
  EXPECT_EQ(arange(5).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(arange(7, 0, -3, {.dtype = kInt32}).to_vector<int>(), (std::vector<int>{7, 4, 1}));
  EXPECT_EQ(arange(0, 1, 0.25, {.dtype = kFloat64}).to_vector<double>(),
            (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(arange(3, 3, 1, {}).numel(), 0);
  EXPECT_THROW(arange(0, 1, 0, {}), ValueError);
}

TEST(Factories, linspace_ends_exactly) {
  const std::vector<double> v = linspace(0, 0.3, 7, {.dtype = kFloat64}).to_vector<double>();
  EXPECT_EQ(v.front(), 0);
  EXPECT_EQ(v.back(), 0.3);
  EXPECT_NEAR(v[3], 0.15, 1e-15);
  EXPECT_EQ(linspace(2, 9, 1).item<double>(), 2);
  const double most = std::numeric_limits<double>::max();  // their difference is infinite
  EXPECT_EQ(linspace(-most, most, 3, {.dtype = kFloat64}).to_vector<double>(),
            (std::vector<double>{-most, 0, most}));
}

TEST(Factories, eye_has_a_diagonal) {
  EXPECT_EQ(eye(3).to_vector<int>(), (std::vector<int>{1, 0, 0, 0, 1, 0, 0, 0, 1}));
}

TEST(Factories, ragged_rows_and_wrong_counts_are_refused) {
  EXPECT_THROW(tensor({{1, 2}, {3}}), ShapeError);
  EXPECT_THROW(from_vector(std::vector<float>{1, 2, 3}, {2, 2}), ShapeError);
}

TEST(Factories, from_blob_wraps_and_releases_once) {
  static int released;
  released = 0;
  float memory[6] = {1, 2, 3, 4, 5, 6};
  {
    const Tensor x = from_blob(
        memory, {2, 3}, {}, [](void* count) { ++*static_cast<int*>(count); }, &released);
    memory[5] = 7;
    const Tensor view = alias(x, {3}, {1}, 3);
    EXPECT_EQ(view.to_vector<float>(), (std::vector<float>{4, 5, 7}));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_THROW(from_blob(nullptr, {2}, {}), ValueError);
}

TEST(Factories, random_tensors_follow_the_generator) {
  Generator a(1111), b(1111), c(1112);
  const Tensor x = randn({5, 7}, {}, &a);
  EXPECT_EQ(x.to_vector<float>(), randn({5, 7}, {}, &b).to_vector<float>());
  EXPECT_NE(x.to_vector<float>(), randn({5, 7}, {}, &c).to_vector<float>());
  EXPECT_NE(x.to_vector<float>(), randn({5, 7}, {}, &a).to_vector<float>());
  for (const double u : rand({101}, {}, &a).to_vector<double>()) {
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
  }
  for (const int64_t k : randint(-2, 3, {101}, {.dtype = kInt64}, &a).to_vector<int64_t>()) {
    EXPECT_GE(k, -2);
    EXPECT_LT(k, 3);
  }
  EXPECT_THROW(randint(3, 3, {2}), ValueError);
  EXPECT_THROW(rand({2}, {.dtype = kInt32}), DTypeError);
}

TEST(Factories, randperm_is_a_permutation) {
  Generator g(5);
  std::vector<int64_t> p = randperm(97, &g).to_vector<int64_t>();
  EXPECT_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  EXPECT_EQ(p, arange(97).to_vector<int64_t>());
}

TEST(Generator, forks_are_independent_of_order_and_offset) {
  Generator g(7);
  const Generator early = g.fork(3);
  g.take(1000);
  g.fork(4);
  EXPECT_EQ(g.fork(3).seed(), early.seed());
  EXPECT_EQ(g.fork(3).offset(), 0u);
  EXPECT_NE(g.fork(4).seed(), early.seed());
  EXPECT_NE(Generator(8).fork(3).seed(), early.seed());
}

TEST(Generator, take_hands_out_disjoint_blocks) {
  Generator g(7);
  const PhiloxKey first = g.take(5), second = g.take(1);
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(second.offset, 3u);
  EXPECT_EQ(g.offset(), 4u);
}

TEST(Print, shows_values_and_type) {
  EXPECT_EQ(to_string(tensor({{1, 2}, {3, 4}})), "tensor([[1, 2], [3, 4]], float32)");
  EXPECT_EQ(to_string(scalar_tensor(0.5, {.dtype = kFloat64})), "tensor(0.5, float64)");
  EXPECT_EQ(to_string(tensor({1, 0}, {.dtype = kBool})), "tensor([true, false], bool)");
  EXPECT_EQ(to_string(Tensor()), "tensor(undefined)");
}

TEST(Print, elides_long_dims_and_aligns_rows) {
  const std::string line = to_string(arange(1001));
  EXPECT_EQ(line, "tensor([0, 1, 2, ..., 998, 999, 1000], int64)");
  const std::string grid = to_string(zeros({101, 101}));
  EXPECT_NE(grid.find("[0, 0, 0, ..., 0, 0, 0]"), std::string::npos);
  EXPECT_LT(grid.size(), 400u);
  const std::string rows = to_string(full({3, 23}, 12.5));
  EXPECT_NE(rows.find("],\n        [12.5"), std::string::npos);
}

TEST(FreeList, blocks_may_be_freed_on_other_threads_and_after_exit) {
  std::vector<void*> blocks;
  std::thread([&] {
    for (int i = 0; i < 101; ++i) blocks.push_back(pool_allocate(200));
    for (int i = 0; i < 7; ++i) pool_free(pool_allocate(200), 200);
  }).join();
  for (void* p : blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    pool_free(p, 200);
  }
  void* big = pool_allocate(5000);
  EXPECT_NE(big, nullptr);
  pool_free(big, 5000);
}

TEST(FreeList, tensors_made_here_and_dropped_there_leave_nothing) {
  std::vector<Tensor> made;
  for (int i = 0; i < 503; ++i) made.push_back(full({3}, i));
  std::thread([moved = std::move(made)]() mutable {
    double sum = 0;
    for (const Tensor& x : moved) sum += x.to_vector<double>()[1];
    EXPECT_EQ(sum, 503 * 502 / 2.0);
    moved.clear();
  }).join();
  EXPECT_EQ(full({3}, 2).to_vector<int>(), std::vector<int>(3, 2));
}

/// Tensors of these sizes as parts of one block, 64 bytes before the first and behind each.
std::vector<Tensor> parts_of_one_block(const std::vector<Shape>& sizes, Device device = {}) {
  size_t bytes = 64;
  for (const Shape& s : sizes) bytes += static_cast<size_t>(s.numel()) * 4 + 64;
  const Ref<Storage> whole = Storage::allocate(device, bytes);
  std::vector<Tensor> out;
  size_t at = 64;
  for (const Shape& s : sizes) {
    const size_t mine = static_cast<size_t>(s.numel()) * 4;
    out.emplace_back(Ref<TensorBody>::adopt(
        new TensorBody(Storage::part(whole, at, mine), 0, s, contiguous_strides(s), kFloat32)));
    at += mine + 64;
  }
  return out;
}

TEST(Storage, parts_of_one_block_are_storages_of_their_own) {
  std::vector<Tensor> parts = parts_of_one_block({{3, 2}, {5}});
  Tensor a = parts[0].fill_(1).requires_grad_(), b = parts[1].fill_(2).requires_grad_();
  parts.clear();
  const Storage &of_a = *a.body().storage, &of_b = *b.body().storage;
  EXPECT_EQ(of_a.bytes(), 24u);
  ASSERT_EQ(of_a.whole(), of_b.whole());
  EXPECT_EQ(static_cast<char*>(of_b.data()) - static_cast<char*>(of_a.data()), 24 + 64);
  EXPECT_EQ(of_b.allocation(), of_a.whole()->data());
  EXPECT_FALSE(a.shares_storage(b) || of_a.is_borrowed() || launch::share_memory(a, b));
  const uint32_t version = b.version();
  const Tensor loss = (b * b).sum();
  {
    const NoGrad off;
    a.mul_(3);
  }
  EXPECT_EQ(b.version(), version);
  loss.backward();  // the write to a is none to b
  EXPECT_EQ(b.grad().to_vector<double>(), std::vector<double>(5, 4));
  EXPECT_EQ(of_a.whole()->use_count(), 2u);
  b.freeze();
  EXPECT_FALSE(a.is_frozen());
  const Storage* const whole = of_a.whole();
  b = Tensor();
  EXPECT_EQ(whole->use_count(), 1u);  // the block lives on with the last part
  EXPECT_EQ(a.detach().to_vector<double>(), std::vector<double>(6, 3));
  EXPECT_THROW(Storage::part(Storage::allocate(kCpu, 8), 4, 5), ValueError);
}

TEST(Storage, a_part_that_is_marked_concurrent_leaves_the_block_when_a_graph_holds_it) {
  std::vector<Tensor> parts = parts_of_one_block({{2}, {2}});
  Tensor a = parts[0].fill_(1).requires_grad_(), b = parts[1].fill_(2);
  mark_concurrent(a);
  EXPECT_EQ(a.body().storage->whole(), nullptr);
  EXPECT_EQ(a.body().storage->allocation(), b.body().storage->whole()->data());
  const Tensor loss = (a * a).sum();
  a.set_grad(ones({2}));
  optim::SGD({a}, {.lr = 0.5}).step();
  EXPECT_EQ(a.body().storage->allocation(), a.address());
  loss.backward();
  EXPECT_EQ(a.grad().to_vector<double>(), std::vector<double>(2, 3));  // 1 + 2 * the value before
  EXPECT_EQ(a.detach().to_vector<double>(), std::vector<double>(2, 0.5));
  EXPECT_EQ(b.to_vector<double>(), std::vector<double>(2, 2));
}

}  // namespace
}  // namespace weft
