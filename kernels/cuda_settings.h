// Settings of the CUDA backend for the whole process. They belong to the core library, so they can be set
// before the backend is opened.
#pragma once

#include <weft/kernels/error.h>

namespace weft::cuda {

/// Whether float32 matrix products may round their factors to TF32 (10 bits of mantissa), which is faster on
/// devices that have it. Off by default.
WEFT_API bool allow_tf32() noexcept;
/// Sets it for later products.
WEFT_API void set_allow_tf32(bool allow) noexcept;

/// Whether recurrent layers run on cuDNN if it is found and supports the layer; otherwise they run on weft's
/// kernels. Off by default, unless WEFT_CUDNN=1 is in the environment: weft's kernels were faster on an H200
/// in most sizes. A backward uses the implementation of its forward.
WEFT_API bool use_cudnn() noexcept;
/// Sets it for later forward passes.
WEFT_API void set_use_cudnn(bool use) noexcept;

/// Whether a recurrent stack with dropout between its layers runs on cuDNN in training too, as it does in
/// evaluation. The masks then differ from other devices' masks. They follow the module's generator, so runs
/// are reproducible. Ignored while a graph is recorded. Off by default.
WEFT_API bool cudnn_dropout() noexcept;
/// Sets it for later forward passes.
WEFT_API void set_cudnn_dropout(bool use) noexcept;

}  // namespace weft::cuda
