// Recurrent layers on the device, where there is one: cuDNN's against weft's own cell, both against the CPU,
// and parameters in cuDNN's layout. LSTMs in persistent kernels are compared with a kernel per step, and
// stacks in chunks with their layers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <weft/autograd/tape/inner/set_data.h>
#include <weft/kernels/accelerator.h>
#include <weft/kernels/cuda/trace.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>

namespace weft {
namespace {

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

struct CudaRecurrent : testing::Test {
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    cuda::set_recurrent_persistent(false);  // but for tests of it
  }
  /// Sizes of an H200's kind: the emulated device takes too long for them.
  static bool device_is_large() {
    const DeviceProperties p = accelerator("cuda").properties();
    return p.major >= 9 && p.processors >= 100;
  }
  void TearDown() override {
    cuda::set_use_cudnn(before);
    cuda::set_recurrent_wavefront(chunks);
    cuda::set_recurrent_persistent(persistent);
  }
  const Device gpu{DeviceType::kCuda, 0};
  const bool before = cuda::use_cudnn();
  const int chunks = cuda::recurrent_wavefront();
  const bool persistent = cuda::recurrent_persistent();
};

struct Case {
  RnnMode mode = RnnMode::kLstm;
  bool reverse = false, bias = true;
  int64_t steps = 5, batch = 3, inputs = 7, hidden = 11;
  DType dtype = kFloat32;
};
std::string name_of(const Case& c) {
  return str("mode ", static_cast<int>(c.mode), " reverse ", c.reverse, " bias ", c.bias, " sizes ", c.steps,
             " ", c.batch, " ", c.inputs, " ", c.hidden, " ", c.dtype);
}

/// x, h0, c0, w_ih, w_hh, b_ih, b_hh; the same numbers for every device and dtype.
std::vector<Tensor> inputs_of(const Case& c, Device device) {
  Generator numbers(7);
  const RnnLayer layer{c.mode};
  const int64_t rows = layer.gates() * c.hidden;
  std::vector<Tensor> all;
  for (const Shape& sizes :
       {Shape{c.steps, c.batch, c.inputs}, Shape{c.batch, c.hidden}, Shape{c.batch, c.hidden},
        Shape{rows, c.inputs}, Shape{rows, c.hidden}, Shape{rows}, Shape{rows}}) {
    const Tensor x = randn(sizes, {.dtype = kFloat64}, &numbers) *
                     (0.7 / std::sqrt(static_cast<double>(sizes[sizes.size() - 1])));
    all.push_back(x.to(c.dtype).to(device).requires_grad_());
  }
  if (c.mode != RnnMode::kLstm) all[2] = Tensor();
  if (!c.bias) all[5] = all[6] = Tensor();
  return all;
}

/// Outputs and every gradient, as float64 on the CPU; the backward runs `times` over one graph, and the last
/// gradients count.
std::vector<Tensor> run(const Case& c, Device device, int times = 1) {
  const std::vector<Tensor> x = inputs_of(c, device);
  const RnnResult r = rnn_layer(c.mode, x[0], x[1], x[2], x[3], x[4], x[5], x[6], c.reverse);
  std::vector<Tensor> out = {r.y, r.hn};
  if (r.cn.defined()) out.push_back(r.cn);
  std::vector<Tensor> all;
  Tensor loss = (r.y * r.y).sum() + r.hn.sum();
  if (r.cn.defined()) loss = loss + (r.cn * r.cn).sum();
  std::vector<Tensor> wanted;
  for (const Tensor& v : x)
    if (v.defined()) wanted.push_back(v);
  std::vector<Tensor> gradients;
  for (int i = 0; i < times; ++i) gradients = grad({loss}, wanted, {}, {.retain_graph = i + 1 < times});
  for (const auto* list : {&out, &gradients})
    for (const Tensor& v : *list) all.push_back(v.detach().to(kCpu).to(kFloat64));
  return all;
}

double tolerance(DType t) {
  return t == kFloat64 ? 1e-10 : t == kFloat32 ? 2e-4 : t == kFloat16 ? 3e-2 : 2e-1;
}

void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b, double allowed) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const double largest = std::max(1.0, b[i].abs().max().item<double>()),
                 off = (a[i] - b[i]).abs().max().item<double>();
    EXPECT_LE(off, allowed * largest) << "result " << i;
  }
}
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(a[i].contiguous().raw(), b[i].contiguous().raw(),
                    static_cast<size_t>(a[i].numel()) * sizeof(double)) != 0)
      return false;
  return true;
}

