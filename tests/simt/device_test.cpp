// A CUDA device as users of tensors see it, on the emulated one: moving, making, printing and saving tensors,
// models and optimizers.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include <weft/kernels/cuda/host/no_device.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/errors.h"
#include "support/simt/device.h"
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft {
namespace {

using std::vector;

struct SimtDevice : testing::Test {
  SimtDevice() { cuda::simt::install(); }
  const Device gpu = "cuda";
  const Device second = "cuda:1";
};

TEST_F(SimtDevice, tensors_move_to_it_from_it_and_between_devices) {
  const Tensor x = arange(0, 6, 1, {.dtype = kFloat32}).view({2, 3});
  for (const Tensor& source : {x, x.t(), x.narrow(1, 1, 2)}) {
    const Tensor y = source.to(gpu);
    EXPECT_EQ(y.device(), gpu);
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_EQ(y.to_vector<float>(), source.to_vector<float>());
    const Tensor z = y.to(second);
    EXPECT_EQ(z.device(), second);
    EXPECT_EQ(z.to("cuda:0").to(kCpu).to_vector<float>(), source.to_vector<float>());
    EXPECT_EQ(y.t().to(second).to_vector<float>(), source.t().to_vector<float>());
  }
  const Tensor y = x.to(gpu);
  EXPECT_TRUE(y.to(gpu).is_same(y));
  EXPECT_EQ(zeros({0, 3}).to(gpu).to(second).sizes(), (Shape{0, 3}));
  EXPECT_THROW(x.to("cuda:2"), DeviceError);
}

TEST_F(SimtDevice, gradients_go_back_where_the_values_came_from) {
  Tensor w = tensor({1., 2., 3.}).requires_grad_();
  const Tensor y = w.to(gpu) * w.to(second).to(gpu);
  y.sum().backward();
  EXPECT_EQ(w.grad().device(), kCpu);
  EXPECT_EQ(w.grad().to_vector<float>(), (vector<float>{2, 4, 6}));
}

TEST_F(SimtDevice, factories_make_what_the_cpu_makes) {
  const TensorOptions there{.device = gpu};
  const auto same = [](const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.device(), Device("cuda"));
    EXPECT_EQ(a.dtype(), b.dtype());
    EXPECT_EQ(a.sizes(), b.sizes());
    EXPECT_EQ(a.to_vector<double>(), b.to_vector<double>());
  };
  same(zeros({2, 3}, there), zeros({2, 3}));
  same(full({5}, 2.5, there), full({5}, 2.5));
  same(arange(1, 8, 2, {.dtype = kInt64, .device = gpu}), arange(1, 8, 2, {.dtype = kInt64}));
  same(linspace(0, 1, 7, there), linspace(0, 1, 7));
  same(eye(3, there), eye(3));
  same(tensor({{1., 2.}, {3., 4.}}, there), tensor({{1., 2.}, {3., 4.}}));
  same(from_vector(vector<int64_t>{4, 5}, {2}, gpu), from_vector(vector<int64_t>{4, 5}, {2}));
  same(ones_like(zeros({3}, there)), ones({3}));
  EXPECT_TRUE(ones({2}, {.device = gpu, .requires_grad = true}).requires_grad());
}

TEST_F(SimtDevice, a_seed_gives_the_same_numbers_on_every_device) {
  for (const Device device : {gpu, second}) {
    Generator here(7), there(7);
    EXPECT_EQ(rand({33}, {.device = device}, &there).to_vector<float>(),
              rand({33}, {}, &here).to_vector<float>());
    EXPECT_EQ(randn({31}, {.device = device}, &there).to_vector<float>(),
              randn({31}, {}, &here).to_vector<float>());
    EXPECT_EQ(randint(-5, 90, {9}, {.dtype = kInt64, .device = device}, &there).to_vector<int64_t>(),
              randint(-5, 90, {9}, {.dtype = kInt64}, &here).to_vector<int64_t>());
    EXPECT_EQ(there.offset(), here.offset());
  }
}

TEST_F(SimtDevice, tensors_of_two_devices_do_not_meet) {
  const Tensor host = ones({2, 2}), a = ones({2, 2}, {.device = gpu}), b = ones({2, 2}, {.device = second});
  for (const auto& [x, y] : vector<std::pair<Tensor, Tensor>>{{host, a}, {a, b}}) {
    try {
      x + y;
      ADD_FAILURE() << "added tensors of two devices";
    } catch (const DeviceError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("add"), std::string::npos) << text;
      EXPECT_NE(text.find(to_string(x.device())), std::string::npos) << text;
      EXPECT_NE(text.find(to_string(y.device())), std::string::npos) << text;
    }
    EXPECT_THROW(matmul(x, y), DeviceError);
    EXPECT_THROW(cat({x, y}), DeviceError);
    EXPECT_THROW(where(x > 0, y, y), DeviceError);
  }
  EXPECT_THROW(a.data<float>(), DeviceError);
  Tensor filled = zeros({2, 2}, {.device = gpu});
  filled.copy_(host);  // a copy is the way between them
  filled.narrow(0, 0, 1).copy_(b.narrow(0, 0, 1) * 3);
  EXPECT_EQ(filled.to_vector<float>(), (vector<float>{3, 3, 1, 1}));
}

