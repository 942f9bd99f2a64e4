#include <weft/weft.h>

int main() {
  const weft::nn::Linear layer(2, 3);
  const weft::Tensor x = weft::zeros({1, 2});
  layer.forward(x, x);  // MISTAKE: // takes one tensor
}
