// RowGrad: the gradient of a table of which a pass reads few rows, made by Embedding{.sparse = true}. It has
// the rows that were looked up and their gradients; the gradients of all other rows are zero. Time and memory
// depend on the number of look-ups, not on the size of the table.
//   nn::Embedding table(200000, 64, {.sparse = true});
//   optim::SparseAdam adam(table.parameters(), {.lr = 1e-3});
//   table.forward(ids).sum().backward();
//   const RowGrad g = table.weight.row_grad();   // g.rows and g.values
//   adam.step();                                 // writes these rows alone
// PyTorch has a sparse tensor in grad() there. In weft, grad() returns a plain tensor, a dense copy to read.
// A dense gradient that is added to a row-wise one makes it dense. Repeated look-ups of a row add in their
// order, as in the dense gradient, so both have the same bits.
#pragma once

#include <weft/tensor/tensor.h>

namespace weft {

/// The gradient of a matrix in a few of its rows.
struct WEFT_API RowGrad {
  Shape sizes;    ///< of the whole gradient, [V, H]
  Tensor rows;    ///< int64 [n] on the CPU: ascending, each in [0, V); row_grad() returns them read-only
  Tensor values;  ///< [n, H], on the table's device: the gradients of these rows
  bool defined() const { return values.defined(); }
  /// A new dense tensor of `sizes`.
  Tensor to_dense() const;
};

}  // namespace weft
