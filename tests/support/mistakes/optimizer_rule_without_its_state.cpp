#include <weft/weft.h>

struct Plain {
  struct Options { double lr = 0.1; };
  static constexpr const char* kName = "plain";
};

int main() {
  const weft::nn::Linear layer(2, 3);
  weft::optim::Fused<Plain> optimizer(layer.parameters(), {});  // MISTAKE: an update rule says how many tensors of state it keeps per parameter
}
