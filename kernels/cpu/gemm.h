// The choice of who multiplies matrices. Three engines sit behind one seam: our own register tiles (isa/gemm_tile.h), Eigen, and
// oneDNN where it was found. Each is called for one tile of c at a time on one thread; how c is cut depends on sizes only, so the
// bits are the same for any thread count. WEFT_GEMM in the environment (tile, eigen, onednn) overrides the choice by measurement
// for float; double always goes by the tiles.
#pragma once

#include <cstdint>

#include <weft/kernels/error.h>

namespace weft::kernels {

enum class GemmEngine : uint8_t { kAuto, kTile, kEigen, kOnednn };

/// The engine asked for: WEFT_GEMM at start, or what set_gemm_engine chose. Throws: ValueError for an unknown name.
WEFT_API GemmEngine gemm_engine();
/// Chooses for the calls that follow. Throws: ValueError when this build has no oneDNN.
WEFT_API void set_gemm_engine(GemmEngine engine);
/// True when this build has oneDNN.
WEFT_API bool has_onednn();

/// One row-major product by oneDNN on the calling thread alone: c[m, n] = alpha * op(a) op(b) + beta * c. Its OpenMP sees one thread
/// during the call; the caller's own OpenMP setting is put back. Throws: Error when oneDNN refuses.
void onednn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                  const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                  int64_t ldc);

}  // namespace weft::kernels