TEST_F(SimtDevice, a_compiled_function_runs_as_usual_for_tensors_of_the_device) {
  auto f = compile([](const Tensor& x) { return x * 2 + 1; });
  for (int i = 0; i < 4; ++i) {
    const Tensor y = f(full({2}, i, {.dtype = kFloat32, .device = gpu}));
    EXPECT_EQ(y.device(), gpu);
    EXPECT_EQ(y.to_vector<float>(), (vector<float>(2, 2.0f * static_cast<float>(i) + 1)));
    EXPECT_EQ(f.reason(), "an argument is not on the CPU");
  }
  EXPECT_EQ(f.stats().eager, 4);
  const Tensor there = ones({2}, {.device = gpu});
  auto captures = compile([&](const Tensor& x) { return (x.to(gpu) * there).to(kCpu); });
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(captures(full({2}, i, {.dtype = kFloat32})).to_vector<float>(),
              (vector<float>(2, static_cast<float>(i))));
  EXPECT_NE(captures.reason(), "");
}

TEST_F(SimtDevice, integers_are_not_divided_by_the_number_zero) {
  for (const DType t : {kInt64, kInt32, kUInt8, kBool}) {
    const Tensor x = ones({3}, {.dtype = t, .device = "cuda:0"});
    for (const Scalar zero : {Scalar(0), Scalar(0.0)}) {
      EXPECT_THROW(remainder(x, zero), ValueError);
      EXPECT_THROW(fmod(x, zero), ValueError);
      EXPECT_THROW(floor_divide(x, zero), ValueError);
    }
  }
  Tensor y = ones({3}, {.dtype = kInt64, .device = "cuda:0"});
  EXPECT_THROW(y %= 0, ValueError);
  const std::vector<int64_t> zeros(3, 0);  // the device's zeros are not waited for
  EXPECT_EQ((y % zeros_like(y)).to_vector<int64_t>(), zeros);
  EXPECT_EQ(remainder(5, zeros_like(y)).to_vector<int64_t>(), zeros);
  EXPECT_EQ(floor_divide(5, zeros_like(y)).to_vector<int64_t>(), zeros);
}

TEST_F(SimtDevice, printing_shows_values_and_device) {
  EXPECT_EQ(to_string(tensor({1., 2.5}, {.device = gpu})), "tensor([1, 2.5], float32, cuda:0)");
  EXPECT_EQ(to_string(tensor({{1., 2.}, {3., 4.}}, {.dtype = kInt64, .device = second}).t()),
            "tensor([[1, 3], [2, 4]], int64, cuda:1)");
  EXPECT_NE(to_string(ones({60, 60}, {.device = gpu})).find("..."), std::string::npos);
}

