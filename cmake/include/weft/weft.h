// Everything of weft::core: tensors, autograd, layers, optimizers.
#pragma once

#include <weft/autograd/grad_mode.h>
#include <weft/autograd/ops.h>
#include <weft/kernels/error.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>
