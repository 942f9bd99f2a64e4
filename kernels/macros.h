// Attributes of declarations.
#pragma once

/// Exports a class or function from the shared library.
#define WEFT_API __attribute__((visibility("default")))
/// Marks a function that runs on the host and in CUDA kernels.
#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__
#else
#define WEFT_HD
#endif
