// What runtime::device_count says where there is no device; apart from it, since it can be tried on any machine.
#pragma once

#include <string>

#include <weft/kernels/error.h>

namespace weft::cuda {

/// `driver`: version as CUDA counts it (12040 is 12.4), 0 for none. `needed`: the version that the driver is too old for, 0 where it is not.
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