/// Whether cuDNN takes the layer: it asks for a reserve of its own form.
bool on_cudnn(const Case& c, Device device) {
  const std::vector<Tensor> x = inputs_of(c, device);
  const auto view = [](const Tensor& v) { return v.defined() ? v.view_of() : View{}; };
  Context context;
  return backend(device)
             .rnn_reserve(
                 context, {c.mode, c.reverse},
                 {view(x[0]), view(x[1]), view(x[2]), view(x[3]), view(x[4]), view(x[5]), view(x[6])})
             .size() == 1;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const RnnMode mode : kModes)
    for (const bool reverse : {false, true})
      for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
        all.push_back({.mode = mode, .reverse = reverse, .dtype = dtype});
        all.push_back({.mode = mode,
                       .reverse = reverse,
                       .bias = false,
                       .steps = 1,
                       .batch = 1,
                       .inputs = 1,
                       .hidden = 1,
                       .dtype = dtype});
      }
  for (const RnnMode mode : {RnnMode::kLstm, RnnMode::kGru})
    all.push_back({.mode = mode, .steps = 35, .batch = 20, .inputs = 200, .hidden = 200});
  return all;
}

TEST_F(CudaRecurrent, the_own_cell_matches_the_cpu) {
  cuda::set_use_cudnn(false);
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    EXPECT_FALSE(on_cudnn(c, gpu));
    expect_near(run(c, gpu), run(c, kCpu), tolerance(c.dtype));
  }
}

/// The recurrent kernels that f launches, by a trace, which has their names.
template <class F> std::vector<std::string> recurrent_kernels(const F& f) {
  const std::string file = testing::TempDir() + "weft_recurrent_trace.json";
  cuda::start_trace(file);
  f();
  cuda::finish_trace();
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::remove(file.c_str());
  std::vector<std::string> found;
  for (const char* const name :
       {"rnn_cell", "rnn_cell_backward", "rnn_lstm_persistent", "rnn_lstm_persistent_backward"})
    if (text.find(str('"', name, '"')) != std::string::npos) found.emplace_back(name);
  return found;
}
const std::vector<std::string> kPersistent = {"rnn_lstm_persistent", "rnn_lstm_persistent_backward"},
                               kPerStep = {"rnn_cell", "rnn_cell_backward"};

/// The results of persistent kernels, which are compared with those of a kernel per step.
std::vector<Tensor> persistent_as_per_step(const Case& c, const Device& gpu) {
  std::vector<Tensor> one, per_step;
  cuda::set_recurrent_persistent(true);
  EXPECT_EQ(recurrent_kernels([&] { one = run(c, gpu); }), kPersistent);
  EXPECT_TRUE(same_bits(one, run(c, gpu)));
  cuda::set_recurrent_persistent(false);
  EXPECT_EQ(recurrent_kernels([&] { per_step = run(c, gpu); }), kPerStep);
  expect_near(one, per_step, tolerance(c.dtype));
  return one;
}

TEST_F(CudaRecurrent, a_persistent_lstm_matches_a_kernel_per_step_and_the_cpu) {
  cuda::set_use_cudnn(false);
  for (const DType dtype : {kFloat32, kFloat16, kBFloat16})
    for (const bool reverse : {false, true}) {
      std::vector<Case> all = {
          {.reverse = reverse, .dtype = dtype},
          {.reverse = reverse, .bias = false, .steps = 3, .batch = 17, .hidden = 31, .dtype = dtype}};
      if (device_is_large())
        all.push_back(
            {.reverse = reverse, .steps = 35, .batch = 20, .inputs = 65, .hidden = 200, .dtype = dtype});
      for (const Case& c : all) {
        SCOPED_TRACE(name_of(c));
        expect_near(persistent_as_per_step(c, gpu), run(c, kCpu), tolerance(c.dtype));
      }
    }
}

// Sizes at which a block has many units, and a backward goes through shared memory in parts.
TEST_F(CudaRecurrent, a_large_lstm_matches_a_kernel_per_step) {
  cuda::set_use_cudnn(false);
  std::vector<Case> all = {{.steps = 3, .batch = 9, .hidden = 53},
                           {.steps = 3, .batch = 11, .hidden = 45, .dtype = kBFloat16}};
  if (device_is_large())
    all = {{.steps = 12, .batch = 20, .inputs = 65, .hidden = 650},
           {.steps = 12, .batch = 64, .inputs = 65, .hidden = 256},
           {.steps = 12, .batch = 32, .inputs = 65, .hidden = 1000, .dtype = kBFloat16},
           {.steps = 12, .batch = 20, .inputs = 65, .hidden = 1500, .dtype = kBFloat16}};
  for (const Case& c : all) {
    SCOPED_TRACE(name_of(c));
    persistent_as_per_step(c, gpu);
  }
}

