// How kernels that move or add whole rows share them out: a group of lanes, a power of two of them, takes a row and walks over its units (an element,
// or 16 bytes of elements). There is no division on the way. When rows are few, a second grid dimension splits the units.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <weft/kernels/cuda/cuda_backend.h>
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

/// Shares out `rows` rows of `units` units.
inline Grid share_rows(const CudaBackend& backend, int64_t rows, int64_t units, RowLanes& lanes) {
  Grid grid;
  while ((1 << lanes.shift) < grid.threads && (1 << lanes.shift) < units) ++lanes.shift;
  const int64_t needed = blocks_for(rows, grid.threads >> lanes.shift);
  grid.blocks = backend.blocks_at_once(needed);
  const int64_t strips = blocks_for(units, int64_t{4} << lanes.shift),
                wanted = backend.blocks_at_once() / (needed > 0 ? needed : 1);
  grid.rows = strips < wanted ? strips : wanted;
  if (grid.rows < 1) grid.rows = 1;
  return grid;
}

/// How many bytes of a row of k elements, along the last dim of each view, can be read and written at a time: 16 at most, an element's width at least.
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
  return static_cast<int64_t>(together & (~together + 1));  // the lowest bit: what all are multiples of
}

}  // namespace weft::cuda
