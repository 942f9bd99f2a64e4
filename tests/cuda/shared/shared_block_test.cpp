// A block of device memory that a second process opens, reads and writes: what lent tensors (distributed/lending.h) stand on.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"

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

/// What the second process does: reads the block of the first, and writes twice as much.
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

/// Runs the calling test in a new process, with the handle in its environment and its output on stderr. Its exit status, -1 after a minute.
int run_again(const std::string& handle) {
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = str("--gtest_filter=", info->test_suite_name(), ".", info->name());
  const char* const arguments[] = {"child", filter.c_str(), "--gtest_brief=1", nullptr};
  std::vector<std::string> kept{str(kHandle, "=", handle)};
  for (char** variable = environ; *variable; ++variable)
    if (std::string_view(*variable).substr(0, 6) != "GTEST_") kept.emplace_back(*variable);
  std::vector<char*> variables;
  for (std::string& variable : kept) variables.push_back(variable.data());
  variables.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, 2, 1);
  pid_t process = 0;
  const int failed = posix_spawn(&process, "/proc/self/exe", &files, nullptr, const_cast<char* const*>(arguments), variables.data());
  posix_spawn_file_actions_destroy(&files);
  if (failed) return -1;
  int status = -1;
  for (int i = 0; i < 6000; ++i) {
    if (waitpid(process, &status, WNOHANG) == process) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(process, SIGKILL);
  waitpid(process, &status, 0);
  return -1;
}

DEVICE_TEST(SharedBlock, is_read_and_written_by_a_second_process) {
  if (const char* const handle = std::getenv(kHandle)) return child(gpu, read(handle));
  const Tensor before = zeros({100}, {.device = gpu}), x = arange(0, kCount, 1, {.dtype = kFloat32}).to(gpu);  // rarely at the start of its segment
  cuda::synchronize(gpu);
  EXPECT_EQ(run_again(written(accelerator(gpu).share(x.raw()))), 0) << "the second process says why; where CUDA has no memory between processes (a sandbox, exclusive mode) it cannot open the block";
  EXPECT_TRUE(equal(x.to(kCpu), arange(0, kCount, 1, {.dtype = kFloat32}) * 2));
  EXPECT_EQ(before.sum().item<float>(), 0);
}

}  // namespace
}  // namespace weft::test
