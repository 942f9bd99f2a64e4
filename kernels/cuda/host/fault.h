// Reports of kernels about bad input, such as an index out of range. A kernel writes the first fault to a
// record (fault_slots.h) and continues without an access out of bounds. The host throws the typed error at
// its next wait for the device (a copy to the host, synchronize), or at once with WEFT_CUDA_SYNC=1.
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

  /// Stores the first report; `at` is the position of the value in the input. The host may read the record at
  /// the same time, during a wait for another stream. So a thread claims the record, fills it, and sets
  /// `kind` last.
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
