// Checks of the op table with special values and at the limits of the dtypes.
#pragma once

#include "support/op_table.h"

namespace weft::op_table {

/// True if an input of the row is floating in some dtype.
bool has_real(const Row& row);
/// Tests NaN, infinities and zeros of both signs among the inputs, in each floating dtype, against the
/// reference, which follows IEEE 754.
void special_values(const Row& row, Device device);
/// A number outside of the dtype is refused with the op's name; one inside is accepted. A comparison uses
/// the exact value.
void numbers_beyond_the_type(const Row& row, Device device);

}  // namespace weft::op_table
