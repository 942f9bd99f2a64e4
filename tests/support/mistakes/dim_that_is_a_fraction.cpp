#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros({2, 3});
  return x.softmax(0.9).dim();  // MISTAKE: Whole
}
