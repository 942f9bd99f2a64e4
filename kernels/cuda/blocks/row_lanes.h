// The assignment of rows to lanes in kernels that move or add whole rows. A group of 2^k lanes takes a row
// and iterates over its units (an element, or 16 bytes of elements) without a division. If there are few
// rows, a second grid dimension splits the units.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/packs.h>

namespace weft::cuda {

struct RowLanes {
  int shift = 0;  ///< log2 of the lanes of a row

  WEFT_DEVICE int64_t first_row(Thread t) const { return t.global() >> shift; }
  WEFT_DEVICE int64_t row_step(Thread t) const { return t.globals() >> shift; }
  WEFT_DEVICE int64_t first_unit(Thread t) const {
    return (t.row() << shift) + (t.id() & ((1 << shift) - 1));
  }
  WEFT_DEVICE int64_t unit_step(Thread t) const { return t.rows() << shift; }
};

/// The assignment for `rows` rows of `units` units, and a body's grid for it.
template <class Body>
Grid share_rows(const CudaBackend& backend, const char* name, int64_t rows, int64_t units, RowLanes& lanes) {
  Grid grid;
  while ((1 << lanes.shift) < grid.threads && (1 << lanes.shift) < units) ++lanes.shift;
  const int64_t needed = blocks_for(rows, grid.threads >> lanes.shift);
  const int64_t most = backend.blocks_at_once<Body>(name, INT32_MAX);
  grid.blocks = std::min(needed, most);
  const int64_t strips = blocks_for(units, int64_t{4} << lanes.shift),
                wanted = most / (needed > 0 ? needed : 1);
  grid.rows = strips < wanted ? strips : wanted;
  if (grid.rows < 1) grid.rows = 1;
  return grid;
}

/// The bytes of a row of k elements, along the last dim of each view, that one access can move. They are
/// between an element's width and 16.
inline int64_t access_bytes(std::initializer_list<const View*> views, int64_t k) {
  uint64_t together = 16;
  for (const View* v : views) {
    const int last = v->ndim() - 1;
    const int64_t width = size_of(v->dtype);
    if (k < 2 || v->stride(last) != 1) return width;
    together |= reinterpret_cast<uintptr_t>(v->data) | static_cast<uint64_t>(k * width);
    for (int d = 0; d < last; ++d)
      if (v->size(d) != 1) together |= static_cast<uint64_t>(v->stride(d) * width);
  }
  return static_cast<int64_t>(together & (~together + 1));  // the lowest bit: the largest common power of two
}

}  // namespace weft::cuda
