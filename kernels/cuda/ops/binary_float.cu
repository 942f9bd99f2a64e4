// The binary operations of pointwise.h with compute type float (blocks/map.h); one column of the table per
// file.
#include <weft/kernels/cuda/blocks/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, float, 2>(),
const MapLaunch<2> binary_float[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
