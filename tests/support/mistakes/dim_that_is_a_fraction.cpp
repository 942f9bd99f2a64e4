#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros({2, 3});
  return x.softmax(0.9).dim();  // MISTAKE: a dim, position or count is an integer, not 1.9
}
