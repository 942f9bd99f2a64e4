// The binary rows of pointwise.h computed in float.
#include <weft/kernels/cuda/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, float, 2>(),
const MapLaunch<2> binary_float[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
