#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return static_cast<int>(x.split(1.5).size());  // MISTAKE: a length is an integer
}
