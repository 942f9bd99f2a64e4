#include <weft/weft.h>

int main() {
  const weft::nn::Linear layer(2, 3);
  weft::nn::Linear copy = layer;  // MISTAKE: not copied: nn::clone creates another one
}
