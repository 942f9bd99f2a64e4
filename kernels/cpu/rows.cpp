// The errors of the row kernels (rows.h), compiled once for all instruction sets, because they use
// std::string.
#include <weft/kernels/cpu/rows.h>

#include <weft/kernels/error.h>

namespace weft::kernels {

void throw_bad_target(int64_t target, int64_t row, int64_t classes) {
  throw IndexError(str("target ", target, " in row ", row, " is not in [0, ", classes, ")"));
}

}  // namespace weft::kernels
