// Everything of weft::core: tensors, autograd, layers, optimizers.
#pragma once

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/checkpoint.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/autograd/tape/dot.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/gradcheck.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/kernels/cpu_settings.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/kernels/packs.h>
#include <weft/nn/nn.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/io/npy.h>
#include <weft/tensor/io/safetensors.h>
#include <weft/tensor/io/write_file.h>
#include <weft/version.h>
