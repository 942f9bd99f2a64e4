// Tests of the public API of CUDA devices that are compiled twice. In test_simt the device is emulated and
// suites are called Simt... . In test_cuda it is the machine's and suites are called Cuda... ; a machine
// without a device skips them with the reason. Tests that only the emulation can run stay in tests/simt.
#pragma once

#include <gtest/gtest.h>

#include <weft/kernels/backend.h>
#include <weft/weft.h>
#if defined(WEFT_SIMT)
#include "support/simt/device.h"
#include "support/simt/thread.h"
#endif

namespace weft::test {

struct DeviceTest : ::testing::Test {
  void SetUp() override {
#if defined(WEFT_SIMT)
    cuda::simt::install();
    cuda::simt::settings() = cuda::simt::settings_of_environment();
#else
    try {
      backend(gpu);
    } catch (const DeviceError& e) {
      GTEST_SKIP() << e.what();
    }
#endif
  }
#if defined(WEFT_SIMT)
  void TearDown() override { cuda::simt::settings() = cuda::simt::settings_of_environment(); }
#endif
  const Device gpu{DeviceType::kCuda, 0};
};

// While one lives, the emulated device runs nothing before somebody waits for it, as a slow machine would. A
// real one is as late as it is.
#if defined(WEFT_SIMT)
using Late = cuda::simt::Deferred;
#define DEVICE_TEST(topic, claim) TEST_F(Simt##topic, claim)
using SimtStream = DeviceTest;
using SimtGraph = DeviceTest;
using SimtMemory = DeviceTest;
using SimtScaler = DeviceTest;
using SimtUserRule = DeviceTest;
using SimtLanguageModel = DeviceTest;
using SimtSharedBlock = DeviceTest;
using SimtRowGrad = DeviceTest;
using SimtLongRows = DeviceTest;
using SimtAttention = DeviceTest;
using SimtMasterWeights = DeviceTest;
#else
struct Late {
  Late() {}
};
#define DEVICE_TEST(topic, claim) TEST_F(Cuda##topic, claim)
using CudaStream = DeviceTest;
using CudaGraph = DeviceTest;
using CudaMemory = DeviceTest;
using CudaScaler = DeviceTest;
using CudaUserRule = DeviceTest;
using CudaLanguageModel = DeviceTest;
using CudaSharedBlock = DeviceTest;
using CudaRowGrad = DeviceTest;
using CudaLongRows = DeviceTest;
using CudaAttention = DeviceTest;
using CudaMasterWeights = DeviceTest;
#endif

/// Two layers with dropout between, and their data.
struct Net : nn::Module {
  nn::Linear first{4, 5}, second{5, 3};
  double p;
  explicit Net(double dropout = 0) : p(dropout) {
    add("first", first);
    add("second", second);
    Generator g(3);
    NoGrad quiet;
    for (Tensor& t : parameters()) t.copy_(rand(t.sizes(), {}, &g) - 0.5);
    seed(11);
  }
  Tensor loss(const Tensor& x, const Tensor& y) {
    return (second.forward(dropout(tanh(first.forward(x)), p, true, &generator())) - y).square().mean();
  }
};

}  // namespace weft::test
