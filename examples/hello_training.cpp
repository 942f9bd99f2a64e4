#include <cstdio>

#include <weft/weft.h>

using namespace weft;

// A classifier of points in the plane: which of three spiral arms?
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

int main() {
  manual_seed(1);
  const int64_t n = 300;
  const Tensor arm = arange(n) % 3, along = rand({n}), angle = along * 6.0 + arm.to(kFloat32) * 2.094;
  const Tensor x = stack({along * cos(angle), along * sin(angle)}, 1) + randn({n, 2}) * 0.02;

  Net net;
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  for (int step = 1; step <= 300; ++step) {
    adam.zero_grad();
    const Tensor loss = cross_entropy(net.forward(x), arm);
    loss.backward();
    adam.step();
    if (step % 100 == 0) std::printf("step %d  loss %.4f\n", step, loss.item<double>());
  }

  NoGrad guard;
  const double right = (net.forward(x).argmax(1) == arm).to(kFloat32).mean().item<double>();
  std::printf("accuracy %.3f\n", right);
  return right > 0.9 ? 0 : 1;
}
