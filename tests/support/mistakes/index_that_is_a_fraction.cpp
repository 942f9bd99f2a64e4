#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return x[1.9].dim();  // MISTAKE: an index is an integer, not 1.9
}
