// The state of a generator as an int64 tensor [2]: seed and offset. Both are unsigned in the generator, so
// the tensor holds the same 64 bits as signed numbers.
#include <weft/tensor/random_state.h>

namespace weft {

Tensor generator_state(const Generator& generator) {
  const Tensor state = empty({2}, {.dtype = kInt64});
  state.data<int64_t>()[0] = static_cast<int64_t>(generator.seed());
  state.data<int64_t>()[1] = static_cast<int64_t>(generator.offset());
  return state;
}

void set_generator_state(Generator& generator, const Tensor& state) {
  if (state.dtype() != kInt64 || state.sizes() != Shape{2})
    throw ValueError(str("set_generator_state: takes int64 [2], got ", state.dtype(), " ", state.sizes()));
  const auto both = state.to_vector<int64_t>();
  generator.manual_seed(static_cast<uint64_t>(both[0]));
  generator.set_offset(static_cast<uint64_t>(both[1]));
}

}  // namespace weft
