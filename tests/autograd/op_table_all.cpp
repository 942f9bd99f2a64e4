// All rows of the op table, in the order of ops.h. A benchmark that wants them compiles the files
// op_table_*.cpp of this folder (but the driver, op_table_test.cpp) and iterates all_rows(). It calls
// make_inputs() with a row's `large` sizes, then row.call().
#include <iterator>

#include "support/op_table.h"

namespace weft::op_table {

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (auto group : {pointwise_rows, binary_rows, scalar_rows, test_rows, bit_rows, reduce_rows,
                       matmul_rows, attention_rows, softmax_rows, loss_rows, index_rows, index_many_rows,
                       order_rows, shape_rows, arrange_rows, random_rows, rnn_rows, inplace_rows}) {
      std::vector<Row> part = group();
      all.insert(all.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
    }
    add_refusals(all);
    return all;
  }();
  return rows;
}

}  // namespace weft::op_table
