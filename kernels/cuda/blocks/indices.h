// Index tensors in kernels: int64 or int32, with a range check that reports faults.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/host/fault.h>
#include <weft/kernels/view.h>

namespace weft::cuda {

struct Indices {
  const void* data;
  bool wide;     ///< int64, else int32
  int64_t size;  ///< indices are in [0, size)
  Fault* fault;

  Indices(const View& index, int64_t limit, Fault* record)
      : data(index.data), wide(index.dtype == DType::kInt64), size(limit), fault(record) {}

  /// `offset` in elements.
  WEFT_DEVICE int64_t at(int64_t offset) const {
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
  WEFT_DEVICE bool inside(int64_t v) const { return static_cast<uint64_t>(v) < static_cast<uint64_t>(size); }
  /// `position` counts the elements of the index tensor in row-major order.
  WEFT_DEVICE void report(Thread t, int64_t v, int64_t position) const {
    fault->report(t, Fault::kIndex, v, size, position);
  }
};

}  // namespace weft::cuda
