// Activation checkpointing: a part of the forward pass keeps only its inputs, and backward computes it again.
//   Tensor y = checkpoint([&](const auto& in) { return std::vector{block.forward(in[0])}; }, {x})[0];
// Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
#pragma once

#include <vector>

#include <weft/autograd/tape/gradcheck.h>

namespace weft {

/// f(inputs), with the tape of f rebuilt inside backward, under the Autocast of the forward call. Random
/// draws of the calling thread repeat, from all generators, and backward advances no generator. Parameters
/// that f captures receive their gradients through backward(); for grad() with respect to them pass them as
/// inputs.
/// Throws: the exceptions of f; in backward AutogradError under create_graph, or if f makes more or fewer
/// draws than in forward.
WEFT_API std::vector<Tensor> checkpoint(const TensorFunction& f, const std::vector<Tensor>& inputs);

}  // namespace weft
