// A rule of the user (user_rule.h), compiled for the device by a file of this program, beside the same rule
// on the CPU.
#include <gtest/gtest.h>

#include <vector>

#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "cuda/user_rule.h"
#if defined(WEFT_SIMT)
#include "cuda/user_rule.cu"
#endif

namespace weft::test {
namespace {

std::vector<Tensor> parameters(Device device, DType dtype) {
  Generator numbers(3);
  std::vector<Tensor> all;
  for (const int64_t n : {1, 3, 256, 1025, 5001})
    all.push_back(randn({n}, {.dtype = kFloat64}, &numbers).to(dtype).to(device).requires_grad_());
  return all;
}

DEVICE_TEST(UserRule, takes_the_cpus_steps_on_the_device) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    std::vector<std::vector<Tensor>> course;
    for (const Device device : {Device(kCpu), gpu}) {
      const std::vector<Tensor> p = parameters(device, dtype);
      optim::Fused<SignMomentum> optimizer(p, {.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1});
      Generator numbers(4);
      for (int step = 0; step < 3; ++step) {
        for (const Tensor& x : p)
          Tensor(x).set_grad(randn(x.sizes(), {.dtype = kFloat64}, &numbers).to(dtype).to(device));
        optimizer.step();
      }
      course.push_back(p);
    }
    for (size_t i = 0; i < course[0].size(); ++i) {
      const Tensor here = course[0][i].detach().to(kFloat64),
                   there = course[1][i].detach().to(kCpu).to(kFloat64);
      EXPECT_LE((here - there).abs().max().item<double>(), dtype == kFloat64 ? 1e-14 : 1e-6)
          << to_string(dtype) << ' ' << here.numel();
    }
  }
}

}  // namespace
}  // namespace weft::test
