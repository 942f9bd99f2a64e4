// backward() with another receiver of the leaves' gradients.
#pragma once

#include <weft/autograd/tape/engine.h>

namespace weft::detail {

/// As weft::backward, but `sink` gets the leaves' gradients. Throws: as backward, and the sink's errors.
WEFT_API void backward_to(GradSink& sink, std::span<const Tensor> roots,
                          std::span<const Tensor> gradients = {}, bool retain_graph = false);

}  // namespace weft::detail
