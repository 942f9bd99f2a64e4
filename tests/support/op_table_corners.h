// The corner cases of a row of the op table: int32 indices, no dims, dims of 0, one tensor for two
// arguments, and writes to outputs.
#pragma once

#include "support/op_table.h"

namespace weft::op_table {

/// Registers <suite>.<check>/<row> for the checks of this file; `row` must live as long as the program.
void register_corner_checks(const char* suite, const Row& row, Device device);

}  // namespace weft::op_table
