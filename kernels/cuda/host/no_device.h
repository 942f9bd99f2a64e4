// The error text of runtime::device_count without a device; a separate function, so that it can be tested on
// any machine.
#pragma once

#include <string>

#include <weft/kernels/error.h>

namespace weft::cuda {

/// `driver`: its version in CUDA's form (12040 is 12.4), 0 without a driver. `needed`: the version that this
/// build needs if the driver is too old, else 0.
inline std::string no_device(int driver, int needed) {
  const auto version = [](int v) { return str(v / 1000, ".", v % 1000 / 10); };
  if (driver == 0)
    return "cuda: the NVIDIA driver is missing on this machine; install it, or use the device cpu";
  if (needed > 0)
    return str("cuda: the NVIDIA driver is for CUDA ", version(driver),
               ", too old for this build, which needs ", version(needed));
  return "cuda: the NVIDIA driver shows no device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the "
         "device cpu";
}

}  // namespace weft::cuda
