// A whole stack of recurrent layers as one node, for devices that run it in one call (Backend::rnn_stack).
// Layers of nn/rnn.h try it first and otherwise go layer by layer.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <weft/autograd/ops/ops.h>

namespace weft {

/// Shape: y [T, N, directions * H], hn and cn [cells, N, H]. Returns nullopt if x's device does not run the
/// stack in one call, or the arguments differ in dtype or device. Sizes are not checked: nn/rnn.h does that.
/// `weights`: w_ih, w_hh, b_ih and b_hh of each cell, undefined if absent. If stack.dropout > 0, it draws
/// from `generator`. Grad: to every input, fused; composed under create_graph, where dropout with masks of
/// cuDNN's throws AutogradError.
std::optional<RnnResult> rnn_stack(RnnStack stack, const Tensor& x, const Tensor& h0, const Tensor& c0,
                                   std::span<const Tensor> weights, Generator& generator);

/// Copies of the weights of a stack, given as rnn_stack takes them. They are parts of one memory, in the
/// layout that the device's kernels read in place. Empty if the weights lie so already, or there is no such
/// layout.
std::vector<Tensor> rnn_stack_weights(const RnnStack& stack, std::span<const Tensor> weights);

namespace formula {
const char* rnn_name(RnnMode mode);
/// {y, hn, cn} of one direction of a layer, from plain operations; arguments: x, h0, c0, w_ih, w_hh, b_ih,
/// b_hh.
std::vector<Tensor> composed_rnn_layer(RnnMode mode, bool reverse, const std::vector<Tensor>& arguments);
/// The tensors in contiguous memory; undefined ones stay undefined.
std::vector<Tensor> contiguous_all(std::vector<Tensor> xs);
}  // namespace formula

}  // namespace weft
