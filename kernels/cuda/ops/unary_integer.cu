// The unary operations of pointwise.h with integer compute types and bool (blocks/map.h): the columns of the
// table beside unary_float.cu and unary_double.cu.
#include <weft/kernels/cuda/blocks/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, uint8_t, 1>(),
const MapLaunch<1> unary_uint8[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int32_t, 1>(),
const MapLaunch<1> unary_int32[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int64_t, 1>(),
const MapLaunch<1> unary_int64[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, bool, 1>(),
const MapLaunch<1> unary_bool[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
