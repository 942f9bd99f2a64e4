// Recurrent layers of the CUDA backend (its own cell, or an emulated cuDNN where one is linked) against the
// CPU's. The cases have every mode and direction, dtypes, sizes around a block, strided operands, absent
// parts, empty sequences. LSTMs run with a kernel per step here, and persistent ones in persistent_test.cpp.
#include <gtest/gtest.h>

#include <weft/kernels/cuda_settings.h>
#include "simt/rnn_calls.h"

namespace weft::cuda {
namespace {

using rnn_calls::Options;
using rnn_calls::Sizes;

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

struct SimtRnn : testing::Test {
  void SetUp() override { set_recurrent_persistent(false); }
  void TearDown() override {
    set_recurrent_persistent(persistent);
    simt::settings() = {};
  }
  const bool persistent = recurrent_persistent();
};

void check_rnn(DType t, const RnnLayer& layer, const Sizes& s, const Options& o = {}, bool keep = true) {
  rnn_calls::check_rnn(simt::device(), t, layer, s, o, keep);
}

TEST_F(SimtRnn, matches_the_cpu_in_every_mode_and_direction) {
  for (const RnnMode mode : kModes)
    for (const bool reverse : {false, true}) {
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5});
      check_rnn(kFloat32, {mode, reverse}, {4, 3, 7, 11});
      check_rnn(kFloat32, {mode, reverse}, {2, 2, 3, 130});  // more columns than a block has threads
      check_rnn(kFloat32, {mode, reverse}, {1, 1, 1, 1});
      check_rnn(kFloat32, {mode, reverse}, {4, 3, 7, 11}, {}, false);
    }
}

TEST_F(SimtRnn, matches_the_cpu_with_parts_absent_or_strided) {
  for (const RnnMode mode : kModes)
    for (const bool reverse : {false, true}) {
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.bias = false});
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.state = false});
      check_rnn(kFloat64, {mode, reverse}, {1, 2, 3, 5}, {.state = false});
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.one_bias = true});
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.cotangents = false});
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.weights_only = true});
      check_rnn(kFloat64, {mode, reverse}, {3, 2, 3, 5}, {.strided = true});
      check_rnn(kFloat32, {mode, reverse}, {3, 2, 3, 5}, {.strided = true}, false);
      check_rnn(kFloat32, {mode, reverse}, {2, 1, 3, 1}, {.strided = true});
    }
}

TEST_F(SimtRnn, half_types_compute_in_float) {
  for (const RnnMode mode : kModes) {
    check_rnn(kFloat16, {mode, false}, {3, 2, 5, 7});
    check_rnn(kFloat16, {mode, true}, {3, 2, 5, 7}, {.strided = true});
    check_rnn(kBFloat16, {mode, true}, {3, 2, 5, 7});
    check_rnn(kBFloat16, {mode, false}, {3, 2, 5, 7}, {}, false);
  }
}

TEST_F(SimtRnn, the_order_of_threads_does_not_matter) {
  for (const auto order : {simt::Order::kReverse, simt::Order::kShuffled}) {
    simt::settings() = {.order = order, .poison = 0x00};
    for (const RnnMode mode : kModes) check_rnn(kFloat32, {mode, false}, {3, 3, 5, 131});
  }
}

TEST_F(SimtRnn, an_empty_sequence_returns_the_state_and_empty_gradients) {
  for (const RnnMode mode : kModes) {
    check_rnn(kFloat32, {mode, false}, {0, 2, 3, 5});
    check_rnn(kFloat32, {mode, false}, {0, 2, 3, 5}, {.state = false});
    check_rnn(kFloat32, {mode, false}, {3, 0, 3, 5});
  }
}

}  // namespace
}  // namespace weft::cuda
