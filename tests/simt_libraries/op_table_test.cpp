// Products and recurrent layers of the op table on the emulated device with emulated cuBLASLt and
// cuDNN: LibrariesOpTable.<check>/<row>.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "support/op_table_checks.h"
#include "support/simt/device.h"

namespace weft::op_table {
namespace {

const std::vector<Row>& rows() {
  static const auto* const all = [] {
    std::set<std::string> products, layers;
    for (const Row& row : matmul_rows()) products.insert(row.name);
    for (const Row& row : rnn_rows()) layers.insert(row.name);
    auto* const joined = new std::vector<Row>;
    for (Row row : all_rows()) {  // with the corners that they refuse
      if (!products.count(row.name) && !layers.count(row.name)) continue;
      if (layers.count(row.name)) row.twice = false;  // made of plain ops, and slow: test_simt does it
      joined->push_back(std::move(row));
    }
    return joined;
  }();
  return *all;
}

const bool registered =
    (cuda::simt::install(), setenv("WEFT_CUBLASLT_LIBRARY", WEFT_TEST_CUBLASLT, 0),
     setenv("WEFT_CUDNN_LIBRARY", WEFT_TEST_CUDNN, 0), register_checks("LibrariesOpTable", "cuda:0", rows()));

}  // namespace
}  // namespace weft::op_table
