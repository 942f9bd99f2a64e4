// Fits y = 3 x - 1 by gradient descent, with nothing but weft::core.
#include <cmath>
#include <cstdio>

#include <weft/weft.h>

int main() {
  weft::Tensor x = weft::linspace(-1, 1, 17);
  weft::Tensor y = x * 3 - 1;
  weft::Tensor slope = weft::zeros({1}, {.requires_grad = true});
  weft::Tensor offset = weft::zeros({1}, {.requires_grad = true});
  weft::mark_concurrent(slope);  // other threads may read it while it is stepped
  const weft::Tensor first = weft::snapshot(slope);
  weft::optim::SGD sgd({slope, offset}, {.lr = 0.3});
  for (int step = 0; step < 200; ++step) {
    weft::Tensor loss = (slope * x + offset - y).square().mean();
    sgd.zero_grad();
    loss.backward();
    sgd.step();
  }
  const double a = slope.item<double>(), b = offset.item<double>();
  std::printf("fit: slope=%.4f offset=%.4f\n", a, b);
  return std::abs(a - 3) < 1e-3 && std::abs(b + 1) < 1e-3 && first.item<double>() == 0 ? 0 : 1;
}
