// The op table on the device: CudaOpTable.<check>/<row> on cuda:0. Without a device CudaOpTableDevice is
// skipped with the reason.
#include <gtest/gtest.h>

#include <cstdio>

#include <weft/kernels/accelerator.h>
#include "support/op_table_checks.h"

// In a suite of its own: registered checks and TEST have different fixtures.
TEST(CudaOpTableDevice, has_a_device_to_run_on) {
  try {
    const weft::DeviceProperties p = weft::accelerator("cuda").properties();
    std::printf("cuda:0 is %s, compute capability %d.%d\n", p.name.c_str(), p.major, p.minor);
  } catch (const weft::DeviceError& e) {
    GTEST_SKIP() << e.what();
  }
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (weft::cuda::is_available())
    weft::op_table::register_checks("CudaOpTable", "cuda:0", weft::op_table::all_rows());
  return RUN_ALL_TESTS();
}
