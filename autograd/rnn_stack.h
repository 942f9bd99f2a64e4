// A whole stack of recurrent layers as one node, on devices that run it in one call (kernels/backend.h); nn/rnn.h asks for it, and goes layer by layer
// where it is not taken.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <weft/autograd/ops.h>

namespace weft {

/// y [T, N, directions * H], hn and cn [cells, N, H]; nothing where x's device does not take the stack, or the arguments are not of one dtype and device.
/// Sizes are not checked, nn/rnn.h has done that. `weights`: w_ih, w_hh, b_ih and b_hh of each cell, undefined where there is none. `generator` is
/// drawn from when stack.dropout is above 0. Grad: to every input, fused; composed under create_graph, where dropout is an AutogradError.
std::optional<RnnResult> rnn_stack(RnnStack stack, const Tensor& x, const Tensor& h0, const Tensor& c0,
                                   std::span<const Tensor> weights, Generator& generator);

namespace formula {
const char* rnn_name(RnnMode mode);
/// One direction of a layer made of plain ops, of x, h0, c0, w_ih, w_hh, b_ih and b_hh: {y, hn, cn}.
std::vector<Tensor> composed_rnn_layer(RnnMode mode, bool reverse, const std::vector<Tensor>& arguments);
/// Each in contiguous memory; undefined ones stay so.
std::vector<Tensor> contiguous_all(const std::vector<Tensor>& xs);
}  // namespace formula

}  // namespace weft
