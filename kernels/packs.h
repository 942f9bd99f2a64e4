// Kept packs of weights. A CPU product copies its right operand into the order of its kernel, a pack. If two
// products use a weight without a write in between, its pack is kept for later products. This concerns
// linear, matmul and recurrent layers of float32 and float64. A write through weft changes the version of the
// tensor, and the next product packs again. The bits of a product do not depend on packs. Memory whose
// address the program has, by data<T>() without const, raw() or from_blob, keeps no packs, unless the tensor
// is frozen (Tensor::freeze).
#pragma once

#include <cstdint>

#include <weft/kernels/macros.h>

namespace weft {

/// Statistics of kept packs.
struct PackStats {
  int64_t bytes = 0;   ///< of the kept packs
  int64_t packs = 0;   ///< number of them
  int64_t made = 0;    ///< packs that were kept so far
  int64_t reused = 0;  ///< products so far that used a kept pack
};

/// The statistics of this process.
WEFT_API PackStats pack_stats();
/// Bytes that kept packs may take together. The default is WEFT_PACK_BYTES, else an eighth of the memory that
/// the process may use: half of the limit of the allocator's free blocks.
/// Throws: ValueError if WEFT_PACK_BYTES is no number of bytes.
WEFT_API int64_t pack_limit();
/// Sets the limit. 0 keeps no packs. Packs beyond it are dropped. Throws: ValueError for a negative number.
WEFT_API void set_pack_limit(int64_t bytes);
/// Drops all packs. An allocation that finds no memory also drops them, and tries again.
WEFT_API void drop_packs();

}  // namespace weft
