// The choice of the matrix-product engine: weft's register tiles (isa/gemm_tile.h), Eigen, oneDNN if the
// build found it, or MKL if the user asks for it. An engine computes one tile of c at a time on one thread.
// The bits are the same for any thread count. For a library, the partition of c depends on sizes only; for
// the tiles, it changes no sum.
//
// For float the choice follows a measured table (isa/engines.h). WEFT_GEMM in the environment (tile, eigen,
// onednn, mkl) overrides it, and with WEFT_AUTOTUNE=1 each process measures the shapes that it meets
// (autotune.h). double always uses the tiles.
#pragma once

#include <cstdint>
#include <string>

#include <weft/kernels/error.h>

namespace weft::kernels {

enum class GemmEngine : uint8_t { kAuto, kTile, kEigen, kOnednn, kMkl };

/// The engine set by set_gemm_engine, else by WEFT_GEMM. Throws: ValueError for an unknown name in WEFT_GEMM,
/// or one of an engine that is not there.
WEFT_API GemmEngine gemm_engine();
/// Sets the engine for later calls. Throws: ValueError for oneDNN in a build without it, and for MKL where it
/// cannot be loaded.
WEFT_API void set_gemm_engine(GemmEngine engine);
/// Whether this build has oneDNN.
WEFT_API bool has_onednn();

/// One row-major product by oneDNN on the calling thread alone: c[m, n] = alpha * op(a) op(b) + beta * c.
/// OpenMP is limited to one thread during the call, and the caller's setting is restored.
/// Throws: Error if oneDNN refuses the product.
void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                  const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                  int64_t ldc);

/// The same by MKL's library libmkl_rt, as one sequential call; the sizes are below 2^31.
/// Throws: Error without MKL.
void mkl_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
/// Empty where MKL was loaded, from WEFT_MKL_LIBRARY or by its usual names; else the reason.
const std::string& mkl_missing();
/// Its version, such as "2026.0.2"; empty where it was not loaded.
const std::string& mkl_version();

}  // namespace weft::kernels
