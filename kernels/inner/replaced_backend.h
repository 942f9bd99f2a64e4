// The place where a thread puts another backend before the CPU's: one that records calls and forwards them.
#pragma once

#include <weft/kernels/backend.h>

namespace weft::kernels {

/// Returned by backend(kCpu) on the calling thread; null: the CPU backend itself.
extern WEFT_API constinit thread_local Backend* replaced_cpu_backend;

}  // namespace weft::kernels
