// The binary rows of pointwise.h computed in double.
#include <weft/kernels/cuda/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, double, 2>(),
const MapLaunch<2> binary_double[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
