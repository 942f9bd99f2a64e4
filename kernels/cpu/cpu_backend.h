// The CPU as a Backend. Each method forwards to the table of the instruction set in use (isa_table.h); memory comes from the
// caching allocator (allocator.h), threads from the pool (pool.h).
#pragma once

#include <weft/kernels/backend.h>

namespace weft::kernels {

/// The one CPU backend; lives as long as the program.
Backend& cpu_backend();

}  // namespace weft::kernels
