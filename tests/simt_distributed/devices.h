// Workers with two emulated GPUs each ("cuda:0" and "cuda:1", the same two for all workers of a test) over
// the simulated network. Device memory cannot be touched by host code, so a byte that travels without a copy
// through host memory ends the test.
#pragma once

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/simt/device.h"

namespace weft::test {

using rpc::DeviceMap;
using rpc::DeviceMaps;

inline constexpr Device kGpu0(DeviceType::kCuda, 0), kGpu1(DeviceType::kCuda, 1);

/// Opens the emulated devices.
inline void open_devices() {
  cuda::simt::install();
  for (const Device d : {kGpu0, kGpu1}) backend(d);
}

/// A group whose worker0 has the given maps.
inline ClusterOptions mapped(DeviceMaps maps, int size = 2, Over over = Over::kSim) {
  open_devices();
  ClusterOptions o{.over = over, .size = size};
  o.each = [maps = std::move(maps)](int rank, rpc::AgentOptions& a) {
    if (rank == 0) a.device_maps = maps;
  };
  return o;
}

inline std::vector<float> values(const Tensor& t) { return t.to(kCpu).to_vector<float>(); }
/// from, from + 1, ... on a device.
inline Tensor range(int64_t n, float from, Device device) {
  return add(arange(n).to(kFloat32), from).to(device);
}
inline std::vector<float> range_values(int64_t n, float from) { return values(range(n, from, kCpu)); }

}  // namespace weft::test
