// Computes on the GPU if there is one, and prints the reason if there is none.
#include <cstdio>

#include <weft/weft.h>

int main() {
  weft::Device device = "cuda";
  try {
    weft::ones({1}, {.device = device});
  } catch (const weft::DeviceError& e) {
    std::printf("where: no GPU (%s)\n", e.what());
    device = "cpu";
  }
  const float sum = weft::ones({2, 3}, {.device = device}).sum().item<float>();
  std::printf("where: %s sum=%g\n", to_string(device).c_str(), static_cast<double>(sum));
  return sum == 6 ? 0 : 1;
}
