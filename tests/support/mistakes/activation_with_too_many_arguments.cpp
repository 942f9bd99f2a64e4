#include <weft/weft.h>

int main() {
  const weft::nn::ReLU layer;
  const weft::Tensor x = weft::zeros({1, 2});
  layer.forward(x, 0);  // MISTAKE: /* takes one tensor */
}
