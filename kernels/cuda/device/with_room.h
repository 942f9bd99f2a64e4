// NVIDIA's libraries take device memory of their own, which weft's cache may hold.
#pragma once

#include <weft/kernels/cuda/cuda_backend.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

/// f(); once more with the cache given back where it finds no memory, unless the thread records a graph. What f has issued before it threw must bear repeating.
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
