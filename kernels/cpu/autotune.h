// Engines that a process measures for itself (WEFT_AUTOTUNE=1). The first product of a shape runs each engine
// three times. The process then uses the fastest. Bits may then differ between two runs.
#pragma once

#include <compare>
#include <cstdint>

#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/cpu/pool.h>

namespace weft::kernels {

/// Whether WEFT_AUTOTUNE is 1. Throws: ValueError for a value other than 0 or 1.
WEFT_API bool autotunes();
/// Whether MKL is among the engines that are measured: WEFT_MKL_LIBRARY names it, and it was loaded.
bool autotunes_mkl();

struct ProductShape {
  int64_t m, n, k;
  bool transposed_a, transposed_b;
  auto operator<=>(const ProductShape&) const = default;
};

/// The engine of a shape. For a new one, `run` computes the product with a given engine, into memory of its
/// own. Thread-safe: where threads measure the same shape at once, all get the same engine.
GemmEngine tuned_engine(const ProductShape& shape, FunctionRef<void(GemmEngine)> run);

}  // namespace weft::kernels
