// Fits y = 3 x - 1 by gradient descent, with nothing but weft::core.
#include <cmath>
#include <cstdio>

#include <weft/weft.h>

int main() {
  weft::Tensor x = weft::linspace(-1, 1, 17);
  weft::Tensor y = x * 3 - 1;
  weft::Tensor slope = weft::zeros({1}, {.requires_grad = true});
  weft::Tensor offset = weft::zeros({1}, {.requires_grad = true});
  for (int step = 0; step < 200; ++step) {
    weft::Tensor loss = (slope * x + offset - y).square().mean();
    slope.zero_grad();
    offset.zero_grad();
    loss.backward();
    weft::NoGrad guard;
    slope -= slope.grad() * 0.3;
    offset -= offset.grad() * 0.3;
  }
  const double a = slope.item<double>(), b = offset.item<double>();
  std::printf("fit: slope=%.4f offset=%.4f\n", a, b);
  return std::abs(a - 3) < 1e-3 && std::abs(b + 1) < 1e-3 ? 0 : 1;
}
