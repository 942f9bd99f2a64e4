// Reductions of integers and bool (blocks/reduce.h); a separate file, to compile in parallel with the
// floating ones.
#include <weft/kernels/cuda/blocks/reduce.h>

namespace weft::cuda::reduction {

void reduce_integers(CudaBackend& b, Context& c, Reduce op, const Source<int64_t>& from, void* y,
                     DType y_type) {
  reduce_as<int64_t>(b, c, op, from, y, y_type);
}

}  // namespace weft::cuda::reduction
