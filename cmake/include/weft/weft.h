// Everything of weft::core: tensors, autograd, layers, optimizers.
#pragma once

#include <weft/autograd/autocast.h>
#include <weft/autograd/engine.h>
#include <weft/autograd/grad_mode.h>
#include <weft/autograd/ops.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/nn/nn.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/safetensors.h>
