#include <cstdio>
#include <cstdlib>
#include <optional>

#include <weft/cuda.h>
#include <weft/weft.h>

using namespace weft;

// The classifier of hello_training on a GPU, with products in float16. The whole training step is recorded
// once, then replayed at the cost of one launch.
struct Net : nn::Module {
  nn::Linear first{2, 64}, second{64, 64}, third{64, 3};
  Net() {
    add("first", first);
    add("second", second);
    add("third", third);
  }
  Tensor forward(const Tensor& x) const {
    return third.forward(relu(second.forward(relu(first.forward(x)))));
  }
};

Device gpu_or_cpu() {
  try {
    std::printf("on %s\n", cuda::device_properties().name.c_str());
    return cuda::kDefault;
    // the missing part: library, driver or device; or another error
  } catch (const Error& error) {
    std::printf("on the CPU: %s\n", error.what());
    return kCpu;
  }
}

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  const Device device = gpu_or_cpu();
  manual_seed(1);
  const int64_t n = 300;
  const Tensor arm = (arange(n) % 3).to(device), along = rand({n}, {.device = device});
  const Tensor angle = along * 6.0 + arm.to(kFloat32) * 2.094;
  const Tensor x =
      stack({along * cos(angle), along * sin(angle)}, 1) + randn({n, 2}, {.device = device}) * 0.02;

  Net net;
  net.to(device);
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  optim::GradScaler scaler;
  Tensor loss;
  const auto step = [&] {
    adam.zero_grad();
    {
      const Autocast half(kFloat16);
      loss = cross_entropy(net.forward(x), arm);
    }
    scaler.scale(loss).backward();
    scaler.step(adam);  // skips the step if a gradient overflowed
    scaler.update();
  };

  step();  // the first step allocates the state of optimizer, scaler and libraries
  std::optional<cuda::Graph> graph;
  if (device.is_cuda()) graph.emplace(device).capture(step);
  for (int i = 2; i <= steps; ++i) {
    if (graph) graph->replay();
    else step();
    if (i % 100 == 0 || i == steps) std::printf("step %d  loss %.4f\n", i, loss.item<double>());
  }

  NoGrad guard;
  const double right = (net.forward(x).argmax(1) == arm).to(kFloat32).mean().item<double>();
  std::printf("accuracy %.3f\n", right);
  return right > 0.9 || steps < 300 ? 0 : 1;
}
