#include <weft/weft.h>

int main() {
  const auto a = weft::zeros(3).accessor<float, 0>();  // MISTAKE: N is the number of dims, 1 to 8; a single number is item<T>()
}
