// The bodies and the registration of the builtin functions (builtin.h). The bodies are plain operations on
// tensors; agent.cpp calls register_builtins.
#include <weft/distributed/rpc/builtin.h>

#include <mutex>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rpc/inner/device_functions.h>
#include <weft/distributed/rpc/inner/trace_functions.h>
#include <weft/tensor/factories.h>

namespace weft::rpc {

namespace builtin {
Tensor add(const Tensor& a, const Tensor& b) { return weft::add(a, b); }
Tensor add_scalar(const Tensor& a, double b) { return weft::add(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return weft::sub(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return weft::mul(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return weft::div(a, b); }
Tensor matmul(const Tensor& a, const Tensor& b) { return weft::matmul(a, b); }
Tensor sum(const Tensor& a) { return a.sum(); }
Tensor relu(const Tensor& a) { return weft::relu(a); }
Tensor nonzero(const Tensor& a) { return weft::nonzero(a); }
Tensor ones(const Shape& sizes) { return weft::ones(sizes); }
Tensor zeros(const Shape& sizes) { return weft::zeros(sizes); }
}  // namespace builtin

void register_builtins() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_function<&builtin::add>("weft::add");
    register_function<&builtin::add_scalar>("weft::add_scalar");
    register_function<&builtin::sub>("weft::sub");
    register_function<&builtin::mul>("weft::mul");
    register_function<&builtin::div>("weft::div");
    register_function<&builtin::matmul>("weft::matmul");
    register_function<&builtin::sum>("weft::sum");
    register_function<&builtin::relu>("weft::relu");
    register_function<&builtin::nonzero>("weft::nonzero");
    register_function<&builtin::ones>("weft::ones");
    register_function<&builtin::zeros>("weft::zeros");
    register_function<&builtin::trace>("weft::trace");
    register_function<&builtin::open_calls>("weft::open_calls");
    register_function<&builtin::missing_devices>("weft::missing_devices");
  });
}

}  // namespace weft::rpc
