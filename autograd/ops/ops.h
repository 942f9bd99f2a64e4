// Every operation on tensors as a free function, in five headers by kind. tensor.h has the common operations
// as methods, with the same definition. Section headings name the .cpp file, which is in this folder. An
// operation checks its arguments, launches kernels, and records itself on the tape.
//
// Doc lines:
// - "Shape:" gives the sizes of the arguments and of the result; ".." is any number of dims. Without it the
//   result has the sizes of x, or the broadcast sizes of all tensor arguments.
// - "Grad:" gives the gradient dx of x from the gradient g of the result y. An operation without it is not
//   differentiable.
// - "Throws:" lists the errors of that operation. Every operation may also throw:
//     ValueError    an undefined tensor
//     DeviceError   tensors on different devices
//     ShapeError    sizes that do not broadcast, or that multiply beyond int64; more than 8 dims (kMaxDims)
//     IndexError    a dim that the tensor does not have; negative dims count from the end
//     DTypeError    a Scalar that the dtype cannot hold (docs/ops.md)
//   On a CUDA device an error may depend on elements, such as an index out of range. The thread's next copy
//   to the host or wait for the device throws it.
//
// Sizes broadcast from the right: [3, 1] with [4] gives [3, 4].
//
// Two tensors meet in the wider dtype: bool < uint8 < int32 < int64 < float16, bfloat16 < float32 < float64
// (float16 with bfloat16 gives float32). A Scalar never promotes a tensor. Functions of real numbers (exp,
// div, sqrt, ...) take integers as float32. Arithmetic and sums take bool as int64. Sums and products of
// integers are int64. mean, var, std and softmax of integers are a DTypeError. Gradients flow through
// floating tensors only.
//
// Under an Autocast (autocast.h) an argument declared AutocastArg is cast to the half dtype, and one
// declared Fp32Arg from a half dtype to float32. An argument declared In keeps its dtype.
#pragma once

#include <weft/autograd/ops/ops_nn.h>
#include <weft/autograd/ops/ops_order.h>
#include <weft/autograd/ops/ops_pointwise.h>
#include <weft/autograd/ops/ops_reduce.h>
#include <weft/autograd/ops/ops_shape.h>
