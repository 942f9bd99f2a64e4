// The unary rows of pointwise.h computed in float.
#include <weft/kernels/cuda/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, float, 1>(),
const MapLaunch<1> unary_float[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
