#include <weft/weft.h>

int main() {
  const weft::nn::Linear layer(2, 3);
  const weft::optim::SGDOptions options{.learning_rate = 0.1};  // MISTAKE: has no non-static data member named 'learning_rate'
}
