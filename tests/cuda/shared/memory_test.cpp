// Device memory and pinned host memory as users of tensors meet them: reuse across streams, copies that do
// not block, limits, a full device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "support/errors.h"

namespace weft::test {
namespace {

using std::vector;

constexpr int64_t kMega = int64_t{1} << 20;

DEVICE_TEST(Memory, pinned_copies_on_a_side_stream_keep_its_order) {
  const cuda::Stream side(gpu);
  for (const int64_t n : {1, 4099, 1 << 16}) {
    const Tensor p = arange(0, n, 1, {.dtype = kFloat32}).pin_memory();
    const Late work;
    Tensor back;
    {
      const cuda::StreamGuard guard(side);
      back = (p.to(gpu, true) * 2 + 1).to(kCpu, true);
    }
    EXPECT_TRUE(back.is_pinned());
    side.record_event().synchronize();
    EXPECT_EQ(back.to_vector<float>(), (p * 2 + 1).to_vector<float>());
  }
}

DEVICE_TEST(Memory, pinned_memory_is_not_reused_while_a_copy_reads_it) {
  constexpr int64_t n = 1 << 14;
  vector<Tensor> there;
  {
    const Late work;
    for (int i = 0; i < 8; ++i) there.push_back(full({n}, i, {.pinned = true}).to(gpu, true));
    cuda::synchronize(gpu);
  }
  for (size_t i = 0; i < there.size(); ++i)
    EXPECT_EQ(there[i].to_vector<float>(), vector<float>(n, static_cast<float>(i)));
}

DEVICE_TEST(Memory, what_another_stream_uses_is_not_reused_before_it_is_done) {
  constexpr int64_t n = 1 << 14;
  const cuda::Stream side(gpu);
  Tensor y;
  const Late work;
  {
    const Tensor x = full({n}, 3, {.device = gpu});
    side.wait_stream(cuda::current_stream(gpu));
    cuda::record_stream(x, side);
    const cuda::StreamGuard guard(side);
    Tensor before = zeros({n}, {.device = gpu});
    for (int i = 0; i < 20; ++i) before = before + 1;
    y = before + x;
  }
  vector<Tensor> over;
  for (int i = 0; i < 4; ++i) over.push_back(full({n}, -1, {.device = gpu}));
  cuda::current_stream(gpu).synchronize();
  side.synchronize();
  EXPECT_EQ(y.to_vector<float>(), vector<float>(n, 23));
}

DEVICE_TEST(Memory, a_block_is_cached_for_the_next_tensor_and_given_back_when_asked) {
  cuda::empty_cache(gpu);
  const MemoryStats before = cuda::memory_stats(gpu);
  empty({48 * kMega}, {.dtype = kUInt8, .device = gpu});
  const MemoryStats after = cuda::memory_stats(gpu);
  EXPECT_EQ(after.in_use, before.in_use);
  if (after.cached == 0) GTEST_SKIP() << "nothing is cached: the device is emulated, or WEFT_NO_CACHE is set";
  EXPECT_GE(after.reserved, before.reserved + 48 * kMega);
  empty({48 * kMega}, {.dtype = kUInt8, .device = gpu});
  EXPECT_EQ(cuda::memory_stats(gpu).reserved, after.reserved);
  cuda::empty_cache(gpu);
  EXPECT_LE(cuda::memory_stats(gpu).reserved, after.reserved - 48 * kMega);
}

DEVICE_TEST(Memory, a_full_device_is_an_error_that_names_the_sizes_and_leaves_it_usable) {
  cuda::empty_cache(gpu);  // no block that is large enough lies about
  const Tensor x = ones({1000}, {.device = gpu});
  const int64_t in_use = cuda::memory_stats(gpu).in_use, all = cuda::device_properties(gpu).memory;
  const std::string full_device =
      error_of<OutOfMemoryError>([&] { empty({all / 4 + kMega}, {.device = gpu}); });
  EXPECT_TRUE(has(full_device, "cuda:0: out of memory"));
  EXPECT_TRUE(has(full_device, "limit none"));
  cuda::set_memory_limit(cuda::memory_stats(gpu).reserved + 4 * kMega, gpu);
  const std::string limited = error_of<OutOfMemoryError>([&] { empty({16 * kMega}, {.device = gpu}); });
  EXPECT_TRUE(has(limited, "asked for 64 MiB"));
  EXPECT_THROW(cuda::set_memory_limit(1, gpu), ValueError);
  cuda::set_memory_limit(0, gpu);
  EXPECT_EQ(cuda::memory_stats(gpu).in_use, in_use);
  EXPECT_EQ((x + ones({1000}, {.device = gpu})).sum().item<float>(), 2000);
}

}  // namespace
}  // namespace weft::test
