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

/// Whether attention of float16 and bfloat16 without a mask runs on cuDNN, 9.16 or newer, if it is found and
/// takes the call; otherwise it runs on weft's kernels. Off by default, unless WEFT_CUDNN_ATTENTION=1 is in
/// the environment: no device has run it yet.
WEFT_API bool cudnn_attention() noexcept;
/// Sets it for later calls; a backward follows its own time's setting.
WEFT_API void set_cudnn_attention(bool use) noexcept;

/// Whether the gradients of attention repeat their bits on cuDNN too, as they do on weft's kernels. cuDNN
/// then needs a workspace of one half per query, key and head; calls for which that is more than 2 GiB run on
/// weft's kernels. If it is off, cuDNN adds the gradient of q in any order, and needs four bytes per number
/// of q instead. On by default.
WEFT_API bool ordered_attention() noexcept;
/// Sets it for later backward passes.
WEFT_API void set_ordered_attention(bool ordered) noexcept;

/// The number of chunks of time, or fewer, in which weft's kernels run a recurrent stack. While a layer works
/// on a chunk, the next one works on the chunk before, on a second stream. This covers stacks of two or more
/// layers in one direction; others, and all while it is 0, go layer by layer, as they do with use_cudnn().
/// Dropout between the layers has the same masks in both forms. It is 0, unless WEFT_RECURRENT_WAVEFRONT in
/// the environment is a number: no device has shown yet that it is faster.
WEFT_API int recurrent_wavefront() noexcept;
/// Sets it for later forward passes; a backward takes the form of its forward. 1 is as 0. Throws: ValueError
/// if it is negative.
WEFT_API void set_recurrent_wavefront(int chunks);

/// Whether weft's kernels take all steps of an LSTM's forward or backward in one kernel. Its blocks stay on
/// the device and keep the recurrent weights in shared memory. This covers layers whose weights fit there,
/// with batches of up to 64 rows in float32 and 32 in half types. Others, and all while it is off, take a
/// product and a kernel for each step. So do stacks in chunks (recurrent_wavefront), and all LSTMs while a
/// process group has a device. Off by default, unless WEFT_RECURRENT_PERSISTENT=1 is in the environment: no
/// device has run it yet.
WEFT_API bool recurrent_persistent() noexcept;
/// Sets it for later passes.
WEFT_API void set_recurrent_persistent(bool use) noexcept;

/// While one is alive, kernels on this process's devices may wait for other processes, as those of NCCL do.
/// They hold their processors meanwhile. So no kernel should begin that needs most of a device at once.
/// Thread safety: any thread may make, end and ask for them.
class WEFT_API WaitingKernels {
 public:
  WaitingKernels() noexcept;
  ~WaitingKernels();
  WaitingKernels(const WaitingKernels&) = delete;
  static bool any() noexcept;
};

}  // namespace weft::cuda
