// A block of device memory that a second process opens, reads and writes: the base of lent tensors
// (distributed/wire/inner/lending.h).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "programs/program.h"
#include "support/child_environment.h"

namespace weft::test {
namespace {

constexpr const char* kHandle = "WEFT_TEST_SHARED_BLOCK";
constexpr int64_t kCount = 1 << 18;

std::string written(const SharedBlock& block) {
  std::string text = std::to_string(block.offset);
  for (const unsigned char byte : block.handle) text += ' ' + std::to_string(byte);
  return text;
}
SharedBlock read(const char* text) {
  SharedBlock block;
  char* at = nullptr;
  block.offset = std::strtoll(text, &at, 10);
  for (unsigned char& byte : block.handle) byte = static_cast<unsigned char>(std::strtol(at, &at, 10));
  return block;
}

/// The work of the second process: reads the block of the first, and writes twice as much.
void child(Device gpu, const SharedBlock& block) {
  Accelerator& device = accelerator(gpu);
  void* const shared = device.open_shared(block);
  Context context;
  Tensor here = empty({kCount}, {.device = gpu});
  const auto bytes = static_cast<size_t>(kCount) * sizeof(float);
  device.copy_async(context, here.raw(), shared, bytes);
  EXPECT_TRUE(equal(here.to(kCpu), arange(0, kCount, 1, {.dtype = kFloat32})));
  here = here * 2;
  device.copy_async(context, shared, here.raw(), bytes);
  cuda::synchronize(gpu);
  device.close_shared(shared);
}

DEVICE_TEST(SharedBlock, is_read_and_written_by_a_second_process) {
  if (const char* const handle = std::getenv(kHandle)) return child(gpu, read(handle));
  // rarely at the start of its segment
  const Tensor before = zeros({100}, {.device = gpu}), x = arange(0, kCount, 1, {.dtype = kFloat32}).to(gpu);
  cuda::synchronize(gpu);
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  const programs::Output out = programs::run(
      str("/proc/self/exe --gtest_brief=1 --gtest_filter=", info->test_suite_name(), ".", info->name()),
      child_environment({{kHandle, written(accelerator(gpu).share(x.raw()))}}));
  EXPECT_EQ(out.code, 0) << "where CUDA has no memory between processes (a sandbox, exclusive mode) the "
                            "second one cannot open the block: "
                         << out.text;
  EXPECT_TRUE(equal(x.to(kCpu), arange(0, kCount, 1, {.dtype = kFloat32}) * 2));
  EXPECT_EQ(before.sum().item<float>(), 0);
}

}  // namespace
}  // namespace weft::test
