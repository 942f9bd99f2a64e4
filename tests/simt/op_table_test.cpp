// The op table on the emulated device: SimtOpTable.<check>/<row>. WEFT_SIMT_ORDER chooses the order in which threads run, WEFT_SIMT_POISON
// what fresh memory holds.
#include <gtest/gtest.h>

#include "support/op_table_checks.h"
#include "support/simt/device.h"

namespace weft::op_table {
namespace {

const bool registered = (cuda::simt::install(), register_checks("SimtOpTable", "cuda:0", all_rows()));

}  // namespace
}  // namespace weft::op_table
