// set_data: gives a leaf another storage and dtype, so that all handles to it see them (Module::to). The
// gradient is dropped, because it has the old dtype and device.
#include <weft/autograd/tape/inner/set_data.h>

#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/inner/tracer.h>

namespace weft {

void set_data(const Tensor& x, const Tensor& value) {
  if (!x.is_leaf()) throw AutogradError("set_data: the tensor is not a leaf");
  if (x.sizes() != value.sizes())
    throw ShapeError(str("set_data: the tensor is ", x.sizes(), ", the value ", value.sizes()));
  TensorBody& body = x.body();
  if (x.is_same(value) || (body.storage == value.body().storage && x.dtype() == value.dtype() &&
                           x.strides() == value.strides() && x.storage_offset() == value.storage_offset()))
    return;
  if (x.is_frozen()) throw ValueError(str("set_data: the tensor of sizes ", x.sizes(), " is frozen"));
  if (body.storage->lock() && value.is_frozen())
    throw ValueError("set_data: the value is frozen, and steps replace the memory of the tensor");
  detail::refuse_trace("gives a tensor other memory");
  detail::note_mode_change();  // the old memory may live on, and a program would not see that it is unused
  const Tensor fresh = value.is_contiguous() ? value.detach() : value.detach().contiguous();
  const bool wants_grad = x.requires_grad(), concurrent = body.storage->lock();
  Tensor handle = x;
  if (wants_grad) handle.requires_grad_(false);  // the old accumulator expects the old dtype
  if (detail::slot_of(x)) x.set_grad(Tensor());
  body.storage = fresh.body().storage;
  body.offset = fresh.body().offset;
  body.strides = fresh.body().strides;
  body.contiguous = fresh.is_contiguous();
  body.dtype = fresh.body().dtype;
  body.device = fresh.body().device;
  if (concurrent) body.storage->share();
  if (wants_grad) handle.requires_grad_();
}

}  // namespace weft
