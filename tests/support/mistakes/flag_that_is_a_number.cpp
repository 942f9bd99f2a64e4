#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros({2, 3});
  return x.sum(0, 1).dim();  // MISTAKE: a flag is true or false, not 1; two dims are {0, 1}
}
