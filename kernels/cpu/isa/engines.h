// The engine of a product in float32 by its shape, made by scripts/bench/engines.py.
// The tiles compute a product that is in no row. Every version of oneDNN gets the same rows.
// Measured on an AMD EPYC with AVX-512, with oneDNN 2.6.3, which was held to each set's instructions.
#pragma once

#include <weft/kernels/cpu/gemm.h>
#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

// Below them a call of a library costs more than it saves.
inline constexpr int64_t kEngineSide = 32, kEngineWork = 131072;

struct EngineRow {
  GemmEngine engine;
  bool transposed_b;
  int64_t least_m, most_m, least_b, most_b;  // rows of a, and numbers of b
};
inline constexpr int64_t kAny = int64_t{1} << 62;
inline constexpr EngineRow kNoEngine{GemmEngine::kTile, false, 1, 0, 1, 0};

#if defined(__AVX512F__)
inline constexpr EngineRow kEngineRows[] = {
    kNoEngine,
};
#elif defined(__AVX2__)
inline constexpr EngineRow kEngineRows[] = {
    kNoEngine,
};
#else
inline constexpr EngineRow kEngineRows[] = {kNoEngine};
#endif

}  // namespace weft::kernels::WEFT_ISA_NS
