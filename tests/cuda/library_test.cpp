// A program with the CUDA backend in it, on machines with and without a device.
#include <gtest/gtest.h>

#include <string>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/factories.h>

namespace weft {
namespace {

TEST(CudaLibrary, without_a_device_the_error_names_what_is_missing) {
  if (cuda::is_available()) GTEST_SKIP() << "a device is there";
  for (int again = 0; again < 2; ++again) {
    try {
      ones({2}, {.device = "cuda"});
      FAIL() << "made a tensor on a device that is not there";
    } catch (const DeviceError& e) {
      EXPECT_NE(std::string(e.what()).find("NVIDIA driver"), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(cuda::device_count(), 0);
  EXPECT_EQ(ones({2}).sum().item<float>(), 2);  // the CPU is well
}

TEST(CudaLibrary, with_a_device_it_computes) {
  if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(ones({2, 3}, {.device = "cuda"}).sum().item<float>(), 6);
  EXPECT_GT(accelerator("cuda").properties().processors, 0);
  EXPECT_THROW(backend(Device(DeviceType::kCuda, cuda::device_count())), DeviceError);
}

}  // namespace
}  // namespace weft
