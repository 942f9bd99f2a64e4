// Processes with an emulated device each, whose collectives run over the emulated NCCL.
#pragma once

#include <cstdlib>

#include <weft/tensor/factories.h>

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

inline Tensor on_device(const Shape& sizes, Scalar value, DType dtype = kFloat32) {
  return full(sizes, value, {.dtype = dtype, .device = kGpu});
}
inline bool holds(const Tensor& x, const Tensor& wanted) { return x.to(kCpu).equal(wanted); }

inline Group join_with_device(int rank, dist::ProcessGroupOptions options = {}) {
  open_devices();
  options.device = kGpu;
  return join(rank, options);
}

}  // namespace weft::test
