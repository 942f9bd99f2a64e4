// Early reads for kernels that visit rows of a table by index. Each row would begin with a wait for memory,
// since no hardware sees the next one.
#pragma once

#include <cstdint>

namespace weft::kernels::WEFT_ISA_NS {

/// Rows between the one in work and the one that is fetched; measured with rows of 256 bytes.
inline constexpr int64_t kRowsAhead = 8;

/// Fetches a row that will be read, or written if kWrite is 1. Of a long one it fetches the begin only: the
/// hardware sees the rest.
template <int kWrite> void fetch_row(const void* row, int64_t bytes) {
  const auto* const from = static_cast<const char*>(row);
  for (int64_t at = 0; at < bytes && at < 1024; at += 64) __builtin_prefetch(from + at, kWrite);
}

}  // namespace weft::kernels::WEFT_ISA_NS
