// The gradients in a message of a backward pass, one per slot of the recv node. Internal to distributed
// autograd.
#pragma once

#include <weft/distributed/autograd/inner/dist_nodes.h>
#include <weft/distributed/wire/codec.h>

namespace weft::dist_autograd::detail {

/// Encodes the gradients for the devices of the tensors at their sender. Returns the slot of each tensor that
/// the message got. -1: one of a row-wise gradient, which no codec rounds. `recorded`: they keep their
/// graphs.
std::vector<int64_t> put_gradients(rpc::Encoder& out, const RecvNode& node, const GradList& gradients,
                                   bool recorded);

/// Decoded gradients: the slots that have one, and these in order, row-wise ones packed.
struct GradientsOfSlots {
  SlotSet present;
  std::vector<Tensor> tensors;
};
/// Throws: WireError for a malformed message.
GradientsOfSlots get_slot_gradients(rpc::Decoder& in);

}  // namespace weft::dist_autograd::detail
