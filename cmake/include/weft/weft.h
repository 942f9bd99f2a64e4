// Everything of weft::core: tensors, autograd, layers, optimizers.
#pragma once

#include <weft/autograd/autocast.h>
#include <weft/autograd/checkpoint.h>
#include <weft/autograd/dot.h>
#include <weft/autograd/engine.h>
#include <weft/autograd/function.h>
#include <weft/autograd/grad_mode.h>
#include <weft/autograd/gradcheck.h>
#include <weft/autograd/hooks.h>
#include <weft/autograd/ops.h>
#include <weft/autograd/saved_hooks.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/nn/nn.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/npy.h>
#include <weft/tensor/safetensors.h>
