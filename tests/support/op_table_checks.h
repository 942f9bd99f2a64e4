// The checks of every row of the op table on one device.
#pragma once

#include <string>

#include "support/op_table.h"

namespace weft::op_table {

/// Registers the test <suite>.<check>/<row>; `row` must live as long as the program.
void register_check(const char* suite, const char* check, const Row& row, Device device,
                    void (*run)(const Row&, Device));

/// Registers one test per (row, check), named <suite>.<check>/<row>; `rows` must live as long as the program.
bool register_checks(const char* suite, Device device, const std::vector<Row>& rows);

/// Compares the forward of one set of inputs with the reference. `dtype`: the dtype of the kReal inputs.
void expect_reference(const Row& row, const Tensors& inputs, DType dtype, const std::string& where);

}  // namespace weft::op_table
