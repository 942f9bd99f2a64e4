// The key of a draw for kernels. A replay of a graph runs its kernels with the recorded arguments. So a value
// that must differ between replays has to be in memory. The number of replays so far is the third word of the
// Philox counter. It is 0 outside of graphs and in the first replay.
#pragma once

#include <weft/kernels/backend.h>
#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/inner/philox.h>

namespace weft::cuda {

struct DeviceKey {
  uint64_t seed = 0, offset = 0;
  const uint32_t* replays = nullptr;  ///< in a graph

  WEFT_DEVICE PhiloxBlock block(uint64_t b) const {
    const uint64_t at = offset + b;
    return philox(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), replays ? *replays : 0, 0,
                  static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
};

/// ++*replays, in stream order.
void count_replay(void* stream, uint32_t* replays);

}  // namespace weft::cuda
