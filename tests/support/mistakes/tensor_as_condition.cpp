#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  if (x > 0) return 1;  // MISTAKE: a Tensor is no condition: use defined(), item<bool>() or any()
}
