// The emulated cuDNN itself: stacks of layers against a loop over its own one-layer calls, sequences of
// several lengths, dropout, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include <weft/kernels/cuda/toolkit/attention_graph.h>
#include <weft/kernels/cuda/toolkit/cudnn.h>
#include "support/errors.h"
#include "support/libraries/libraries.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::Fault;
using simt::Operand;

const cudnn::Library& lib() { return *cudnn::library(); }

/// One layer or stack over the emulated library, float32 unless told, with spaces of its own.
struct Net {
  cudnnRNNMode_t mode;
  int layers = 1, directions = 1, inputs = 3, hidden = 4;
  std::vector<int> lengths;
  int rows = 0;
  cudnnHandle_t handle = nullptr;
  cudnnDropoutDescriptor_t dropout = nullptr;
  cudnnRNNDescriptor_t rnn = nullptr;
  cudnnRNNDataDescriptor_t x_data = nullptr, y_data = nullptr;
  cudnnTensorDescriptor_t state = nullptr, matrix = nullptr, bias = nullptr;
  size_t weights_size = 0, work_size = 0, reserve_size = 0;
  std::unique_ptr<Operand> x, y, dy, dx, hx, hy, cx, cy, dhx, dcx, weights, dweights, work, reserve, states;

  Net(cudnnRNNMode_t m, int layer_count, int direction_count, std::vector<int> sequence_lengths, float p = 0,
      cudnnRNNBiasMode_t biases = CUDNN_RNN_DOUBLE_BIAS, int input_count = 3)
      : mode(m),
        layers(layer_count),
        directions(direction_count),
        inputs(input_count),
        lengths(std::move(sequence_lengths)) {
    for (const int length : lengths) rows += length;
    lib().cudnnCreate(&handle);
    lib().cudnnCreateDropoutDescriptor(&dropout);
    lib().cudnnCreateRNNDescriptor(&rnn);
    lib().cudnnCreateRNNDataDescriptor(&x_data), lib().cudnnCreateRNNDataDescriptor(&y_data);
    for (auto* each : {&state, &matrix, &bias}) lib().cudnnCreateTensorDescriptor(each);
    states = std::make_unique<Operand>(kFloat32, Shape{1024});
    EXPECT_EQ(lib().cudnnSetDropoutDescriptor(dropout, handle, p, p > 0 ? states->on_device().data : nullptr,
                                              4096, 5),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(lib().cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, mode, biases,
                                             directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
                                             CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                                             CUDNN_DEFAULT_MATH, inputs, hidden, hidden, layers, dropout, 0),
              CUDNN_STATUS_SUCCESS);
    const int batch = static_cast<int>(lengths.size()), steps = lengths[0];
    EXPECT_EQ(
        lib().cudnnSetRNNDataDescriptor(x_data, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
                                        steps, batch, inputs, lengths.data(), nullptr),
        CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(
        lib().cudnnSetRNNDataDescriptor(y_data, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
                                        steps, batch, hidden * directions, lengths.data(), nullptr),
        CUDNN_STATUS_SUCCESS);
    const int sizes[] = {layers * directions, batch, hidden}, strides[] = {batch * hidden, hidden, 1};
    EXPECT_EQ(lib().cudnnSetTensorNdDescriptor(state, CUDNN_DATA_FLOAT, 3, sizes, strides),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(lib().cudnnGetRNNWeightSpaceSize(handle, rnn, &weights_size), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(lib().cudnnGetRNNTempSpaceSizes(handle, rnn, CUDNN_FWD_MODE_TRAINING, x_data, &work_size,
                                              &reserve_size),
              CUDNN_STATUS_SUCCESS);
    const auto space = [](size_t bytes) {
      return std::make_unique<Operand>(kFloat32, Shape{static_cast<int64_t>(bytes / 4 + 1)});
    };
    weights = space(weights_size), dweights = space(weights_size), work = space(work_size),
    reserve = space(reserve_size);
    weights->random(-0.6, 0.6, 1), dweights->fill(0);
    const auto data = [&](int64_t width, uint32_t seed) {
      auto made = std::make_unique<Operand>(kFloat32, Shape{width});
      if (seed) made->random(-1, 1, seed);
      return made;
    };
    const int64_t wide = int64_t{rows} * hidden * directions,
                  states_width = int64_t{layers} * directions * batch * hidden;
    x = data(int64_t{rows} * inputs, 2), y = data(wide, 0), dy = data(wide, 3),
    dx = data(int64_t{rows} * inputs, 0);
    hx = data(states_width, 4), cx = data(states_width, 5);
    for (auto* each : {&hy, &cy, &dhx, &dcx}) *each = data(states_width, 0);
  }
  ~Net() {
    lib().cudnnDestroyDropoutDescriptor(dropout);
    lib().cudnnDestroyRNNDescriptor(rnn);
    lib().cudnnDestroyRNNDataDescriptor(x_data), lib().cudnnDestroyRNNDataDescriptor(y_data);
    for (auto* each : {state, matrix, bias}) lib().cudnnDestroyTensorDescriptor(each);
  }
  static void* at(const std::unique_ptr<Operand>& p) { return p->on_device().data; }

  cudnnStatus_t forward(cudnnForwardMode_t how = CUDNN_FWD_MODE_TRAINING, size_t work_bytes = 0) {
    return lib().cudnnRNNForward(handle, rnn, how, nullptr, x_data, at(x), y_data, at(y), state, at(hx),
                                 at(hy), state, at(cx), at(cy), weights_size, at(weights),
                                 work_bytes ? work_bytes : work_size, at(work), reserve_size, at(reserve));
  }
  /// dy is also the gradient of the last states.
  cudnnStatus_t backward_data() {
    return lib().cudnnRNNBackwardData_v8(
        handle, rnn, nullptr, y_data, at(y), at(dy), x_data, at(dx), state, at(hx), nullptr, at(dhx), state,
        at(cx), nullptr, at(dcx), weights_size, at(weights), work_size, at(work), reserve_size, at(reserve));
  }
  cudnnStatus_t backward_weights(cudnnWgradMode_t how = CUDNN_WGRAD_MODE_ADD) {
    return lib().cudnnRNNBackwardWeights_v8(handle, rnn, how, nullptr, x_data, at(x), state, at(hx), y_data,
                                            at(y), weights_size, at(dweights), work_size, at(work),
                                            reserve_size, at(reserve));
  }
  double loss() {
    forward();
    const auto out = y->device_values(), factor = dy->device_values();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * factor[i];
    return sum;
  }
};

constexpr cudnnRNNMode_t kModes[] = {CUDNN_LSTM, CUDNN_GRU, CUDNN_RNN_TANH, CUDNN_RNN_RELU};

/// Gradients against differences of the forward, at a few places of each input and of the weights.
TEST(EmulatedCudnn, gradients_of_a_stack_are_those_of_its_forward) {
  for (const cudnnRNNMode_t mode : kModes)
    for (const int directions : {1, 2}) {
      Net net(mode, 2, directions, {4, 3, 1});
      ASSERT_EQ(net.forward(), CUDNN_STATUS_SUCCESS);
      ASSERT_EQ(net.backward_data(), CUDNN_STATUS_SUCCESS);
      ASSERT_EQ(net.backward_weights(), CUDNN_STATUS_SUCCESS);
      const struct {
        const char* name;
        Operand &of, &gradient;
      } all[] = {{"x", *net.x, *net.dx},
                 {"hx", *net.hx, *net.dhx},
                 {"cx", *net.cx, *net.dcx},
                 {"weights", *net.weights, *net.dweights}};
      for (const auto& [name, of, gradient] : all) {
        if (&of == net.cx.get() && mode != CUDNN_LSTM) continue;
        const auto values = gradient.device_values();
        for (size_t i = 0; i < values.size(); i += values.size() / 17 + 1) {
          const float step = 1e-3f;
          auto* const p = &of.host().as<float>()[i];
          const float before = *p;
          *p = before + step, of.send();
          const double above = net.loss();
          *p = before - step, of.send();
          const double below = net.loss();
          *p = before, of.send();
          EXPECT_NEAR((above - below) / (2 * static_cast<double>(step)), values[i],
                      1e-3 * (1 + std::abs(values[i])))
              << "mode " << mode << " directions " << directions << " " << name << " " << i;
        }
      }
    }
}

TEST(EmulatedCudnn, sequences_of_several_lengths_are_those_of_one_length_each) {
  Net all(CUDNN_LSTM, 1, 2, {4, 2});
  ASSERT_EQ(all.forward(), CUDNN_STATUS_SUCCESS);
  const auto y = all.y->device_values();
  Net one(CUDNN_LSTM, 1, 2, {2});
  const int row_of[] = {1, 3};  // of the second sequence in the packed rows
  const auto from = all.x->device_values(), h = all.hx->device_values(), c = all.cx->device_values();
  one.x->each([&](size_t i, double) { return from[static_cast<size_t>(row_of[i / 3]) * 3 + i % 3]; });
  one.hx->each([&](size_t i, double) { return h[(i / 4 * 2 + 1) * 4 + i % 4]; });
  one.cx->each([&](size_t i, double) { return c[(i / 4 * 2 + 1) * 4 + i % 4]; });
  ASSERT_EQ(one.forward(), CUDNN_STATUS_SUCCESS);
  const auto alone = one.y->device_values();
  for (size_t i = 0; i < alone.size(); ++i)
    EXPECT_EQ(alone[i], y[static_cast<size_t>(row_of[i / 8]) * 8 + i % 8]);
}

TEST(EmulatedCudnn, gradients_of_weights_are_added) {
  Net net(CUDNN_GRU, 1, 1, {3, 3});
  net.forward(), net.backward_data(), net.backward_weights();
  const auto once = net.dweights->device_values();
  net.forward(), net.backward_data(), net.backward_weights();
  const auto twice = net.dweights->device_values();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-5);
  EXPECT_EQ(net.backward_weights(CUDNN_WGRAD_MODE_SET), CUDNN_STATUS_NOT_SUPPORTED);
}

TEST(EmulatedCudnn, blocks_of_weights_do_not_overlap) {
  for (const cudnnRNNBiasMode_t biases :
       {CUDNN_RNN_NO_BIAS, CUDNN_RNN_SINGLE_INP_BIAS, CUDNN_RNN_SINGLE_REC_BIAS, CUDNN_RNN_DOUBLE_BIAS}) {
    const Net net(CUDNN_GRU, 2, 2, {1}, 0, biases);
    std::vector<std::pair<size_t, size_t>> taken;
    for (int pseudo = 0; pseudo < 4; ++pseudo)
      for (int id = 0; id < 6; ++id) {
        void *matrix = nullptr, *bias = nullptr;
        auto* const base = static_cast<char*>(Net::at(net.weights));
        ASSERT_EQ(lib().cudnnGetRNNWeightParams(net.handle, net.rnn, pseudo, net.weights_size, base, id,
                                                net.matrix, &matrix, net.bias, &bias),
                  CUDNN_STATUS_SUCCESS);
        const size_t columns = id >= 3 ? 4 : pseudo < 2 ? 3 : 8;
        const auto from = [&](void* p) { return static_cast<size_t>(static_cast<char*>(p) - base); };
        taken.emplace_back(from(matrix), from(matrix) + 4 * columns * 4);
        const bool biased = biases == CUDNN_RNN_DOUBLE_BIAS ||
                            biases == (id < 3 ? CUDNN_RNN_SINGLE_INP_BIAS : CUDNN_RNN_SINGLE_REC_BIAS);
        ASSERT_EQ(bias != nullptr, biased);
        if (biased) taken.emplace_back(from(bias), from(bias) + 16);
      }
    std::sort(taken.begin(), taken.end());
    for (size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].second, taken[i].first);
    EXPECT_LE(taken.back().second, net.weights_size);
  }
}

TEST(EmulatedCudnn, dropout_draws_from_its_states_in_training) {
  Net plain(CUDNN_LSTM, 2, 1, {4, 4}), net(CUDNN_LSTM, 2, 1, {4, 4}, 0.5f),
      again(CUDNN_LSTM, 2, 1, {4, 4}, 0.5f);
  const auto out = [](Net& n, cudnnForwardMode_t mode) {
    EXPECT_EQ(n.forward(mode), CUDNN_STATUS_SUCCESS);
    return n.y->device_values();
  };
  EXPECT_EQ(out(net, CUDNN_FWD_MODE_INFERENCE), out(plain, CUDNN_FWD_MODE_INFERENCE));
  const auto first = out(net, CUDNN_FWD_MODE_TRAINING), second = out(net, CUDNN_FWD_MODE_TRAINING);
  EXPECT_NE(first, second);
  EXPECT_EQ(out(again, CUDNN_FWD_MODE_TRAINING), first);  // the same seed
}

TEST(EmulatedCudnn, backward_wants_the_reserve_of_its_forward) {
  Net net(CUDNN_LSTM, 1, 1, {2, 2}), other(CUDNN_LSTM, 1, 1, {3, 2});
  EXPECT_THROW(net.backward_data(), Fault);
  net.forward(CUDNN_FWD_MODE_INFERENCE);
  EXPECT_THROW(net.backward_data(), Fault);
  net.forward();
  EXPECT_THROW(net.backward_weights(), Fault);  // data come first
  EXPECT_EQ(net.backward_data(), CUDNN_STATUS_SUCCESS);
  EXPECT_THROW(net.backward_data(), Fault);  // it wrote there
  other.forward();
  std::swap(net.reserve, other.reserve);
  EXPECT_THROW(net.backward_data(), Fault);
}

TEST(EmulatedCudnn, refuses_descriptions_that_do_not_fit) {
  Net net(CUDNN_LSTM, 1, 1, {2, 2});
  EXPECT_EQ(net.forward(CUDNN_FWD_MODE_TRAINING, 16), CUDNN_STATUS_BAD_PARAM);
  --net.weights_size;
  EXPECT_EQ(net.forward(), CUDNN_STATUS_BAD_PARAM);
  ++net.weights_size;
  const int sizes[] = {1, 2, 4}, transposed[] = {8, 1, 2}, rising[] = {1, 2};
  EXPECT_EQ(lib().cudnnSetTensorNdDescriptor(net.state, CUDNN_DATA_FLOAT, 2, sizes, transposed),
            CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(lib().cudnnSetTensorNdDescriptor(net.state, CUDNN_DATA_FLOAT, 3, sizes, transposed),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(net.forward(), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(lib().cudnnSetRNNDataDescriptor(net.x_data, CUDNN_DATA_FLOAT,
                                            CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, 2, 2, 3, rising, nullptr),
            CUDNN_STATUS_BAD_PARAM);
  const auto describe = [&](cudnnDataType_t type, cudnnDataType_t precision, cudnnMathType_t math,
                            int layers) {
    return lib().cudnnSetRNNDescriptor_v8(net.rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_NO_BIAS,
                                          CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type, precision, math, 3,
                                          4, 4, layers, net.dropout, 0);
  };
  EXPECT_EQ(describe(CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, 1), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(describe(CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, 0), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(describe(CUDNN_DATA_DOUBLE, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, 1), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(describe(CUDNN_DATA_DOUBLE, CUDNN_DATA_DOUBLE, CUDNN_TENSOR_OP_MATH, 1),
            CUDNN_STATUS_NOT_SUPPORTED);
}

/// Calls f(attributes of a tensor) and returns the error's text.
template <class F> std::string error_of_tensor(const F& f) {
  cudnn::GraphNode node(lib(), CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor");
  return test::error_of<CudaError>([&] { f(node); });
}

TEST(EmulatedCudnn, graphs_refuse_descriptions_that_do_not_fit) {
  const std::string set = "cudnnBackendSetAttribute of a tensor: CUDNN_STATUS_BAD_PARAM",
                    finish = "cudnnBackendFinalize of a tensor: CUDNN_STATUS_BAD_PARAM";
  const int64_t number = 3;
  EXPECT_TRUE(test::has(
      error_of_tensor([&](auto& node) { node.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT); }), set));
  EXPECT_TRUE(test::has(
      error_of_tensor([&](auto& node) { node.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_DATA_FLOAT); }), set));
  EXPECT_TRUE(test::has(error_of_tensor([&](auto& node) {
                          node.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {&number, 1});
                        }),
                        set));
  EXPECT_TRUE(test::has(error_of_tensor([&](auto& node) { node.finish(); }), finish));
  EXPECT_TRUE(test::has(error_of_tensor([&](auto&) {
                          cudnn::GraphNode(lib(), CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "a convolution");
                        }),
                        "cudnnBackendCreateDescriptor of a convolution: CUDNN_STATUS_NOT_SUPPORTED"));
  cudnn::Graph graph(lib());
  const auto a = graph.memory(1, CUDNN_DATA_HALF, {1, 1, 8, 8}, {64, 64, 8, 1}),
             b = graph.memory(2, CUDNN_DATA_HALF, {1, 1, 16, 8}, {128, 128, 8, 1}),
             c = graph.between(CUDNN_DATA_FLOAT, {1, 1, 8, 8});
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { graph.multiply(a, b, c); }),
                        "cudnnBackendFinalize of a product: CUDNN_STATUS_BAD_PARAM"));
}

TEST(EmulatedCudnn, has_engines_for_attention_alone) {
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(lib().cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  cudnn::Graph product(lib());
  const auto a = product.memory(1, CUDNN_DATA_HALF, {1, 1, 8, 8}, {64, 64, 8, 1});
  product.multiply(a, a, product.memory(2, CUDNN_DATA_HALF, {1, 1, 8, 8}, {64, 64, 8, 1}));
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { product.plan({.handle = handle}, 1 << 20, true); }),
                        "none of 0"));
  cudnn::AttentionSpec spec{.queries = 8, .keys = 8, .width = 8, .values = 8};
  spec.q = spec.k = spec.v = {64, 64, 8, 1};
  EXPECT_EQ(cudnn::attention_graph(lib(), spec).plan({.handle = handle}, 1 << 20, true).workspace, 256);
  libraries::settings().found = 40, libraries::settings().refuses = "cudnnBackendFinalize: plan";
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] {
                          cudnn::attention_graph(lib(), spec).plan({.handle = handle}, 1 << 20, true);
                        }),
                        "none of 32"));
  libraries::settings() = {};
  spec.batch = 65536;
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] {
                          cudnn::attention_graph(lib(), spec).plan({.handle = handle}, 1 << 20, true);
                        }),
                        "none of 0"));
  spec.batch = 1;
  spec.v = {66, 66, 8, 1};
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] {
                          cudnn::attention_graph(lib(), spec).plan({.handle = handle}, 1 << 20, true);
                        }),
                        "none of 0"));
}

}  // namespace
}  // namespace weft::cuda
