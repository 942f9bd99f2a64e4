#include <weft/weft.h>

int main() {
  weft::nn::Sequential net;
  net.append<weft::nn::Linear>("four", 3);  // MISTAKE: M has no constructor that takes these arguments
}
