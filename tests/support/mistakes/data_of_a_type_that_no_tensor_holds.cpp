#include <weft/weft.h>

int main() {
  const weft::Tensor x = weft::zeros(3);
  return x.data<short>()[0];  // MISTAKE: tensors hold bool, uint8_t, int32_t, int64_t, Half, BFloat16, float or double, not this type
}
