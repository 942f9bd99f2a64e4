// Layers without parameters: each forward calls the operation of the same name. Sequential is a template in
// the header; its indexing is here.
#include <weft/nn/layers.h>

#include <weft/autograd/ops/ops.h>

namespace weft::nn {

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) throw ValueError(str("Dropout: p must be in [0, 1], got ", p));
}
Tensor Dropout::forward(const Tensor& x) const { return dropout(x, p_, is_training(), &generator()); }
std::string Dropout::name() const { return str("Dropout(p=", p_, ")"); }

Tensor ReLU::forward(const Tensor& x) const { return relu(x); }
Tensor Tanh::forward(const Tensor& x) const { return tanh(x); }
Tensor Sigmoid::forward(const Tensor& x) const { return sigmoid(x); }
Tensor GELU::forward(const Tensor& x) const { return gelu(x); }
Tensor SiLU::forward(const Tensor& x) const { return silu(x); }
Tensor Softmax::forward(const Tensor& x) const { return softmax(x, dim_); }
Tensor LogSoftmax::forward(const Tensor& x) const { return log_softmax(x, dim_); }

Module& Sequential::operator[](int64_t index) const {
  const auto count = static_cast<int64_t>(size()), at = index < 0 ? index + count : index;
  if (at < 0 || at >= count)
    throw IndexError(str("Sequential: index ", index, " is outside ", count, " modules"));
  return *steps_[static_cast<size_t>(at)].module;
}

}  // namespace weft::nn
