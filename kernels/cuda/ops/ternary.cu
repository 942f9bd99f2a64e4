// The ternary operations of pointwise.h (blocks/map.h). There are few of them, so one file has the columns of
// all compute types.
#include <weft/kernels/cuda/blocks/map.h>

namespace weft::cuda {

#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, float, 3>(),
const MapLaunch<3> ternary_float[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, double, 3>(),
const MapLaunch<3> ternary_double[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, uint8_t, 3>(),
const MapLaunch<3> ternary_uint8[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int32_t, 3>(),
const MapLaunch<3> ternary_int32[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, int64_t, 3>(),
const MapLaunch<3> ternary_int64[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW
#define WEFT_ROW(name, cls) map_launch<kernels::functors::name, OpClass::cls, bool, 3>(),
const MapLaunch<3> ternary_bool[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace weft::cuda