TEST_F(SimtDevice, files_hold_what_the_device_holds) {
  const std::string path = testing::TempDir() + "device_test.safetensors";
  const Tensor x = tensor({{1., 2.}, {3., 4.}}, {.device = gpu});
  save_safetensors(path, {{"x", x}, {"x_t", x.t().contiguous()}, {"half", x.to(kBFloat16)}});
  const SafetensorsFile file = load_safetensors(path);
  EXPECT_EQ(file.find("x").device(), kCpu);
  EXPECT_EQ(file.find("x").to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(file.find("x_t").to_vector<float>(), (vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(file.find("half").to_vector<float>(), x.to_vector<float>());
  std::remove(path.c_str());
}

/// A layer with a buffer.
struct Scaled : nn::Module {
  nn::Linear linear{3, 2};
  Tensor scale = add_buffer("scale", full({2}, 0.5));
  Scaled() { add("linear", linear); }
  Tensor forward(const Tensor& x) { return linear.forward(x) * scale; }
};

TEST_F(SimtDevice, a_module_moves_with_parameters_buffers_and_gradients_of_use) {
  Scaled model;
  const Tensor x = ones({4, 3});
  const vector<float> expected = model.forward(x).to_vector<float>();
  const vector<Tensor> held = model.parameters();
  model.to(gpu);
  for (const auto& [name, tensor] : model.state_dict()) EXPECT_EQ(tensor.device(), gpu) << name;
  EXPECT_EQ(held[0].device(), gpu);  // handles held elsewhere follow
  const Tensor y = model.forward(x.to(gpu));
  const vector<float> got = y.to_vector<float>();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6);
  y.sum().backward();
  EXPECT_EQ(model.linear.weight.grad().device(), gpu);
  EXPECT_THROW(model.forward(x), DeviceError);
  const std::string path = testing::TempDir() + "device_model.safetensors";
  model.save(path);
  Scaled copy;
  copy.load(path);  // a CPU model from a GPU's file, and the other way round
  EXPECT_EQ(copy.linear.weight.to_vector<float>(), model.linear.weight.to_vector<float>());
  {
    NoGrad quiet;
    copy.linear.weight.zero_();
  }
  copy.save(path);
  model.load(path);
  EXPECT_EQ(model.linear.weight.to_vector<float>(), (vector<float>(6, 0)));
  EXPECT_EQ(model.linear.weight.device(), gpu);
  std::remove(path.c_str());
}

TEST_F(SimtDevice, pinned_tensors_are_cpu_tensors) {
  const Tensor x = arange(0, 10, 1, {.dtype = kFloat32});
  EXPECT_FALSE(x.is_pinned());
  const Tensor p = x.pin_memory();
  EXPECT_TRUE(p.is_pinned());
  EXPECT_EQ(p.device(), kCpu);
  EXPECT_EQ(p.data<float>()[9], 9);
  EXPECT_TRUE(p.pin_memory().shares_storage(p));
  EXPECT_TRUE(p.narrow(0, 2, 3).is_pinned());
  EXPECT_TRUE(zeros({3}, {.pinned = true}).is_pinned());
  EXPECT_TRUE(rand({3}, {.pinned = true}).is_pinned());
  EXPECT_TRUE(tensor({1., 2.}, {.pinned = true}).is_pinned());
  EXPECT_FALSE((p + 1).is_pinned());
  EXPECT_THROW(x.to(gpu).pin_memory(), DeviceError);
  EXPECT_THROW(zeros({3}, {.device = gpu, .pinned = true}), DeviceError);
}

TEST_F(SimtDevice, copies_that_do_not_block_arrive) {
  const Tensor p = arange(0, 12, 1, {.dtype = kFloat32}).view({3, 4}).pin_memory();
  const Tensor y = p.to(gpu, true), z = p.t().to(gpu, true), w = ones({2}).to(gpu, true);
  const Tensor back = z.to(kCpu, true);
  EXPECT_TRUE(back.is_pinned());
  cuda::synchronize(gpu);
  EXPECT_EQ(y.to_vector<float>(), p.to_vector<float>());
  EXPECT_EQ(back.to_vector<float>(), p.t().to_vector<float>());
  EXPECT_EQ(w.to_vector<float>(), (vector<float>{1, 1}));
}

TEST_F(SimtDevice, memory_is_counted_limited_and_told_when_it_runs_out) {
  const int64_t before = cuda::memory_stats(gpu).in_use;
  {
    const Tensor x = zeros({1000}, {.device = gpu});
    EXPECT_GE(cuda::memory_stats(gpu).in_use - before, 4000);
    EXPECT_EQ(cuda::memory_stats(second).in_use, 0);
    cuda::set_memory_limit(cuda::memory_stats(gpu).reserved + 8000, gpu);
    EXPECT_THROW(zeros({100000}, {.device = gpu}), OutOfMemoryError);
    EXPECT_EQ(zeros({1000}, {.device = gpu}).sum().item<float>(), 0);
    EXPECT_THROW(cuda::set_memory_limit(1, gpu), ValueError);
    EXPECT_THROW(cuda::set_memory_limit(-1, gpu), ValueError);
    cuda::set_memory_limit(0, gpu);
  }
  EXPECT_EQ(cuda::memory_stats(gpu).in_use, before);
  cuda::empty_cache(gpu);
  EXPECT_EQ(cuda::device_properties(gpu).name, "emulated");
  EXPECT_TRUE(cuda::is_available());
  EXPECT_EQ(cuda::device_count(), 2);
}

TEST_F(SimtDevice, a_machine_without_one_is_told_what_is_missing) {
  using cuda::no_device;
  using test::has;
  for (const std::string& text : {no_device(0, 0), no_device(13000, 0)})
    EXPECT_TRUE(has(text, "use the device cpu"));
  EXPECT_TRUE(has(no_device(0, 0), "the NVIDIA driver is missing"));
  EXPECT_TRUE(has(no_device(13000, 0), "shows no device; check nvidia-smi and CUDA_VISIBLE_DEVICES"));
  EXPECT_TRUE(has(no_device(11080, 12040), "is for CUDA 11.8, too old for this build, which needs 12.4"));
}

TEST_F(SimtDevice, what_has_no_device_says_so) {
  EXPECT_THROW(cuda::memory_stats(kCpu), DeviceError);
  EXPECT_THROW(cuda::synchronize("cuda:7"), DeviceError);
  EXPECT_THROW(cuda::Stream{kCpu}, DeviceError);
  EXPECT_THROW(cuda::Event{"cuda:7"}, DeviceError);
}

}  // namespace
}  // namespace weft
