// The unary operations of pointwise.h with compute type float (blocks/map.h); one column of the table per
// file.
#include <weft/kernels/cuda/blocks/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, float, 1>(),
const MapLaunch<1> unary_float[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
