// Retry for calls of NVIDIA's libraries that find no device memory, because weft's cache holds it.
#pragma once

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

/// Calls f(). If it throws OutOfMemoryError and the thread records no graph, empties the cache and calls f()
/// again. f must be repeatable.
template <class F> void with_room(CudaBackend& backend, const F& f) {
  try {
    return f();
  } catch (const OutOfMemoryError&) {
    if (backend.thread_records()) throw;
  }
  backend.empty_cache();
  f();
}

}  // namespace weft::cuda
