// How the CUDA backend computes, for the whole process. The switches stand in core, so that they can be set before the backend is opened.
#pragma once

#include <weft/kernels/error.h>

namespace weft::cuda {

/// Whether float32 matrix products may round their factors to TF32 (10 bits of mantissa, several times as fast, where the device has it). Off at first.
WEFT_API bool allow_tf32() noexcept;
WEFT_API void set_allow_tf32(bool allow) noexcept;

/// Whether recurrent layers run on cuDNN where it is there and can take them; else, or when off, on weft's own cell. On at first, unless
/// WEFT_CUDNN=0 is in the environment. A backward runs on what its forward ran on.
WEFT_API bool use_cudnn() noexcept;
WEFT_API void set_use_cudnn(bool use) noexcept;

/// Whether a recurrent stack with dropout between its layers is cuDNN's in training too, as it is in evaluation: quicker, with masks that other devices do
/// not draw. They follow the module's generator, so a run repeats; not while a graph is recorded. Off at first.
WEFT_API bool cudnn_dropout() noexcept;
WEFT_API void set_cudnn_dropout(bool use) noexcept;

}  // namespace weft::cuda
