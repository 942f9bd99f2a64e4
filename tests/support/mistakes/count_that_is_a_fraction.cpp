#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return x.topk(1.9).values.dim();  // MISTAKE: a dim, position or count is an integer, not 1.9
}
