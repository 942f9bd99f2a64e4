#include <weft/autograd/set_data.h>

#include <weft/autograd/slot.h>
#include <weft/kernels/backend.h>

namespace weft {

void set_data(const Tensor& x, const Tensor& value) {
  if (!x.is_leaf()) throw AutogradError("set_data: the tensor is not a leaf");
  if (x.sizes() != value.sizes())
    throw ShapeError(str("set_data: the tensor is ", x.sizes(), ", the value ", value.sizes()));
  if (x.is_same(value) || (x.shares_storage(value) && x.dtype() == value.dtype())) return;
  const bool wants_grad = x.requires_grad();
  Tensor handle = x;
  if (wants_grad) handle.requires_grad_(false);  // the old accumulator expects the old dtype
  if (detail::slot_of(x)) x.set_grad(Tensor());
  TensorBody& body = x.body();
  const Tensor fresh = value.is_contiguous() ? value.detach() : value.detach().contiguous();
  body.storage = fresh.body().storage;
  body.offset = fresh.body().offset;
  body.strides = fresh.body().strides;
  body.dtype = fresh.body().dtype;
  body.device = fresh.body().device;
  if (wants_grad) handle.requires_grad_();
}

}  // namespace weft
