// Memory for time: a stretch of the forward pass keeps only its inputs and is computed again when backward needs it.
#pragma once

#include <vector>

#include <weft/autograd/gradcheck.h>
#include <weft/tensor/generator.h>

namespace weft {

/// f(inputs), with the tape of f rebuilt inside backward. Random draws repeat: the default generator, and `generator` when given, are set to
/// where they stood, and back. Parameters that f reaches by itself receive their gradients through the pass's sink; grad() with respect to
/// them sees nothing, pass them as inputs for that. Throws: what f throws; AutogradError in backward under create_graph.
WEFT_API std::vector<Tensor> checkpoint(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                        Generator* generator = nullptr);

}  // namespace weft
