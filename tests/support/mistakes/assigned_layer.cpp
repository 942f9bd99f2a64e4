#include <weft/weft.h>

int main() {
  weft::nn::Linear layer(2, 3);
  layer = weft::nn::Linear(4, 3);  // MISTAKE: not assigned: load_state_dict() copies values
}