TEST_F(CudaRecurrent, a_persistent_lstm_is_recorded) {
  cuda::set_use_cudnn(false);
  cuda::set_recurrent_persistent(true);
  const Case c{.steps = 12};
  const std::vector<Tensor> x = inputs_of(c, gpu);
  const auto step = [&] {
    const RnnResult r = rnn_layer(c.mode, x[0], x[1], x[2], x[3], x[4], x[5], x[6], c.reverse);
    std::vector<Tensor> out = {r.y, r.hn, r.cn};
    for (const Tensor& g : grad({(r.y * r.y).sum() + r.cn.sum()}, {x[0], x[4]})) out.push_back(g);
    return out;
  };
  const auto on_cpu = [](const std::vector<Tensor>& list) {
    std::vector<Tensor> all;
    for (const Tensor& t : list) all.push_back(t.detach().to(kCpu).to(kFloat64));
    return all;
  };
  std::vector<Tensor> recorded;
  cuda::Graph graph(gpu);
  EXPECT_EQ(recurrent_kernels([&] { graph.capture([&] { recorded = step(); }); }), kPersistent);
  const std::vector<Tensor> plain = on_cpu(step());
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    EXPECT_TRUE(same_bits(on_cpu(recorded), plain));
  }
}

TEST_F(CudaRecurrent, cudnn_matches_the_own_cell) {
  int taken = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    cuda::set_use_cudnn(true);
    if (!on_cudnn(c, gpu)) continue;
    ++taken;
    const std::vector<Tensor> theirs = run(c, gpu);
    cuda::set_use_cudnn(false);
    expect_near(theirs, run(c, gpu), tolerance(c.dtype));
  }
  if (taken == 0) GTEST_SKIP() << "there is no cuDNN here";
}

TEST_F(CudaRecurrent, cudnn_goes_over_a_retained_graph_twice) {
  cuda::set_use_cudnn(true);
  for (const RnnMode mode : kModes) {
    const Case c{.mode = mode};
    expect_near(run(c, gpu, 2), run(c, kCpu), tolerance(c.dtype));
  }
}

TEST_F(CudaRecurrent, a_switch_between_forward_and_backward_changes_nothing) {
  for (const bool first : {true, false}) {
    cuda::set_use_cudnn(first);
    const Case c;
    const std::vector<Tensor> x = inputs_of(c, gpu);
    const RnnResult r = rnn_layer(c.mode, x[0], x[1], x[2], x[3], x[4], x[5], x[6], c.reverse);
    cuda::set_use_cudnn(!first);
    const Tensor dx = grad({(r.y * r.y).sum() + r.hn.sum() + (r.cn * r.cn).sum()}, {x[0]})[0];
    expect_near({dx.to(kCpu).to(kFloat64)}, {run(c, kCpu)[3]}, tolerance(c.dtype));
  }
}

TEST_F(CudaRecurrent, a_layer_repeats_its_bits) {
  for (const bool cudnn : {false, true}) {
    cuda::set_use_cudnn(cudnn);
    const Case c{.steps = 35, .batch = 20, .inputs = 65, .hidden = 65};
    EXPECT_TRUE(same_bits(run(c, gpu), run(c, gpu))) << "cuDNN " << cudnn;
  }
}

/// Outputs and gradients of a stack with dropout in training, plain and then from two replays of a graph, on
/// the CPU.
std::vector<Tensor> run_stack(DType dtype, Device device, int chunks, bool recorded) {
  Generator numbers(3);
  nn::LSTM stack(40, 48, {.num_layers = 3, .dropout = 0.4, .dtype = dtype, .generator = &numbers});
  const Tensor x = randn({35, 4, 40}, {.dtype = kFloat64}, &numbers).to(dtype).to(device).requires_grad_();
  stack.to(device);
  cuda::set_recurrent_wavefront(chunks);
  manual_seed(9);
  std::vector<Tensor> wanted = stack.parameters(), out, all;
  wanted.push_back(x);
  const auto step = [&] {
    const nn::RnnOutput r = stack.forward(x);
    out = {r.y.detach(), r.h.detach(), r.c.detach()};
    for (const Tensor& g : grad({(r.y * r.y).sum() + r.h.sum() + r.c.sum()}, wanted)) out.push_back(g);
  };
  const auto tell = [&] {
    for (const Tensor& t : out) all.push_back(t.to(kCpu).to(kFloat64));
  };
  step();
  tell();
  if (!recorded) return all;
  cuda::Graph graph(device);
  graph.capture(step);
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    tell();
  }
  return all;
}

