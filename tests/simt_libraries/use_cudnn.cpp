// The tests of this program run recurrent layers on the emulated cuDNN, which a program has to ask for.
#include <gtest/gtest.h>

#include <weft/kernels/cuda_settings.h>

namespace {

struct UseCudnn : ::testing::Environment {
  void SetUp() override { weft::cuda::set_use_cudnn(true); }
};
const ::testing::Environment* const use_cudnn = ::testing::AddGlobalTestEnvironment(new UseCudnn);

}  // namespace
