#include <weft/weft.h>

int main() {
  weft::nn::Sequential net;
  net.append<weft::nn::LSTM>(4, 3);  // MISTAKE: M needs `Tensor forward(const Tensor&)`
}
