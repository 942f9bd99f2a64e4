// How a kernel reports bad input, such as an index out of range: it writes the first one it meets to a record (fault_slots.h) and goes on
// without touching anything out of bounds. The host throws it as the typed error at the next point where it waits for the device anyway
// (a copy to the host, synchronize), or at once with WEFT_CUDA_SYNC=1.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

struct Fault {
  enum Kind : int32_t { kNone, kIndex, kTarget, kWeight, kNoWeight, kFewWeights, kChance, kClaimed };
  int32_t kind = kNone;
  int32_t pad = 0;
  int64_t value = 0, bound = 0, position = 0;
  double number = 0;

  /// Keeps the first report, whose words come from one thread; `at` says where in the input the value stands. A host that waits for another stream may
  /// look meanwhile: the record is claimed, filled, and only then says what it holds.
  template <class T>
  WEFT_DEVICE void report(T t /*a Thread, which host files do not know*/, Kind what, int64_t v, int64_t limit,
                          int64_t at = 0, double n = 0) {
    if (t.atomic_cas(&kind, static_cast<int32_t>(kNone), static_cast<int32_t>(kClaimed)) != kNone) return;
    value = v, bound = limit, position = at, number = n;
    fence_to_host(t);
    *const_cast<volatile int32_t*>(&kind) = what;
  }
};

}  // namespace weft::cuda
