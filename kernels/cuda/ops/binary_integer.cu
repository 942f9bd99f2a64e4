// The binary operations of pointwise.h with integer compute types and bool (blocks/map.h): the columns of the
// table beside binary_float.cu and binary_double.cu.
#include <weft/kernels/cuda/blocks/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, uint8_t, 2>(),
const MapLaunch<2> binary_uint8[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int32_t, 2>(),
const MapLaunch<2> binary_int32[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int64_t, 2>(),
const MapLaunch<2> binary_int64[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, bool, 2>(),
const MapLaunch<2> binary_bool[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
