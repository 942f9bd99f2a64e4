// Processes with an emulated device each, whose collectives run over the emulated NCCL.
#pragma once

#include <cstdlib>

#include "collectives/members.h"
#include "support/nccl/settings.h"
#include "support/simt/device.h"

namespace weft::test {

inline constexpr Device kGpu(DeviceType::kCuda, 0);

/// Opens the devices, and lets weft find the emulated NCCL unless the variable is set.
inline void open_devices() {
  cuda::simt::install();
  setenv("WEFT_NCCL_LIBRARY", WEFT_TEST_NCCL, 0);
}

inline Group join_with_device(int rank, dist::ProcessGroupOptions options = {}) {
  open_devices();
  options.device = kGpu;
  return join(rank, options);
}

}  // namespace weft::test
