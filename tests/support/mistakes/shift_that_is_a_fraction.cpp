#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return weft::roll(x, 1.5, 0).dim();  // MISTAKE: a dim, position or count is an integer, not 1.9
}
