#include <weft/weft.h>

int main() {
  const weft::nn::Linear layer(2, 3);
  layer(weft::zeros({1, 2}));  // MISTAKE: not called: write module.forward(...)
}
