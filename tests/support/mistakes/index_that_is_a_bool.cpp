#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return x[x.dim() > 0].dim();  // MISTAKE: an index is an integer, not true
}
