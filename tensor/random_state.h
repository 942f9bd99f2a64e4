// The state of a generator as a tensor, for checkpoints.
#pragma once

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft {

/// Seed and offset. Shape: int64 [2].
WEFT_API Tensor generator_state(const Generator& generator);
/// Restores a state, so that the generator repeats the draws that followed it.
/// Throws: ValueError unless `state` is int64 [2].
WEFT_API void set_generator_state(Generator& generator, const Tensor& state);

}  // namespace weft
