// Tensor functions that every worker serves, under the names "weft::add" and so on. Shapes and errors are
// those of the operations with the same names (autograd/ops/ops.h). Thread safety: any thread.
//   Tensor y = rpc_sync<builtin::add>("ps", a, b);
#pragma once

#include <weft/distributed/rpc/function.h>

namespace weft::rpc {

namespace builtin {
WEFT_API Tensor add(const Tensor& a, const Tensor& b);
WEFT_API Tensor add_scalar(const Tensor& a, double b);
WEFT_API Tensor sub(const Tensor& a, const Tensor& b);
WEFT_API Tensor mul(const Tensor& a, const Tensor& b);
WEFT_API Tensor div(const Tensor& a, const Tensor& b);
WEFT_API Tensor matmul(const Tensor& a, const Tensor& b);
WEFT_API Tensor sum(const Tensor& a);
WEFT_API Tensor relu(const Tensor& a);
WEFT_API Tensor nonzero(const Tensor& a);
WEFT_API Tensor ones(const Shape& sizes);
WEFT_API Tensor zeros(const Shape& sizes);
}  // namespace builtin

/// Registers the functions above; Agent::create calls it. Thread safety: any thread.
WEFT_API void register_builtins();

}  // namespace weft::rpc
