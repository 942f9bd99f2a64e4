// The checks of every row of the op table on one device.
#pragma once

#include "support/op_table.h"

namespace weft::op_table {

/// Registers one test per (row, check), named <suite>.<check>/<row>; `rows` must live as long as the program.
bool register_checks(const char* suite, Device device, const std::vector<Row>& rows);

}  // namespace weft::op_table