TEST_F(CudaRecurrent, a_stack_in_chunks_has_a_kernel_per_step) {
  cuda::set_use_cudnn(false);
  const std::vector<Tensor> plain = run_stack(kFloat32, gpu, 6, false);
  cuda::set_recurrent_persistent(true);
  std::vector<Tensor> cut;
  EXPECT_EQ(recurrent_kernels([&] { cut = run_stack(kFloat32, gpu, 6, false); }), kPerStep);
  EXPECT_TRUE(same_bits(cut, plain));
}

TEST_F(CudaRecurrent, a_stack_in_chunks_matches_its_layers_and_the_cpu) {
  cuda::set_use_cudnn(false);
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
    const std::vector<Tensor> layers = run_stack(dtype, gpu, 0, true);
    for (const int chunks : {2, 6}) {
      SCOPED_TRACE(str(dtype, " ", chunks));
      const std::vector<Tensor> cut = run_stack(dtype, gpu, chunks, true);
      expect_near(cut, layers, tolerance(dtype));
      EXPECT_TRUE(same_bits(cut, run_stack(dtype, gpu, chunks, true)));
    }
    expect_near(run_stack(dtype, gpu, 6, false), run_stack(dtype, kCpu, 6, false), tolerance(dtype));
  }
}

/// Whether cuDNN joins the gates of each weight of the stack.
bool has_layout(const RnnStack& stack, const std::vector<Tensor>& parameters) {
  std::vector<RnnWeights> cells;
  for (size_t i = 0; i < parameters.size(); i += 4)
    cells.push_back({parameters[i].view_of(), parameters[i + 1].view_of(), parameters[i + 2].view_of(),
                     parameters[i + 3].view_of()});
  const TensorOptions like{.dtype = parameters[0].dtype(), .device = parameters[0].device()};
  const Tensor x = empty({1, 1, parameters[0].size(1)}, like),
               h0 = empty({stack.cells(), 1, parameters[1].size(1)}, like);
  Context context;
  const auto room =
      backend(x.device()).rnn_stack(context, stack, {x.view_of(), h0.view_of(), h0.view_of(), cells});
  return room && room->layout;
}

/// The place of each parameter in the block of the first one, in elements.
std::string places_of(const std::vector<Tensor>& parameters) {
  const Storage* const whole = parameters[0].body().storage->whole();
  std::string places;
  for (const Tensor& p : parameters) {
    const auto at = [&] {
      return (static_cast<const char*>(p.address()) - static_cast<const char*>(whole->data())) /
             size_of(p.dtype());
    };
    places += whole && p.body().storage->whole() == whole ? str(" ", at()) : " elsewhere";
  }
  return places;
}

TEST_F(CudaRecurrent, parameters_in_cudnns_layout_give_the_bits_of_packed_ones) {
  cuda::set_use_cudnn(true);
  if (!on_cudnn({}, gpu)) GTEST_SKIP() << "there is no cuDNN here";
  std::string separated;  // stacks for which there is no layout
  for (const DType dtype : {kFloat32, kFloat16, kBFloat16, kFloat64})
    for (const bool both : {false, true}) {
      const std::string name = str(dtype, " both ", both);
      std::string places;  // where the parameters lie, in elements
      const auto trained = [&](bool flat) {
        Generator numbers(3);
        nn::GRU stack(33, 45,
                      {.num_layers = 2, .bidirectional = both, .dtype = dtype, .generator = &numbers});
        stack.to(gpu);
        const std::vector<Tensor> all = stack.parameters();
        if (has_layout({.mode = RnnMode::kGru, .layers = 2, .both = both}, all)) places = places_of(all);
        if (!flat)
          for (const Tensor& p : all) set_data(p, p.detach().clone());
        const Tensor x = randn({9, 4, 33}, {.dtype = kFloat64}, &numbers).to(dtype).to(gpu);
        optim::AdamW adam(all, {.master_weights = true});
        for (int i = 0; i < 3; ++i) {
          const Tensor y = stack.forward(x).y;
          (y * y).mean().backward();
          adam.step(), adam.zero_grad();
        }
        std::vector<Tensor> out;
        for (const Tensor& p : all) out.push_back(p.detach().to(kCpu).to(kFloat64));
        return out;
      };
      const std::vector<Tensor> flat = trained(true);
      if (places.empty()) {
        separated += " " + name + ";";
        continue;
      }
      EXPECT_EQ(places.find("elsewhere"), std::string::npos) << name << ":" << places;
      EXPECT_TRUE(same_bits(flat, trained(false))) << name << ":" << places;
    }
  if (!separated.empty())
    GTEST_SKIP() << "cuDNN takes no such stack, or separates the gates of a weight:" << separated;
}

}  // namespace
}  // namespace weft
