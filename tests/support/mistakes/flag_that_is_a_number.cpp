#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros({2, 3});
  return x.sum(0, 1).dim();  // MISTAKE: Flag
}
